"""Vectors that a user already has: an array with one vector for each row of a source, or a column.

If a vector cannot be used, only its own row is rejected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.arrays import MAX_NORM, too_long
from sbert_search.errors import CorpusError
from sbert_search.text.formats.rows import BLOCK_ROWS, BadRow

_MAX_DIM = 65_536

Vectors = NDArray[np.float32]


class _HasArray(Protocol):
    """An object that numpy can read as an array, such as a tensor on the CPU."""

    def __array__(self) -> NDArray[Any]: ...


VectorsLike: TypeAlias = (
    NDArray[np.floating]
    | _HasArray
    | Sequence[NDArray[np.floating]]
    | Sequence[Sequence[float]]
    | str
    | Path
)
"""Vectors, one for each row of a source.

Floats (n_rows, dim), as a numpy array (in memory or memory-mapped), a torch tensor on the CPU or
lists; or the path of an ``.npy`` file; or the name of a column of the source.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorRule:
    """Requirements for the vectors of an index."""

    dim: int | None = None  # None: that of the first vector
    # True: the index scales vectors to norm 1, so a vector of zeros is refused. False: vectors are
    # not scaled, so their norm and components must not be too large.
    nonzero: bool = True
    dtype: str = "float32"  # in which the index stores vectors


class RowVectors:
    """Floats (n_rows, dim), read in blocks; a memory-mapped file is never loaded as a whole."""

    def __init__(self, array: NDArray[Any], shown: str = "vectors") -> None:
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            raise CorpusError(
                f"{shown}: the array is of type {array.dtype}; convert it to float32."
            )
        if array.ndim != 2 or not 1 <= array.shape[1] <= _MAX_DIM:
            raise CorpusError(
                f"{shown}: the array has shape {array.shape}; it must be (rows, dimensions), with "
                f"1 to {_MAX_DIM:,} dimensions."
            )
        self.array, self.shown = array, shown

    @classmethod
    def open(cls, vectors: VectorsLike) -> RowVectors:
        """Wrap an array, a tensor or lists, or memory-map an ``.npy`` file."""
        if isinstance(vectors, cls):
            return vectors
        if not isinstance(vectors, (str, Path)):
            return cls(_as_array(vectors))
        try:
            array = np.load(vectors, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise CorpusError(f"{vectors}: cannot be read as an .npy file: {error}.") from error
        if not isinstance(array, np.ndarray):
            raise CorpusError(f"{vectors}: an .npz archive; save the vectors with numpy.save.")
        return cls(array, str(vectors))

    def __len__(self) -> int:
        return len(self.array)

    def __array__(self) -> NDArray[np.floating]:
        return self.array

    @property
    def dim(self) -> int:
        """Number of dimensions."""
        return int(self.array.shape[1])

    def block(self, start: int, stop: int) -> Vectors:
        """Read the rows from ``start`` to ``stop`` (exclusive) as float32 (n, dim), in C order.

        A float64 that is too large for float32 becomes infinite.
        """
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(self.array[start:stop], dtype=np.float32)

    def sha256(self) -> str:
        """Return the SHA-256 of the vectors as float32, in hexadecimal; memory use is bounded."""
        digest = hashlib.sha256()
        for start in range(0, len(self), BLOCK_ROWS):
            digest.update(self.block(start, start + BLOCK_ROWS).data)
        return digest.hexdigest()

    def require(self, n_rows: int, rule: VectorRule) -> None:
        """Check that there is one vector for each row, with the dimensions of the rule."""
        if len(self) != n_rows:
            raise CorpusError(
                f"{self.shown}: {len(self):,} vectors for {n_rows:,} rows. Pass one vector for "
                "each row, also for rows that are rejected."
            )
        if rule.dim is not None and self.dim != rule.dim:
            raise CorpusError(
                f"{self.shown}: the vectors have {self.dim} dimensions, and those of the index "
                f"have {rule.dim}."
            )


class VectorReader:
    """Checks the vector of each row, from an array or else from the value of a column."""

    def __init__(self, rule: VectorRule, given: RowVectors | None = None) -> None:
        self.rule, self.given = rule, given
        self.dim = given.dim if given else rule.dim
        self._start, self._block = 0, np.empty((0, 0), np.float32)
        self._problems: list[str] = []

    def of_row(self, number: int) -> Vectors:
        """Return the vector (dim,) of a row of the array; raises `BadRow` if it cannot be used."""
        assert self.given is not None
        if number >= len(self.given):
            raise CorpusError(
                f"{self.given.shown}: {len(self.given):,} vectors for more rows. Pass one vector "
                "for each row, also for rows that are rejected."
            )
        at = number - self._start
        if not 0 <= at < len(self._problems):
            self._start, at = number, 0
            self._block = self.given.block(number, number + BLOCK_ROWS)
            self._problems = vector_problems(self._block, self.rule)
        if problem := self._problems[at]:
            raise BadRow(problem)
        return cast(Vectors, self._block[at])

    def of_value(self, value: object, name: str) -> Vectors:
        """Return the value of a column as a vector (dim,); raises `BadRow` if it cannot be used."""
        if value is None:
            raise BadRow(f"the row has no vector ({name!r} is missing)")
        vector = _numbers(value, name)
        if self.dim is not None and len(vector) != self.dim:
            raise BadRow(f"{name!r} has {len(vector):,} dimensions, not {self.dim:,}")
        if not 1 <= len(vector) <= _MAX_DIM:
            raise BadRow(f"{name!r} has {len(vector):,} dimensions; 1 to {_MAX_DIM:,} are possible")
        if problem := vector_problems(vector[None], self.rule)[0]:
            raise BadRow(problem)
        return vector


def vector_problems(vectors: Vectors, rule: VectorRule) -> list[str]:
    """Return for each vector (n, dim) the reason why it cannot be used, or "" if it can."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("nd,nd->n", vectors, vectors)  # infinite for components above 1e19
    found = [""] * len(vectors)
    for row in np.flatnonzero(~((squares <= MAX_NORM**2) & (squares > 0))).tolist():
        found[row] = _problem(vectors[row], rule)
    if rule.dtype == "float16" and not rule.nonzero:  # vectors that are scaled to norm 1 fit
        with np.errstate(over="ignore"):
            fits = np.isfinite(vectors.astype(np.float16)).all(axis=1)
        for row in np.flatnonzero(~fits).tolist():
            found[row] = found[row] or "the vector has a component that is too large for float16"
    return found


def _problem(vector: Vectors, rule: VectorRule) -> str:
    if not np.isfinite(vector).all():
        return "the vector has a component that is not finite in float32"
    if rule.nonzero and not vector.any():
        return "the vector is all zeros, which has no direction for cosine"
    if not rule.nonzero and too_long(vector[None])[0]:
        return f"the vector has a norm above {MAX_NORM:g}, whose scores float32 cannot hold"
    return ""


def _numbers(value: object, name: str) -> Vectors:
    kind = type(value).__name__
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:  # such as inner lists of different lengths
        raise BadRow(f"{name!r} is not a list of numbers: {error}") from error
    if array.ndim != 1 or (array.dtype.kind not in "iuf" and len(array)):
        raise BadRow(f"{name!r} is of type {kind}; a vector is a list of numbers", value)
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _as_array(vectors: object) -> NDArray[Any]:
    """Return an array, a tensor or lists as a numpy array; only lists are copied."""
    # numpy does not convert a tensor that requires a gradient unless it is detached.
    detach = getattr(vectors, "detach", None)
    try:
        return np.asarray(detach() if detach else vectors)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).rstrip(".")
        raise CorpusError(
            f"vectors: an object of type {type(vectors).__name__} cannot be read as an array: "
            f"{reason}. Pass a numpy array, or a float32 tensor on the CPU."
        ) from error
