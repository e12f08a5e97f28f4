from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, BertModel

from sbert_search.encoder.encoder import Encoder
from tests.parity import reference

ODD = (7, 1, 19, 7, 3, 19)  # unsorted, with equal lengths apart, up to all positions


def make(**changes: Any) -> Any:
    settings: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 36,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 50,
        "max_position_embeddings": 19,
        "attn_implementation": "eager",
    }
    return reference.random_model(BertModel(BertConfig(**settings | changes)))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Any, Encoder]:
    model = make()
    return model, reference.our_copy(model, tmp_path / "theirs")


@pytest.mark.parametrize("lengths", [ODD, (1,), (19,), (4, 4, 4), tuple(range(1, 20))])
@pytest.mark.parametrize("segments", [0, 2])
def test_states_equal(pair: tuple[Any, Encoder], lengths: tuple[int, ...], segments: int) -> None:
    reference.assert_same_states(
        *pair, reference.random_batch(lengths, vocab=97, segments=segments)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 1, "hidden_act": "gelu_new"},
        {"num_hidden_layers": 3, "hidden_act": "relu", "type_vocab_size": 3, "pad_token_id": 4},
        {"hidden_size": 40, "num_attention_heads": 1, "layer_norm_eps": 1e-5},
    ],
)
def test_other_shapes_equal(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = make(**changes)
    encoder = reference.our_copy(model, tmp_path / "theirs")
    reference.assert_same_states(model, encoder, reference.random_batch(ODD, vocab=97, segments=2))
    reference.assert_round_trip(model, encoder, tmp_path / "ours")


def test_gradients_equal(pair: tuple[Any, Encoder], tmp_path: Path) -> None:
    tokens = reference.random_batch(ODD, vocab=97, segments=2)
    reference.assert_same_gradients(*pair, tokens, tmp_path / "gradients")


def test_round_trip(pair: tuple[Any, Encoder], tmp_path: Path) -> None:
    reference.assert_round_trip(*pair, tmp_path / "ours")


def test_pooler_equal(pair: tuple[Any, Encoder]) -> None:
    model, encoder = pair
    tokens = reference.random_batch(ODD, vocab=97)
    ours = encoder.pool(encoder(tokens).hidden_states, tokens)
    reference.assert_close(ours, reference.run_reference(model, tokens).pooler_output)
