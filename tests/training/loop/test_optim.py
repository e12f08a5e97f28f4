from __future__ import annotations

from typing import Any

import pytest

from sbert_search.errors import ConfigError
from sbert_search.training.loop.optim import OptimConfig, learning_rate_factors


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"lr": -1e-5}, "optim.lr is -1e-05; it must be finite, and 0 or more"),
        ({"clip": float("nan")}, "optim.clip is nan"),
        ({"weight_decay": float("inf")}, "weight_decay is inf; it must be finite, and 0 or more"),
        ({"beta1": 1.0}, r"optim.beta1 is 1.0; it must be in \[0, 1\)"),
        ({"beta2": -0.1}, "optim.beta2 is -0.1"),
    ],
)
def test_settings_out_of_range_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimConfig(**setting)


def test_lower_blocks_learn_more_slowly_and_heads_at_their_own_rate() -> None:
    names = [
        "encoder.embeddings.word.weight",
        "encoder.blocks.0.up.weight",
        "encoder.blocks.1.up.bias",
        "encoder.pooler.weight",
        "out.weight",
    ]
    plain = learning_rate_factors(names, OptimConfig())
    assert plain == [1.0] * 5
    decayed = learning_rate_factors(names, OptimConfig(layer_decay=0.5, head_factor=10.0))
    assert decayed == [0.25, 0.5, 1.0, 1.0, 10.0]
    bare = learning_rate_factors(["a.weight", "b.weight"], OptimConfig(layer_decay=0.5))
    assert bare == [1.0, 1.0]


@pytest.mark.parametrize("wrong", [{"layer_decay": 0.0}, {"layer_decay": 1.5}, {"head_factor": 0}])
def test_factors_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        OptimConfig(**wrong)
