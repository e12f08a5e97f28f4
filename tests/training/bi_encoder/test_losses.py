from __future__ import annotations

from typing import Any

import pytest

from sbert_search.errors import ConfigError
from sbert_search.training.bi_encoder.losses import LossConfig


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"name": "softmax", "concatenation": ("u", "w")}, "loss.concatenation has 'w'; known: "),
        ({"name": "mnrl", "scale": 0.0}, "loss.scale is 0.0; it must be above 0"),
        ({"name": "mnrl", "temperature": float("nan")}, "loss.temperature is nan"),
        ({"name": "mnrl", "matryoshka": (8, 0)}, r"loss.matryoshka is \[8, 0\]; each size must be"),
        ({"name": "softmax", "matryoshka": (8,)}, "The loss softmax works on full embeddings only"),
    ],
)
def test_settings_that_a_loss_cannot_use_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LossConfig(**setting)
