"""Settings that the recipes of all task heads share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from sbert_search.base.progress import note
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.heads.training.adversarial import AdversarialConfig
from sbert_search.text.labelled.texts import LabelKind
from sbert_search.train.loop.loop import TrainConfig
from sbert_search.train.loop.schedule import FEWEST_ROWS

T = TypeVar("T")
Tune = Literal["full", "head", "probe"]
ClassWeights = Literal["none", "balanced"] | tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadDataConfig:
    """The data files of a task head."""

    train: Path | tuple[Path, ...]  # file or files to train on
    dev: Path | None = None  # file for the dev metrics
    held_out: float = 0.0  # without `dev`: share of the rows held out, unless that is too few
    limit: int | None = None  # maximum number of training rows, those with the smallest hashes

    def __post_init__(self) -> None:
        if not self.files:
            raise ConfigError("data.train is an empty list; name at least one file.")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"data.held_out is {self.held_out}; use 0 to below 1.")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"data.limit is {self.limit}; it must be at least 1.")

    @property
    def files(self) -> tuple[Path, ...]:
        """The training files."""
        return (self.train,) if isinstance(self.train, Path) else self.train


@dataclass(frozen=True, kw_only=True)
class HeadRecipe(TrainConfig):
    """Settings of every training run of a task head."""

    model: str | None = None  # folder or name of an encoder; None: the installed all-MiniLM-L6-v2
    random_weights: bool = False  # start from random weights in the shape of `model`
    max_len: int = 128  # maximum tokens of a text or pair
    tune: Tune = "full"  # all, the head, or one linear layer that is fitted to convergence (probe)
    adversarial: AdversarialConfig = field(default_factory=AdversarialConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adversarial.kind != "none" and self.tune != "full":
            raise ConfigError(
                f"adversarial.kind is {self.adversarial.kind}, which changes the embeddings of the "
                f"encoder, but tune is {self.tune}; set tune=full."
            )


def split_rows(
    rows: Sequence[T], keys: Sequence[str], data: HeadDataConfig
) -> tuple[list[T], list[T]]:
    """Split the training rows into those to train on and those held out, by hashes of their keys.

    Whether a row is held out depends only on its key, so copies of a row are all on one side. With
    a limit, the rows with the smallest hashes are kept, so a smaller limit gives a subset of the
    rows of a larger one. If fewer rows would be held out than a checkpoint can be chosen by, a note
    says so, and all rows are to train on.

    Args:
        rows: All rows of the training files.
        keys: Text of each row; rows with equal keys have equal hashes.
        data: The settings ``held_out`` and ``limit``.

    Raises:
        CorpusError: No row is left to train on.
    """
    share = 0.0 if data.dev else data.held_out
    hashes = [xxhash.xxh3_64_intdigest(key.encode()) / 2**64 for key in keys]
    held = [row for row, place in zip(rows, hashes, strict=True) if place >= 1 - share]
    if share and len(held) < FEWEST_ROWS:
        note(
            f"data.held_out is {share}, which holds out {len(held)} of {len(rows):,} rows: fewer "
            f"than {FEWEST_ROWS} cannot show which checkpoint is best. The run trains on them too, "
            "and the model of the last step is the result."
        )
        share, held = 0.0, []
    kept = [(place, n) for n, place in enumerate(hashes) if place < 1 - share]
    if not kept:
        raise CorpusError(
            f"data.held_out is {data.held_out}: none of {len(rows):,} rows is left to train on. "
            "Change it, or name a file with data.dev."
        )
    chosen = sorted(n for _, n in sorted(kept)[: data.limit])
    return [rows[n] for n in chosen], held


def class_weights(
    chosen: ClassWeights, kind: LabelKind, labels: Sequence[str], targets: NDArray[np.generic]
) -> Tensor | None:
    """Return the weight of each class, float32 (labels,); None: all weights are 1.

    If each item has one class, the weights are scaled so that their mean over the items is 1.

    Args:
        chosen: "none", "balanced", or the weight of each class. The balanced weight of a class is
            1 / (number of items with the class). If an item may have several classes, it is
            (number of items without the class) / (number with it). A count of 0 is replaced by 1.
        kind: What the label of an item is. A number has no class, so the result is None.
        labels: Names of the classes.
        targets: Class of each item, int (n,), or 1 for each of its classes, (n, labels).

    Raises:
        ConfigError: The number of weights is not that of the classes, or a weight is not finite or
            not above 0.
    """
    if chosen == "none" or kind == "number":
        return None
    matrix = np.eye(len(labels))[targets] if kind == "class" else targets.astype(float)
    counts = matrix.sum(axis=0)
    if chosen == "balanced":
        without = np.maximum(len(matrix) - counts, 1) if kind == "several" else 1
        values = without / np.maximum(counts, 1)
    elif len(chosen) != len(labels):
        raise ConfigError(
            f"class_weights has {len(chosen)} values; the {len(labels)} classes are "
            f"{', '.join(labels)}. Give one for each."
        )
    else:
        values = np.array(chosen, dtype=float)
        if not (np.isfinite(values) & (values > 0)).all():
            raise ConfigError(
                f"class_weights is {list(chosen)}; each weight must be finite and above 0."
            )
    if kind == "class":
        values = values * counts.sum() / (values * counts).sum()
    return torch.tensor(values, dtype=torch.float32)
