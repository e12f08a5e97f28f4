"""Settings and tensors of a task head that have no place in the folder format of transformers.

They are stored in two further files of the model folder, `SETTINGS` and `TENSORS`, which
transformers ignores. In a folder without `SETTINGS`, all settings have their defaults.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from sbert_search.base import files
from sbert_search.base.tensors import write_tensors
from sbert_search.config import from_mapping, to_mapping
from sbert_search.errors import ConfigError, ModelError, WeightsError
from sbert_search.models.loading.modules import read_object

SETTINGS = "sbert_search.json"
TENSORS = "sbert_search.safetensors"
Pooling = Literal["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""A mode of `models.heads`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SideFile:
    """Settings of a task head that ``config.json`` has no key for."""

    # How the states of the tokens of a text become the state that the head of a sequence classifier
    # reads, such as "cls", the state of the first token, or "mean", the mean.
    pooling: Pooling = "cls"
    unit_length: bool = False  # whether that state is scaled to norm 1
    temperature: float = 1.0  # divides the logits before they are turned into probabilities
    # If a text may have several classes, the lowest probability at which a class is predicted.
    threshold: float = 0.5
    # A question has no answer if the score of "no answer" minus the score of the best span is
    # larger than this threshold.
    no_answer_threshold: float = 0.0
    overlap: int = 128  # tokens that neighbouring windows of a long text share
    max_question: int = 64  # most tokens of a question
    max_answer: int = 30  # most tokens of an answer
    # Tagging scheme of the labels of a token classifier; None: they do not mark entities.
    scheme: Literal["bio", "bilou"] | None = None
    crf: bool = False  # a conditional random field after a token classifier, scores in `TENSORS`

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"temperature is {self.temperature}; it must be finite and above 0.")
        if not 0 <= self.threshold <= 1:
            raise ConfigError(f"threshold is {self.threshold}; it must be from 0 to 1.")
        if not math.isfinite(self.no_answer_threshold):
            raise ConfigError(
                f"no_answer_threshold is {self.no_answer_threshold}; it must be finite."
            )
        for name, least in (("overlap", 0), ("max_question", 1), ("max_answer", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}.")


def read_side_file(folder: Path) -> SideFile:
    """Read the settings of a task head from `SETTINGS`; without this file, return the defaults."""
    path = folder / SETTINGS
    if not path.is_file():
        return SideFile()
    try:
        return from_mapping(SideFile, read_object(path))
    except ConfigError as error:
        raise ModelError(f"{path} cannot be used: {error} Save the model again.") from error


def write_side_file(folder: Path, side: SideFile) -> None:
    """Write the settings to `SETTINGS`; if all have their defaults, only over an older file."""
    if side != SideFile() or (folder / SETTINGS).exists():
        values = {name: value for name, value in to_mapping(side).items() if value is not None}
        files.replace_file(folder / SETTINGS, json.dumps(values, indent=2).encode() + b"\n")


def read_side_tensors(folder: Path, names: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read tensors of a task head, by name and shape, from `TENSORS`."""
    path = folder / TENSORS
    try:
        tensors = safetensors.torch.load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} is missing or damaged ({error}). Copy it again.") from error
    for name, shape in names.items():
        found = tensors.get(name)
        if found is None or tuple(found.shape) != shape or not found.isfinite().all():
            raise WeightsError(
                f"{path}: {name} must be finite numbers of shape {shape}. Take all files of the "
                "folder from one model."
            )
    return {name: tensors[name].float() for name in names}


def write_side_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors of a task head to `TENSORS`."""
    write_tensors(folder / TENSORS, {name: tensor.cpu() for name, tensor in tensors.items()})
