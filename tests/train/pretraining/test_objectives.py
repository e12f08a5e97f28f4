from __future__ import annotations

from typing import Any, Literal
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from sbert_search.errors import ConfigError
from sbert_search.models.pretraining import MaskedBatch
from sbert_search.models.replaced_token_detection import ReplacedTokenModel, ReplacedTokenOutput
from sbert_search.train.loop.objective import Batch
from sbert_search.train.pretraining_objectives import ObjectiveConfig, ReplacedObjective


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"mlm_weight": -1.0}, "objective.mlm_weight is -1.0; it must be at least 0"),
        ({"temperature": 0.0}, "objective.temperature is 0.0; it must be above 0"),
        (
            {"kind": "distilled", "soft_weight": 0.0, "mlm_weight": 0.0, "cosine_weight": 0.0},
            "All distillation weights are 0; set one of",
        ),
    ],
)
def test_weights_that_train_nothing_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ObjectiveConfig(**setting)


@pytest.mark.parametrize(
    ("at", "total", "count"),
    [
        # softplus of 1, 1, 0.5 and 2: the second token was replaced, with log-odds of -1.
        ("tokens", 1.313262 + 1.313262 + 0.974077 + 2.126928, 4),
        ("masked", 1.313262 + 2.126928, 2),
    ],
)
def test_replaced_tokens_are_judged_everywhere_or_at_masks(
    at: Literal["tokens", "masked"], total: float, count: int
) -> None:
    output = ReplacedTokenOutput(
        generator_logits=torch.zeros(2, 5),
        logits=torch.tensor([1.0, -1.0, 0.5, 2.0]),
        replaced=torch.tensor([False, True, False, False]),
    )
    inputs = Mock(spec=MaskedBatch, positions=torch.tensor([1, 3]), labels=torch.tensor([0, 1]))
    objective = ReplacedObjective(50.0, at)
    assert objective.units == {"mlm": "masked", "rtd": at}
    losses = objective(
        Mock(spec=ReplacedTokenModel, return_value=output), Batch(inputs, np.arange(1))
    )
    loss, n = losses.sums["rtd"]
    assert float(loss) == pytest.approx(total, abs=1e-4)
    assert int(n) == count
    assert int(losses.metrics["rtd_accuracy"][1]) == 4
