"""The `.npy` files of an index, whose damage is raised as `CorruptIndex`."""

from __future__ import annotations

from typing import Any

from numpy.typing import DTypeLike, NDArray

from sbert_search.base import arrays as npy
from sbert_search.base.arrays import header, write
from sbert_search.errors import CorruptIndex

__all__ = ["header", "read", "write"]


def read(view: memoryview, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return mapped bytes as an array, without copying them.

    Raises:
        CorruptIndex: The header or the size does not fit this type and shape.
    """
    try:
        return npy.read(view, dtype, shape)
    except npy.AnotherArray as error:
        raise CorruptIndex(name, error.expected, error.got) from error
