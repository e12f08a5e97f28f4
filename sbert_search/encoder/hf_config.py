"""`EncoderConfig` from and to the ``config.json`` of published models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sbert_search.config import from_mapping, to_mapping
from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.layouts import LAYOUTS, Layout
from sbert_search.errors import ConfigError, ModelError

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_NOT_IN_SETTINGS = ("pooler", "causal")  # known from the weights; for tests only


def read_settings(path: Path) -> tuple[EncoderConfig, dict[str, Any]]:
    """Read a ``config.json``; whether there is a pooler only the weights tell.

    Returns:
        The encoder's settings and all keys of the file.

    Raises:
        ModelError: No such file, no JSON object, or a model that this encoder cannot compute.
    """
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Is its folder a model?") from error
    if not isinstance(keys, dict) or not isinstance(keys.get("model_type"), str):
        raise ModelError(f'{path} names no "model_type"; add it, such as "model_type": "bert".')
    if keys["model_type"] not in LAYOUTS:
        raise ModelError(
            f"{path} is of type {keys['model_type']!r}; the native encoder knows "
            f"{', '.join(sorted(LAYOUTS))}."
        )
    try:
        return from_settings(keys), keys
    except ConfigError as error:
        raise ModelError(f"{path}: {error}") from error


def most_positions(keys: Mapping[str, Any]) -> int | None:
    """Find how many tokens a text may have; None: no limit, or a model that is not known here."""
    if keys.get("model_type") not in LAYOUTS:
        return None
    try:
        config = from_settings(keys)
    except ConfigError:
        return None
    return config.max_positions if config.position_embeddings else None


def from_settings(keys: Mapping[str, Any]) -> EncoderConfig:
    """Translate the keys of a ``config.json`` of a known layout.

    Raises:
        ConfigError: A value that this encoder cannot have.
    """
    layout = LAYOUTS[keys["model_type"]]
    keys = {**layout.defaults, **{key: value for key, value in keys.items() if value is not None}}
    for key, value in layout.required.items():
        if keys.get(key, value) != value:
            raise ConfigError(f"{key} is {keys[key]!r}; the native encoder needs {value!r}.")
    values = {ours: keys[theirs] for ours, theirs in layout.settings.items()}
    if not isinstance(values["activation"], str) or values["activation"] not in _ACTIVATIONS:
        raise ConfigError(
            f"The activation {values['activation']!r} is unknown; known: {', '.join(_ACTIVATIONS)}."
        )
    values["activation"] = _ACTIVATIONS[values["activation"]]
    try:
        values |= layout.read_more(keys) | {"layout": layout.model_type}
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"A value is of another kind than {layout.model_type} has: {error}."
        ) from error
    return from_mapping(EncoderConfig, values)


def to_settings(config: EncoderConfig) -> dict[str, Any]:
    """Translate to the keys of a ``config.json``.

    Raises:
        ConfigError: The layout has no way to say what this encoder is.
    """
    layout = LAYOUTS[config.layout]
    keys = _write_keys(config, layout)
    told = to_mapping(from_settings(keys))
    for name, value in to_mapping(config).items():
        if name not in _NOT_IN_SETTINGS and told[name] != value:
            raise ConfigError(
                f"The layout {config.layout!r} cannot hold {name} = {value!r}, only {told[name]!r}."
            )
    return keys


def _write_keys(config: EncoderConfig, layout: Layout) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "architectures": [layout.architecture],
        "model_type": layout.model_type,
    }
    keys |= {theirs: getattr(config, ours) for ours, theirs in layout.settings.items()}
    theirs_of = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    keys[layout.settings["activation"]] = theirs_of[config.activation]
    return keys | layout.write_more(config)
