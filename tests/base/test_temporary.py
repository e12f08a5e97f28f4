from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref

import pytest

from sbert_search.base.files import TemporaryFolder


class Owner:
    """Keeps a folder."""


@pytest.mark.thorough
def test_a_folder_is_removed_with_its_owner() -> None:
    scratch, owner = TemporaryFolder(), Owner()
    path = scratch.path
    (path / "below").mkdir()
    (path / "below" / "file").write_text("x")
    weakref.finalize(owner, scratch.remove)
    del scratch
    gc.collect()
    assert path.is_dir()
    del owner
    gc.collect()
    assert not path.exists()


def test_a_folder_is_removed_at_the_end_of_the_process() -> None:
    line = "from sbert_search.base.files import TemporaryFolder as T; t = T()"
    done = subprocess.run(
        [sys.executable, "-c", f"{line}; print(t.path, t.path.is_dir())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    path, existed = done.stdout.split()
    assert existed == "True"
    assert not os.path.exists(path)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_end_of_a_forked_process_leaves_the_folder() -> None:
    scratch = TemporaryFolder()
    child = os.fork()
    if child == 0:
        try:
            scratch.remove()  # what the end of the owner and of the process call
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert scratch.path.is_dir()
    scratch.remove()
    assert not scratch.path.exists()
