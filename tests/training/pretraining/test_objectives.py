from __future__ import annotations

from typing import Any

import pytest

from sbert_search.errors import ConfigError
from sbert_search.training.pretraining.objectives import ObjectiveConfig


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"mlm_weight": -1.0}, "objective.mlm_weight is -1.0; it must not be below 0"),
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
