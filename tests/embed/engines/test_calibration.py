from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from sbert_search.embed.engines import int8 as calibration
from sbert_search.embed.engines.int8 import calibrate
from sbert_search.models.encoder.encoder import Block, Encoder
from sbert_search.models.encoder.packed import PackedTokens
from tests.models.encoder.small import small_encoder

pytestmark = pytest.mark.usefixtures("one_thread")

BATCHES = [PackedTokens.from_lists([[1, 2, 3], [4]]), PackedTokens.from_lists([[5, 6, 7, 8]])]


def block(encoder: Encoder, number: int = 0) -> Block:
    return cast(Block, encoder.blocks[number])


def test_ranges_are_those_of_all_batches() -> None:
    encoder = small_encoder()
    found, seen = calibrate(encoder, BATCHES).ranges, []
    hook = block(encoder, 1).up.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.inference_mode():
        for batch in BATCHES:
            encoder(batch)
    hook.remove()
    inputs = torch.cat(seen)
    assert set(found) == {f"{n}.{part}" for n in (0, 1) for part in ("qkv", "output", "up", "down")}
    torch.testing.assert_close(found["1.up"].low, inputs.amin(0))
    torch.testing.assert_close(found["1.up"].high, inputs.amax(0))
    torch.testing.assert_close(found["1.up"].mean, inputs.mean(0))


def test_shared_blocks_are_seen_in_all_layers() -> None:
    encoder = small_encoder(layers=3, layer_groups=1)
    found, seen = calibrate(encoder, BATCHES).ranges, []
    hook = block(encoder, 0).up.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.inference_mode():
        encoder(BATCHES[0])
        encoder(BATCHES[1])
    hook.remove()
    assert len(seen) == 6
    torch.testing.assert_close(found["0.up"].high, torch.cat(seen).amax(0))


def test_a_layer_that_int8_spoils_stays_exact(monkeypatch: Any) -> None:
    encoder = small_encoder(initializer_range=0.1)
    assert calibrate(encoder, BATCHES).exact == frozenset()
    # One input of 1,000 and weights of 0 for it: the other inputs share what is left of the levels.
    down = block(encoder).down
    down.weight.data[:, 5] = 0
    block(encoder).up.weight.data[5] = 0
    block(encoder).up.bias.data[5] = 1000.0
    assert calibrate(encoder, BATCHES).exact == {"0.down"}
    monkeypatch.setattr(calibration, "MOST_NOISE", 0.0)
    assert len(calibrate(encoder, BATCHES).exact) == 8


def test_a_layer_with_one_exact_and_very_large_channel_stays_exact(monkeypatch: Any) -> None:
    """As in all-mpnet-base-v2: together, the errors of the other channels look small."""
    encoder = small_encoder(initializer_range=0.1)
    down = block(encoder).down
    down.weight.data[:, 5] = 0
    down.weight.data[3] = 0
    down.weight.data[3, 5] = 10.0
    block(encoder).up.weight.data[5] *= 1000
    assert calibrate(encoder, BATCHES).exact == {"0.down"}
    monkeypatch.setattr(calibration, "MOST_CHANNEL_NOISE", 1e30)
    assert calibrate(encoder, BATCHES).exact == frozenset()


def test_the_encoder_is_left_as_it_was() -> None:
    encoder = small_encoder()
    with torch.inference_mode():
        before = encoder(BATCHES[0]).hidden_states
        calibrate(encoder, BATCHES)
        assert torch.equal(encoder(BATCHES[0]).hidden_states, before)
    assert not encoder.frozen
    assert not block(encoder).up._forward_pre_hooks
