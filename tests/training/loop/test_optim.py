from __future__ import annotations

from typing import Any

import pytest

from sbert_search.errors import ConfigError
from sbert_search.training.loop.optim import OptimConfig


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
