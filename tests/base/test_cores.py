"""How many cores a process may use, and how many threads torch starts on them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from sbert_search.base import processor as cores
from sbert_search.base.processor import physical_cores, thread_count, torch_threads, usable_cores


def test_two_cores_of_one_physical_core_get_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "_CORES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 4, 6}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert physical_cores() == usable_cores() == 4  # the system does not tell
    for number in (0, 1, 2, 4, 5, 6):
        (tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
        siblings = f"{number % 4},{number % 4 + 4}\n"
        (tmp_path / f"cpu{number}" / "topology" / "thread_siblings_list").write_text(siblings)
    assert usable_cores() == 4
    assert physical_cores() == torch_threads() == 3  # 0 with 4, 1 and 6
    assert thread_count() == 4
    for machine, most in (("x86_64", 3), ("aarch64", 8)):  # without MKL, a larger number is taken
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        for requested, expected in (("2", 2), ("8", most), ("0", 3), ("many", 3)):
            monkeypatch.setenv("OMP_NUM_THREADS", requested)
            assert torch_threads() == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "5, 2")  # of two levels of nesting
    assert thread_count() == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert thread_count() == 8
