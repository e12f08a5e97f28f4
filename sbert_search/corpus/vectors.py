"""Vectors that a user already has: an array with one vector for each row of a source, or a column.

A vector that cannot be used rejects its own row; all other rows keep their own vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.corpus.formats.rows import BadRow
from sbert_search.errors import CorpusError
from sbert_search.runtime.arrays import MAX_NORM, too_long

BLOCK_ROWS = 1024  # vectors that are converted and checked together
MAX_DIM = 65_536

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
"""Vectors, one for each row of a source: floats (n_rows, dim), of numpy or of torch on the CPU, in
memory or mapped, or in lists; the path of an ``.npy`` file; or the name of a column of the
source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorRule:
    """What the vectors of an index must be.

    Attributes:
        dim: Number of dimensions; None: that of the first vector.
        nonzero: Whether a vector of zeros is refused, since it has no direction.
        dtype: Type in which the index stores vectors. If ``nonzero`` is False, vectors are not
            scaled to norm 1, and no component may overflow this type.
    """

    dim: int | None = None
    nonzero: bool = True
    dtype: str = "float32"


class RowVectors:
    """An array of vectors, read in blocks, so that a mapped file is never in memory as a whole.

    Args:
        array: Floats (n_rows, dim), such as a mapped ``.npy`` file.
        shown: Name of the array in messages.

    Raises:
        CorpusError: The array has another shape or type.
    """

    def __init__(self, array: NDArray[Any], shown: str = "vectors") -> None:
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            raise CorpusError(
                f"{shown}: the array is of type {array.dtype}; convert it to float32."
            )
        if array.ndim != 2 or not 1 <= array.shape[1] <= MAX_DIM:
            raise CorpusError(
                f"{shown}: the array has shape {array.shape}; it must be (rows, dimensions), with "
                f"1 to {MAX_DIM:,} dimensions."
            )
        self.array, self.shown = array, shown

    @classmethod
    def open(cls, vectors: VectorsLike) -> RowVectors:
        """Take an array or a tensor, or map an ``.npy`` file.

        Raises:
            CorpusError: The file cannot be read, or is no array of vectors.
        """
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
        """Read some vectors as float32 in C order; a float64 that is too large becomes infinite."""
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(self.array[start:stop], dtype=np.float32)

    def sha256(self) -> str:
        """Hash the vectors as float32, in bounded memory."""
        digest = hashlib.sha256()
        for start in range(0, len(self), BLOCK_ROWS):
            digest.update(self.block(start, start + BLOCK_ROWS).data)
        return digest.hexdigest()

    def require(self, n_rows: int, rule: VectorRule) -> None:
        """Refuse an array of another length or dimension than needed.

        Raises:
            CorpusError: There is not one vector for each row, or the dimension differs.
        """
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
    """Checks the vector of each row, from an array or from the value of a column.

    Args:
        rule: What the vectors must be.
        given: The array; None: vectors are values of a column.
    """

    def __init__(self, rule: VectorRule, given: RowVectors | None = None) -> None:
        self.rule, self.given = rule, given
        self.dim = given.dim if given else rule.dim
        self._start, self._block = 0, np.empty((0, 0), np.float32)
        self._problems: list[str] = []

    def of_row(self, number: int) -> Vectors:
        """Return the vector (dim,) of a row of the array, given the number of the row from 0.

        Raises:
            BadRow: The vector cannot be used.
            CorpusError: There are fewer vectors than rows.
        """
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
            self._problems = problems(self._block, self.rule)
        if problem := self._problems[at]:
            raise BadRow(problem)
        return cast(Vectors, self._block[at])

    def of_value(self, value: object, name: str) -> Vectors:
        """Return the value of a column as a vector (dim,).

        Raises:
            BadRow: The value is missing, is no list of numbers, or cannot be used as a vector.
        """
        if value is None:
            raise BadRow(f"no {name!r}, the vector of the row")
        vector = _numbers(value, name)
        if self.dim is not None and len(vector) != self.dim:
            raise BadRow(f"{name!r} has {len(vector):,} dimensions, not {self.dim:,}")
        if not 1 <= len(vector) <= MAX_DIM:
            raise BadRow(f"{name!r} has {len(vector):,} dimensions; 1 to {MAX_DIM:,} are possible")
        if problem := problems(vector[None], self.rule)[0]:
            raise BadRow(problem)
        return vector


def problems(vectors: Vectors, rule: VectorRule) -> list[str]:
    """Return why each vector (n, dim) cannot be used; "" for those that can."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("nd,nd->n", vectors, vectors)  # overflows for components above 1e19
    found = [""] * len(vectors)
    for row in np.flatnonzero(~((squares <= MAX_NORM**2) & (squares > 0))).tolist():
        found[row] = _problem(vectors[row], rule)
    if rule.dtype == "float16" and not rule.nonzero:  # else vectors are scaled to norm 1
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
    except (ValueError, TypeError) as error:  # lists of different lengths
        raise BadRow(f"{name!r} is not a list of numbers: {error}") from error
    if array.ndim != 1 or (array.dtype.kind not in "iuf" and len(array)):
        raise BadRow(f"{name!r} is of type {kind}; a vector is a list of numbers", value)
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _as_array(vectors: object) -> NDArray[Any]:
    """Return an array or a tensor as an array, without a copy.

    Raises:
        CorpusError: It is neither.
    """
    detach = getattr(vectors, "detach", None)  # a tensor that requires a gradient
    try:
        return np.asarray(detach() if detach else vectors)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CorpusError(
            f"vectors: an object of type {type(vectors).__name__} cannot be read as an array: "
            f"{error} Pass a numpy array, or a float32 tensor on the CPU."
        ) from error
