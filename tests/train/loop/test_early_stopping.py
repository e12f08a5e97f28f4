from __future__ import annotations

from typing import Any

import pytest

from sbert_search.errors import ConfigError
from sbert_search.train.loop.schedule import EvaluationConfig


@pytest.mark.parametrize("setting", [{"every": 0}, {"patience": -1}])
def test_settings_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(ConfigError, match=rf"evaluation\.{name} is .*; it must be at least 1"):
        EvaluationConfig(**setting)
