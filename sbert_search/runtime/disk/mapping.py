"""Files in memory that hold no descriptor open.

Python's `mmap` keeps a descriptor for each file that it maps, and an index of many segments has
more files than a process may have open, which is 256 on macOS unless told otherwise.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache

import numpy as np

_FAILED = ctypes.c_void_p(-1).value


def mapped(fd: int, n_bytes: int) -> memoryview:
    """Map an open file for reading; the descriptor can be closed after that.

    Args:
        fd: Of a regular file.
        n_bytes: How much of it, at least 1.

    Raises:
        OSError: The file cannot be mapped, such as for want of address space.
    """
    return np.asarray(_Mapping(fd, n_bytes)).data


class _Mapping:
    """Mapped bytes that stay for as long as any array or view of them; NumPy holds on to this."""

    def __init__(self, fd: int, n_bytes: int) -> None:
        libc = _libc()
        address = libc.mmap(None, n_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._where, self._unmap = (address, n_bytes), libc.munmap
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (n_bytes,),
            "data": (address, True),  # read only
        }

    def __del__(self) -> None:
        if hasattr(self, "_where"):
            self._unmap(*self._where)


@cache
def _libc() -> ctypes.CDLL:
    """Load the C library; `mmap.mmap` itself can do without a descriptor from Python 3.13 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    ints = (ctypes.c_int,) * 3  # protection, flags, descriptor
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *ints, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
