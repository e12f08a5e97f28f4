"""Write and read `.npy` files; a header is compared byte for byte, never parsed.

The caller knows the dtype and shape of each file from a manifest. Dtype and shape determine the
header. See "npy headers are compared, not parsed" in docs/decisions.md.

Source: NumPy documentation, "A simple file format for NumPy arrays" (NEP 1), version 1.0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sbert_search.runtime.disk import files
from sbert_search.runtime.disk.folders import Place


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
    """Return the mapped bytes of a file as an array, without copying them.

    Raises:
        AnotherArray: The header or the size does not match the dtype and shape.
    """
    expected = header(dtype, shape)
    if bytes(view[: len(expected)]) != expected:
        raise AnotherArray(f"an npy header for {np.dtype(dtype)} {shape}", "another header")
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if len(view) - len(expected) != n_bytes:
        raise AnotherArray(f"{n_bytes} bytes of data", f"{len(view) - len(expected)}")
    return np.frombuffer(view, np.dtype(dtype), offset=len(expected)).reshape(shape)
