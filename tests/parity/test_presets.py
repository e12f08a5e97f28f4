from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from transformers import AutoConfig, AutoModel

from sbert_search.models.encoder.config import PRESETS, parameter_count
from sbert_search.models.encoder.layouts import from_settings, to_settings


@pytest.mark.parametrize("name", PRESETS)
def test_settings_describe_the_published_model(name: str) -> None:
    config, reference = PRESETS[name], cast(Any, AutoModel)
    settings = to_settings(config)
    with torch.device("meta"):
        model = reference.from_config(cast(Any, AutoConfig).for_model(**settings))
    assert parameter_count(config) == sum(part.numel() for part in model.parameters())
    assert replace(from_settings(settings), pooler=config.pooler) == config
