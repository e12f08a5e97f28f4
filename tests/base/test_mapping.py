"""Mapped files hold no descriptor, cannot be written, and go when nobody looks at them."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sbert_search.base import files
from sbert_search.base.files import map_descriptor
from tests.base.limits import open_descriptors


def is_mapped(path: Path) -> bool:
    """Whether this process has a file mapped, where the system tells."""
    return str(path) in Path("/proc/self/maps").read_text()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    return path


def test_a_mapped_file_holds_no_descriptor(path: Path) -> None:
    before = open_descriptors()
    views = [files.map_file(path) for _ in range(20)]
    assert open_descriptors() == before
    assert {bytes(view) for view in views} == {b"0123456789"}


def test_a_mapped_file_cannot_be_written(path: Path) -> None:
    view = files.map_file(path)
    assert view.readonly
    assert (view.format, view.itemsize, len(view)) == ("B", 1, 10)
    assert not np.frombuffer(view, np.uint8).flags.writeable
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1


@pytest.mark.thorough
def test_a_mapping_lasts_as_long_as_what_was_made_of_it(path: Path) -> None:
    view = files.map_file(path)
    array, buffer = np.frombuffer(view, np.uint8)[3:], pa.py_buffer(view)
    del view, array
    gc.collect()
    assert sys.platform != "linux" or is_mapped(path)
    assert buffer.to_pybytes() == b"0123456789"
    del buffer
    gc.collect()
    assert sys.platform != "linux" or not is_mapped(path)


def test_what_cannot_be_mapped_is_an_os_error(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        with pytest.raises(PermissionError):
            map_descriptor(fd, 10)
    finally:
        os.close(fd)
