"""How many cores a process may use, and how many threads torch starts on them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from sbert_search.base import processor
from sbert_search.base.processor import (
    limit_threads,
    physical_cores,
    thread_count,
    torch_threads,
    usable_cores,
    within_quota,
)


def test_two_cores_of_one_physical_core_get_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "_CORES", tmp_path)
    monkeypatch.setattr(processor, "cpu_quota", lambda: None)
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


@pytest.mark.parametrize(
    ("quota", "cores", "threads"),
    [(None, 4, None), (8.0, 4, None), (4.0, 4, None), (2.5, 3, "3"), (0.2, 1, "1")],
)
def test_a_limit_of_processor_time_lowers_cores_and_threads(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int, threads: str | None
) -> None:
    _machine_of_four_cores(monkeypatch, quota)
    monkeypatch.setattr(processor, "_own_threads", "")
    limit_threads()
    assert usable_cores() == within_quota(4) == cores
    assert physical_cores() == 4  # torch would start as many
    assert os.environ.get("OMP_NUM_THREADS") == threads
    assert torch_threads() == thread_count() == cores


def test_workers_share_the_limit_and_the_number_of_the_user_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _machine_of_four_cores(monkeypatch, 2.5)
    monkeypatch.setattr(processor, "_own_threads", "")
    limit_threads()
    limit_threads(2)  # as `serve --workers 2`, after the start of the command
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    limit_threads()
    limit_threads(2)
    assert os.environ["OMP_NUM_THREADS"] == "8"


def _machine_of_four_cores(monkeypatch: pytest.MonkeyPatch, quota: float | None) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(processor, "_CORES", Path("/absent"))
    monkeypatch.setattr(processor, "cpu_quota", lambda: quota)
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # so that it is restored
    monkeypatch.delenv("OMP_NUM_THREADS")
