"""Settings that the recipes of all task heads share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import xxhash

from sbert_search.errors import ConfigError, CorpusError
from sbert_search.training.loop.loop import TrainConfig

T = TypeVar("T")
Tune = Literal["full", "head", "probe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadDataConfig:
    """The data files of a task head."""

    train: Path | tuple[Path, ...]  # file or files to train on
    dev: Path | None = None  # file for the dev metrics
    held_out: float = 0.0  # without `dev`: share of the rows held out as dev data, by a hash
    limit: int | None = None  # maximum number of training rows, those with the smallest hashes

    def __post_init__(self) -> None:
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


def split_rows(
    rows: Sequence[T], keys: Sequence[str], data: HeadDataConfig
) -> tuple[list[T], list[T]]:
    """Split the training rows into those to train on and those held out, by hashes of their keys.

    A row's part depends on its key only, so copies of a row are all on one side. With a limit,
    rows of the smallest hashes are kept, so that a smaller set is a part of a larger one.

    Args:
        rows: All rows of the training files.
        keys: Text of each row; rows with equal keys have equal hashes.
        data: The settings ``held_out`` and ``limit``.

    Raises:
        CorpusError: No row is left on one of the sides.
    """
    share = 0.0 if data.dev else data.held_out
    hashes = [xxhash.xxh3_64_intdigest(key.encode()) / 2**64 for key in keys]
    held = [row for row, place in zip(rows, hashes, strict=True) if place >= 1 - share]
    kept = [(place, n) for n, place in enumerate(hashes) if place < 1 - share]
    if not kept or (share and not held):
        raise CorpusError(
            f"data.held_out is {data.held_out}: {len(kept)} of {len(rows)} rows are left to train "
            f"on, {len(held)} are held out. Change it, or name a file with data.dev."
        )
    chosen = sorted(n for _, n in sorted(kept)[: data.limit])
    return [rows[n] for n in chosen], held
