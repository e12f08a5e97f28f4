from __future__ import annotations

import math
from typing import Any

import pytest

from sbert_search.errors import ConfigError
from sbert_search.models.encoder.config import (
    PRESETS,
    EncoderConfig,
    flops_per_token,
    parameter_count,
    preset,
)
from tests.models.encoder.small import ROTATED, small_encoder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "encoder.layers is 0; it must be positive"),
        ({"layers": 10**9}, "inner_layers is 1,000,000,000 x 1; it must be at most 1,000"),
        ({"layers": 600, "inner_layers": 2}, "inner_layers is 600 x 2; it must be at most 1,000"),
        ({"token_type_vocab": -1}, "encoder.token_type_vocab is -1; it must be 0 or more"),
        ({"heads": 7}, "hidden_size 768 is not a multiple of heads 7"),
        ({"embedding_size": 0}, "encoder.embedding_size is 0"),
        ({"pad_id": 30522}, "encoder.pad_id is 30522; it must be below vocab_size 30522"),
        ({"layer_groups": 13}, "encoder.layer_groups is 13; it must be from 1 to layers"),
        ({"attention_terms": ()}, r"attention_terms is \[\]; choose some of c2c, c2p, p2c"),
        ({"attention_terms": ("c2c", "c2c")}, "choose some of"),
        ({"attention_terms": ("c2c", "c2p")}, "need relative_positions above 0"),
        ({"hidden_dropout": 1.0}, r"hidden_dropout is 1\.0; it must be in \[0, 1\)"),
        ({"layer_norm_eps": 0.0}, r"layer_norm_eps is 0\.0; it must be finite, and above 0"),
        ({"layer_norm_eps": -1e-12}, "encoder.layer_norm_eps is -1e-12"),
        ({"layer_norm_eps": math.nan}, r"encoder\.layer_norm_eps is nan"),
        ({"initializer_range": -1.0}, r"initializer_range is -1\.0; it must be finite, and 0"),
        ({"initializer_range": math.nan}, "encoder.initializer_range is nan"),
    ],
)
def test_shapes_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderConfig(**changes)


@pytest.mark.parametrize(
    ("changes", "order"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"layer_groups": 1}, [0, 0, 0, 0, 0, 0]),
        ({"layer_groups": 2}, [0, 0, 0, 1, 1, 1]),
        ({"layer_groups": 4}, [0, 0, 1, 2, 2, 3]),
        ({"layer_groups": 2, "inner_layers": 2}, [0, 1] * 3 + [2, 3] * 3),
    ],
)
def test_layers_share_blocks_by_group(changes: dict[str, Any], order: list[int]) -> None:
    config = EncoderConfig(layers=6, **changes)
    assert config.block_order == order
    assert config.n_blocks == len(set(order))


PUBLISHED = {  # parameters of the published checkpoints, pooler included where they have one
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "minilm-l6": 22_713_216,
    "minilm-l12": 33_360_000,
    "roberta-base": 124_645_632,
    "roberta-large": 355_359_744,
    "albert-base": 11_683_584,
    "albert-large": 17_683_968,
    "albert-xlarge": 58_724_864,
    "albert-xxlarge": 222_595_584,
    "distilbert": 66_362_880,
    "mpnet-base": 109_486_464,
    "xlm-roberta-base": 278_043_648,
    "electra-base": 108_891_648,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name: str) -> None:
    assert parameter_count(preset(name)) == PUBLISHED[name]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pooler": True, "token_type_vocab": 0, "embedding_size": 8, "position_offset": 2},
        {"layer_groups": 1, "inner_layers": 2, "position_embeddings": False},
        {"attention_terms": ("c2c", "p2c"), "relative_positions": 5, "key_bias": False},
        {"attention_terms": ("c2c", "c2p"), "relative_positions": 5},
        {"position_buckets": 8},
        ROTATED,
    ],
)
def test_formula_counts_the_modules(changes: dict[str, Any]) -> None:
    encoder = small_encoder(**changes)
    counted = sum(parameter.numel() for parameter in encoder.parameters())
    assert parameter_count(encoder.config) == counted


def test_operations_of_a_token_by_hand() -> None:
    config = EncoderConfig(hidden_size=4, heads=1, layers=1, intermediate_size=8)
    assert flops_per_token(config, 3) == 2 * (4 * 16 + 2 * 32) + 2 * 2 * 3 * 4


def test_sharing_weights_saves_parameters_not_operations() -> None:
    bert, albert = PRESETS["bert-base"], PRESETS["albert-base"]
    assert parameter_count(albert) < parameter_count(bert) / 9
    assert flops_per_token(albert, 128) >= flops_per_token(bert, 128)


def test_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'bert-base'"):
        preset("bert-bse")
