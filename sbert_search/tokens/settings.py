"""Read tokenizer_config.json, the file in which transformers keeps the settings of a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from sbert_search.errors import ModelError

SETTINGS = "tokenizer_config.json"


def read_settings(folder: Path) -> dict[str, object]:
    """Read the settings in the folder of a tokenizer; {} if there is no file with settings.

    Raises:
        ModelError: The file cannot be read, or does not hold a JSON object.
    """
    path = folder / SETTINGS
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path} cannot be read as JSON: {error}. Repair the file, or copy it again."
        ) from error
    if not isinstance(settings, dict):
        raise ModelError(f"{path} holds no JSON object. Repair the file, or copy it again.")
    return settings
