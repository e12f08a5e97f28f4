from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sbert_search.errors import ConfigError
from sbert_search.train.loop.optim import (
    OptimConfig,
    clipped_step,
    gradient_norm,
    learning_rate_factors,
    make_optimizer,
)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"lr": -1e-5}, "optim.lr is -1e-05; it must be finite, and at least 0"),
        ({"clip": float("nan")}, "optim.clip is nan"),
        ({"weight_decay": float("inf")}, "weight_decay is inf; it must be finite, and at least 0"),
        ({"beta1": 1.0}, r"optim.beta1 is 1.0; it must be at least 0 and below 1"),
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


def test_the_blocks_of_two_encoders_are_counted_on_their_own() -> None:
    names = [
        "encoder.embeddings.word.weight",
        "encoder.blocks.0.up.weight",
        "encoder.blocks.2.up.weight",
        "generator.encoder.distances.weight",
        "generator.encoder.blocks.0.up.weight",
        "generator.out.weight",
    ]
    decayed = learning_rate_factors(names, OptimConfig(layer_decay=0.5))
    assert decayed == [0.125, 0.25, 1.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("wrong", [{"layer_decay": 0.0}, {"layer_decay": 1.5}, {"head_factor": 0}])
def test_factors_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        OptimConfig(**wrong)


@pytest.mark.parametrize("largest", [0.5, 50.0, 0.0])
def test_a_clipped_step_is_that_of_clipped_gradients(largest: float) -> None:
    """The fused step scales the gradients itself; torch clips them before the step."""
    ours, theirs = nn.Linear(6, 4), nn.Linear(6, 4)
    theirs.load_state_dict(ours.state_dict())
    config = OptimConfig(lr=0.1)
    optimizers = [make_optimizer(model, config) for model in (ours, theirs)]
    generator = torch.Generator().manual_seed(0)
    for scale in (1.0, 0.01, 3.0):  # the second norm is below 0.5
        gradients = [scale * torch.randn(p.shape, generator=generator) for p in ours.parameters()]
        for model in (ours, theirs):
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
        clipped_step(optimizers[0], gradient_norm(ours), largest)
        if largest:
            nn.utils.clip_grad_norm_(theirs.parameters(), largest)
        optimizers[1].step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
