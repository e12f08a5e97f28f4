"""Translate `EncoderConfig` from and to the ``config.json`` of published models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

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


def read_settings(path: Path) -> tuple[EncoderConfig, dict[str, object]]:
    """Read a ``config.json``.

    Returns:
        The encoder's settings, without a pooler (the weights tell whether there is one), and all
        keys of the file.

    Raises:
        ModelError: The file is missing or not a JSON object, or `Encoder` does not implement
            the model's architecture.
    """
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Is its folder a model?") from error
    if not isinstance(keys, dict) or not isinstance(keys.get("model_type"), str):
        raise ModelError(f'{path} names no "model_type"; add it, such as "model_type": "bert".')
    if keys["model_type"] not in LAYOUTS:
        raise ModelError(
            f"{path} is of type {keys['model_type']!r}; the native encoder supports "
            f"{', '.join(sorted(LAYOUTS))}."
        )
    try:
        return from_settings(keys), keys
    except ConfigError as error:
        raise ModelError(f"{path}: {error}") from error


def most_positions(keys: Mapping[str, object]) -> int | None:
    """Maximum tokens of a text by a ``config.json``; None if there is no limit or it is unknown."""
    if str(keys.get("model_type")) not in LAYOUTS:
        return None
    try:
        config = from_settings(keys)
    except ConfigError:
        return None
    return config.max_positions if config.position_embeddings else None


def from_settings(keys: Mapping[str, object]) -> EncoderConfig:
    """Translate the keys of a ``config.json`` whose ``model_type`` is in `LAYOUTS`.

    Raises:
        ConfigError: This encoder does not support a value.
    """
    layout = LAYOUTS[str(keys["model_type"])]
    keys = {**layout.defaults, **{key: value for key, value in keys.items() if value is not None}}
    for key, value in layout.required.items():
        if keys.get(key, value) != value:
            raise ConfigError(f"{key} is {keys[key]!r}; the native encoder needs {value!r}.")
    values = {name: keys[key] for name, key in layout.settings.items()}
    activation = values["activation"]
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ConfigError(
            f"The activation {activation!r} is unknown; known: {', '.join(_ACTIVATIONS)}."
        )
    values |= layout.read_more(keys)
    values |= {"activation": _ACTIVATIONS[activation], "layout": layout.model_type}
    return from_mapping(EncoderConfig, values)


def to_settings(config: EncoderConfig) -> dict[str, object]:
    """Translate a configuration to the keys of a ``config.json``.

    The keys are translated back, to check that no setting is lost. Two settings have no key:
    ``pooler`` and ``causal``. A reader knows from the weights whether there is a pooler, so the
    layout must have a name for these weights. ``causal`` is for tests only, and is not checked.

    Raises:
        ConfigError: The file format of the model family (layout) cannot store one of the settings.
    """
    layout = LAYOUTS[config.layout]
    keys = _write_keys(config, layout)
    read_back = to_mapping(from_settings(keys))
    read_back |= {"pooler": config.pooler and "pooler" in layout.names, "causal": config.causal}
    for name, value in to_mapping(config).items():
        if read_back[name] != value:
            raise ConfigError(
                f"The layout {config.layout!r} cannot hold {name} = {value!r}, "
                f"only {read_back[name]!r}."
            )
    return keys


def _write_keys(config: EncoderConfig, layout: Layout) -> dict[str, object]:
    keys: dict[str, object] = {
        "architectures": [layout.architecture],
        "model_type": layout.model_type,
    }
    keys |= {key: getattr(config, name) for name, key in layout.settings.items()}
    # Two published names mean "gelu_tanh". The reversed order makes the first of them win.
    published = {own_name: name for name, own_name in reversed(_ACTIVATIONS.items())}
    keys[layout.settings["activation"]] = published[config.activation]
    return keys | layout.write_more(config)
