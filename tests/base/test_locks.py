"""Locks: held by one process, free when it dies, on the file that has the name now."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sbert_search.base import locks
from sbert_search.base.folders import Folder


def test_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    lock = tmp_path / "LOCK"
    code = (
        "import sys, time; from pathlib import Path; from sbert_search.base import locks\n"
        f"with locks.exclusive_lock(Path({str(lock)!r})):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(locks.LockHeld) as held, locks.exclusive_lock(lock):
        pass
    assert held.value.holder.startswith(f"process {child.pid} since 20")
    child.kill()
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + 1
    while True:
        try:
            with locks.exclusive_lock(lock):
                break
        except locks.LockHeld:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("note", ["", "[]", "{}", "no JSON", '{"pid": 1}'])
def test_a_lock_without_a_note_is_held_by_another_process(tmp_path: Path, note: str) -> None:
    lock = tmp_path / "LOCK"
    with locks.exclusive_lock(lock):
        lock.write_text(note)
        with pytest.raises(locks.LockHeld) as held, locks.exclusive_lock(lock):
            pass
    assert str(held.value) == f"{lock} is held by another process."


def test_a_fork_of_a_killed_holder_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "LOCK"
    code = (
        "import os, time; from pathlib import Path; from sbert_search.base import locks\n"
        f"with locks.exclusive_lock(Path({str(lock)!r})) as lock:\n"
        "    if (child := os.fork()) == 0:\n"
        "        print(os.getpid(), lock.is_in_place(), flush=True); time.sleep(60)\n"
        "    time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child, has_lock = holder.stdout.readline().split()
    assert has_lock == "False"
    with pytest.raises(locks.LockHeld), locks.exclusive_lock(lock):
        pass
    holder.kill()
    holder.wait()
    try:
        os.kill(int(child), 0)  # it lives
        with locks.exclusive_lock(lock, wait_s=5):
            pass
    finally:
        os.kill(int(child), signal.SIGKILL)
        holder.stdout.close()


def test_a_lock_whose_file_is_replaced_is_no_longer_in_place(tmp_path: Path) -> None:
    entry = Folder.open(tmp_path) / "LOCK"
    with locks.exclusive_lock(entry) as lock:
        assert lock.is_in_place()
        (tmp_path / "LOCK").rename(tmp_path / "elsewhere")
        assert not lock.is_in_place()
        with locks.exclusive_lock(entry) as other:
            assert other.is_in_place()
        assert not lock.is_in_place()


def test_who_waits_for_a_lock_that_is_replaced_gets_the_new_one(tmp_path: Path) -> None:
    place = tmp_path / "LOCK"
    got: list[int] = []

    def wait() -> None:
        with locks.exclusive_lock(place, wait_s=30):
            got.append(place.stat().st_ino)

    with locks.exclusive_lock(place):
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(3 * locks.POLL_S)
        place.unlink()
        place.write_bytes(b"")
        new = place.stat().st_ino
        waiting.join(timeout=30)
        assert got == [new]


def test_another_name_of_somebodys_file_is_locked_but_not_written(tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(b"mine")
    os.link(tmp_path / "note", tmp_path / "LOCK")
    with locks.exclusive_lock(tmp_path / "LOCK"):
        assert (tmp_path / "note").read_bytes() == b"mine"
    assert (tmp_path / "note").read_bytes() == b"mine"


def test_a_pipe_is_not_locked(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "LOCK")
    with (
        pytest.raises(OSError, match=f"Not a regular file: '{tmp_path}/LOCK'"),
        locks.exclusive_lock(Folder.open(tmp_path) / "LOCK"),
    ):
        pass


def test_locks_that_exclude_nobody_are_refused_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locks.exclusive_lock(tmp_path / "LOCK"):
        pass
    monkeypatch.setattr(fcntl, "flock", lambda fd, operation: None)
    with (
        pytest.raises(OSError, match="this file system ignores locks"),
        locks.exclusive_lock(tmp_path / "LOCK"),
    ):
        pass


def test_probes_of_a_killed_try_are_removed(tmp_path: Path) -> None:
    for name in locks.PROBES:
        (tmp_path / name).write_bytes(b"left")
    locks.check_renames(Folder.open(tmp_path))
    assert list(tmp_path.iterdir()) == []
