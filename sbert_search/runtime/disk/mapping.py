"""Map files into memory without keeping a descriptor open.

Python's `mmap` keeps one descriptor per mapped file, and an index of many segments can have more
files than a process may open (256 on macOS by default). See "A mapped file holds no descriptor" in
docs/decisions.md.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache

import numpy as np

_FAILED = ctypes.c_void_p(-1).value


def mapped(fd: int, n_bytes: int) -> memoryview:
    """Map an open file into memory for reading; the descriptor can be closed after that.

    Args:
        fd: Descriptor of a regular file.
        n_bytes: Number of bytes to map from the start of the file, at least 1.

    Raises:
        OSError: The file cannot be mapped, for example because the address space is full.
    """
    return np.asarray(_Mapping(fd, n_bytes)).data


class _Mapping:
    """Owner of a mapping; NumPy arrays and views keep it alive through the array interface."""

    def __init__(self, fd: int, n_bytes: int) -> None:
        libc = _libc()
        address = libc.mmap(None, n_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._range, self._unmap = (address, n_bytes), libc.munmap
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (n_bytes,),
            "data": (address, True),  # read only
        }

    def __del__(self) -> None:
        if hasattr(self, "_range"):
            self._unmap(*self._range)


@cache
def _libc() -> ctypes.CDLL:
    """Load the C library, whose ``mmap`` keeps no descriptor.

    From Python 3.13 on, ``mmap.mmap`` of Python with ``trackfd=False`` keeps no descriptor either.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    ints = (ctypes.c_int,) * 3  # protection, flags, descriptor
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *ints, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
