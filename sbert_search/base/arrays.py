"""Types of arrays and operations on them; `.npy` files, whose header is never parsed.

The caller knows the dtype and shape of each file from a manifest. See "npy headers are compared,
not parsed" in docs/decisions.md. The format is NumPy's (NEP 1), version 1.0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sbert_search.base import files
from sbert_search.base.folders import Place

Ints = NDArray[np.int64]

MAX_NORM = 1e18
"""Largest norm of a vector that is not scaled to norm 1.

Scores of longer vectors could be larger than the largest float32.
"""


def distinct(values: Ints) -> Ints:
    """Return the distinct values, ascending, int64 (m,)."""
    # Not `numpy.unique`: its first call imports masked arrays, which delays a search.
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def too_long(vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether each vector (n, dim) has a norm above `MAX_NORM` or contains NaN; bool (n,)."""
    with np.errstate(over="ignore"):
        squares = np.einsum("nd,nd->n", vectors, vectors)
    return np.asarray(~(squares <= MAX_NORM**2))


class AnotherArray(ValueError):  # noqa: N818 (each subpackage turns it into an error of its own)
    """A file does not contain an array of the expected dtype and shape."""

    def __init__(self, expected: str, got: str) -> None:
        self.expected, self.got = expected, got
        super().__init__(f"expected {expected}, got {got}")


def header(dtype: DTypeLike, shape: tuple[int, ...]) -> bytes:
    """Return the header of a little-endian array in C order, padded to a multiple of 64 bytes."""
    descr = np.dtype(dtype).newbyteorder("<").str
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}"
    start = b"\x93NUMPY\x01\x00"
    padding = -(len(start) + 2 + len(text) + 1) % 64
    body = text.encode("ascii") + b" " * padding + b"\n"
    return start + len(body).to_bytes(2, "little") + body


def write(place: Place, array: NDArray[np.generic]) -> files.NewFile:
    """Write one array durably."""
    with files.NewFile(place) as file:
        file.write(header(array.dtype, array.shape))
        file.write(np.ascontiguousarray(array))
    return file


def read(view: memoryview, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the mapped bytes of a file as an array, without a copy, or raise `AnotherArray`."""
    expected = header(dtype, shape)
    if bytes(view[: len(expected)]) != expected:
        raise AnotherArray(f"an npy header for {np.dtype(dtype)} {shape}", "another header")
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if len(view) - len(expected) != n_bytes:
        raise AnotherArray(f"{n_bytes} bytes of data", f"{len(view) - len(expected)}")
    return np.frombuffer(view, np.dtype(dtype), offset=len(expected)).reshape(shape)
