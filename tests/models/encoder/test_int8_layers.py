from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sbert_search.embed.engines.int8 import calibrate
from sbert_search.errors import ModelError
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.inference_layers import (
    Calibration,
    ChannelRange,
    Int8Linear,
    Levels,
    RangeCounter,
    freeze_int8,
)
from sbert_search.models.encoder.int8_kernels import check_int8_product
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.weights import save_encoder
from tests.models.encoder.small import DISENTANGLED, ROTATED, small_encoder

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [[1, 2, 3], [4], list(range(1, 13)), [7, 8, 9], [49, 30, 20, 10, 5]]
TOKENS = PackedTokens.from_lists(TEXTS)
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "distilbert": {"token_type_vocab": 0},
    "roberta": {"position_offset": 2, "activation": "gelu_tanh"},
    "albert": {"layer_groups": 1, "embedding_size": 8, "activation": "gelu_tanh"},
    "electra": {"embedding_size": 8},
    "mpnet": {"position_buckets": 8},
    "modernbert": ROTATED,
    "deberta": DISENTANGLED,
    "relu": {"activation": "relu"},
}


def linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight))
    layer.weight = nn.Parameter(torch.tensor(weight))
    layer.bias = nn.Parameter(torch.tensor(bias))
    return layer


def ranges(low: list[float], high: list[float], mean: list[float] | None = None) -> ChannelRange:
    return ChannelRange(*map(torch.tensor, (low, high, mean or [0.0] * len(low))))


def run(layer: Int8Linear, states: Tensor) -> Tensor:
    with torch.inference_mode():
        outputs: Tensor = layer(states)
        return outputs


def test_a_product_by_hand() -> None:
    # Levels 1 to 254 for -1 to 1.53: steps of 0.01, and 0 is level 101.
    levels = Levels.of_range(-1.0, 1.53)
    assert levels.zero_point == 101
    assert levels.scale == pytest.approx(0.01)
    layer = linear([[1.27, -0.64], [0.5, 0.2]], [10.0, 0.0])
    made = Int8Linear(layer, ranges([-1.0] * 2, [1.53] * 2), RangeCounter(), levels=levels)
    # 0.5 and -0.252 become 50 and -25 steps. The weights of a row are multiples of a 127th of the
    # largest one, or without VNNI instructions, of the largest sum of one sign in a pair.
    largest = 0.5 + 0.2 if check_int8_product(2, 2) else 0.5
    second = [round(weight / largest * 127) for weight in (0.5, 0.2)]
    expected = [
        10 + 0.01 * (50 * 127 - 25 * -64) * 1.27 / 127,
        0.01 * (50 * second[0] - 25 * second[1]) * largest / 127,
    ]
    outputs = run(made, torch.tensor([[0.5, -0.252]]))
    assert outputs[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_the_bias_makes_up_for_rounded_weights_at_the_mean() -> None:
    torch.manual_seed(0)
    layer, mean = nn.Linear(16, 5), torch.arange(-8, 24, 2) / 32  # these inputs are not rounded
    layer.weight.data[:, 0] = 9  # makes coarse steps for the other weights
    seen = ChannelRange(torch.full((16,), -2.0), torch.full((16,), 3.0), mean)
    levels = Levels(1 / 32, 100)
    with torch.no_grad():
        outputs = layer(mean[None])
    with_mean = run(Int8Linear(layer, seen, RangeCounter(), levels=levels), mean[None])
    no_mean = seen._replace(mean=torch.zeros(16))
    without = run(Int8Linear(layer, no_mean, RangeCounter(), levels=levels), mean[None])
    assert float((with_mean - outputs).abs().max()) < 1e-5
    assert float((without - outputs).abs().max()) > 1e-2


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_the_output_is_rounded_after_the_activation(activation: str) -> None:
    torch.manual_seed(0)
    layer, states = nn.Linear(24, 40), torch.randn(50, 24)
    seen = ChannelRange(states.amin(0), states.amax(0), states.mean(0))
    floats = Int8Linear(layer, seen, RangeCounter(), activation=activation)
    output_levels = Levels.of_range(-0.2, 2.0)
    rounded = Int8Linear(
        layer, seen, RangeCounter(), activation=activation, output_levels=output_levels
    )
    outputs, levels = run(floats, states), run(rounded, states)
    function = F.relu if activation == "relu" else F.gelu
    with torch.no_grad():
        assert float((outputs - function(layer(states))).abs().max()) < 0.05
    assert levels.dtype == torch.uint8
    back = (levels.float() - output_levels.zero_point) * output_levels.scale
    clipped = outputs.clamp(
        *((level - output_levels.zero_point) * output_levels.scale for level in (0, 255))
    )
    assert float((back - clipped).abs().max()) < 0.6 * output_levels.scale


def test_smoothing_keeps_small_channels_beside_a_large_one() -> None:
    torch.manual_seed(0)
    layer, states = nn.Linear(32, 16), torch.randn(200, 32)
    states[:, 3] *= 100
    layer.weight.data[:, 3] /= 100  # an outlier channel of a trained model has small weights
    seen = ChannelRange(states.amin(0), states.amax(0), states.mean(0))
    levels = Levels.of_range(float(seen.low.min()), float(seen.high.max()))
    with torch.no_grad():
        outputs = layer(states)
    plain = run(Int8Linear(layer, seen, RangeCounter(), levels=levels), states)
    smoothed = run(Int8Linear(layer, seen, RangeCounter()), states)
    assert float((smoothed - outputs).std()) < 0.1 * float((plain - outputs).std())


@pytest.mark.parametrize(("inputs", "outputs"), [(24, 8), (24, 24), (256, 256), (256, 1024)])
def test_a_row_does_not_depend_on_the_number_of_rows(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    layer, states = nn.Linear(inputs, outputs), torch.randn(300, inputs)
    seen = ChannelRange(states.amin(0), states.amax(0), states.mean(0))
    for activation in (None, "gelu", "gelu_tanh", "relu"):
        made = Int8Linear(layer, seen, RangeCounter(), activation=activation)
        many = run(made, states)
        for rows in (0, 1, 2, 5, 8, 11, 32, 33, 100):
            assert torch.equal(run(made, states[:rows]), many[:rows]), rows


def test_values_beyond_the_range_are_clipped_and_counted() -> None:
    counter = RangeCounter()
    made = Int8Linear(
        linear([[1.0, -1.0]], [0.0]),
        ranges([-1.0] * 2, [1.53] * 2),
        counter,
        levels=Levels(0.01, 101),
    )
    run(made, torch.tensor([[1.53, -1.0], [0.0, 0.5]]))
    assert (counter.values, counter.beyond, counter.share) == (4, 0, 0.0)
    outputs = run(made, torch.tensor([[50.0, 0.0], [-50.0, 0.0], [1.6, -1.02]]))
    assert (counter.values, counter.beyond) == (10, 4)
    assert outputs[:2, 0].tolist() == pytest.approx([1.54, -1.01], rel=1e-4)


def calibrated(encoder: Encoder, texts: Sequence[Sequence[int]] = TEXTS) -> Calibration:
    return calibrate(encoder, [PackedTokens.from_lists(texts)])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("exact", [torch.float32, torch.bfloat16])
def test_states_are_close_to_those_of_float32(family: str, exact: torch.dtype) -> None:
    encoder = small_encoder(initializer_range=0.1, **FAMILIES[family])
    with torch.inference_mode():
        plain = encoder(TOKENS).hidden_states
        freeze_int8(encoder, calibrated(encoder), exact)
        states = encoder(TOKENS).hidden_states
    assert states.dtype == torch.float32
    assert float(F.cosine_similarity(plain, states).min()) > 0.998
    assert not torch.equal(plain, states)


def test_named_layers_stay_exact() -> None:
    encoder = small_encoder(initializer_range=0.1)
    calibration = calibrated(encoder)
    with torch.inference_mode():
        plain = encoder(TOKENS).hidden_states
        freeze_int8(encoder, Calibration(calibration.ranges, frozenset(calibration.ranges)))
        states = encoder(TOKENS).hidden_states
    torch.testing.assert_close(states, plain, atol=5e-6, rtol=0)


@pytest.mark.parametrize("exact", ["0.up", "1.down", "0.qkv", "1.output"])
def test_one_exact_layer_among_others(exact: str) -> None:
    encoder = small_encoder(initializer_range=0.1)
    calibration = calibrated(encoder)
    with torch.inference_mode():
        plain = encoder(TOKENS).hidden_states
        mixed = Calibration(calibration.ranges, frozenset([exact]))
        freeze_int8(encoder, mixed, torch.bfloat16)
        states = encoder(TOKENS).hidden_states
    assert float(F.cosine_similarity(plain, states).min()) > 0.998


def test_exact_layers_are_float32_on_a_cpu_without_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = small_encoder(initializer_range=0.1)
    calibration = calibrated(encoder)
    without = {torch.float32}
    monkeypatch.setattr(
        "sbert_search.models.encoder.inference_layers.has_onednn", lambda dtype: dtype in without
    )
    with torch.inference_mode():
        plain = encoder(TOKENS).hidden_states
        freeze_int8(
            encoder, Calibration(calibration.ranges, frozenset(calibration.ranges)), torch.bfloat16
        )
        states = encoder(TOKENS).hidden_states
    torch.testing.assert_close(states, plain, atol=5e-6, rtol=0)  # bfloat16 differs more


@pytest.mark.parametrize("family", ["bert", "deberta"])
def test_attention_whose_inputs_are_exact_computes_in_one_type(family: str) -> None:
    encoder = small_encoder(max_positions=40, **FAMILIES[family])
    calibration = calibrated(encoder)
    kept = frozenset(name for name in calibration.ranges if name.endswith("qkv"))
    assert kept
    with torch.inference_mode():
        plain = encoder(TOKENS).hidden_states
        freeze_int8(encoder, Calibration(calibration.ranges, kept), torch.bfloat16)
        states = encoder(TOKENS).hidden_states
    torch.testing.assert_close(states, plain, atol=0.2, rtol=0)


@pytest.fixture(scope="module", params=["bert", "deberta"])
def frozen(request: pytest.FixtureRequest) -> Encoder:
    encoder = small_encoder(max_positions=40, **FAMILIES[request.param])
    freeze_int8(encoder, calibrated(encoder), torch.bfloat16)
    return encoder


IDS = st.lists(st.integers(0, 49), min_size=1, max_size=40)


@pytest.mark.thorough
@given(st.lists(IDS, min_size=1, max_size=8), st.data())
@settings(max_examples=60)
def test_states_do_not_depend_on_company(
    frozen: Encoder, texts: list[list[int]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(texts))))
    with torch.inference_mode():
        packed = frozen(PackedTokens.from_lists([texts[row] for row in order])).hidden_states
        together = dict(zip(order, packed.split([len(texts[row]) for row in order]), strict=True))
        for row, ids in enumerate(texts):
            alone = frozen(PackedTokens.from_lists([ids])).hidden_states
            assert torch.equal(alone, together[row])


def test_relative_positions_give_a_text_the_same_bits_beside_others() -> None:
    encoder = small_encoder(max_positions=40, **FAMILIES["deberta"])
    freeze_int8(encoder, calibrated(encoder), torch.bfloat16)
    text, other = [38, 6, 1, 1, 38, 6], [0] * 6  # one last bit makes another int8 value here
    with torch.inference_mode():
        alone = encoder(PackedTokens.from_lists([text])).hidden_states
        together = encoder(PackedTokens.from_lists([text, other])).hidden_states
    assert torch.equal(alone, together[:6])


def test_an_int8_encoder_neither_trains_nor_saves(tmp_path: Path) -> None:
    encoder = small_encoder().train()
    freeze_int8(encoder, calibrated(small_encoder()))
    assert not encoder.training
    with pytest.raises(ModelError, match="cannot be saved"):
        save_encoder(encoder, tmp_path)
