"""Limits of control groups: of version 2 and 1, of a container and of a service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sbert_search.base import processor
from sbert_search.base.memory import left_in_container
from sbert_search.base.processor import cpu_quota

Group = Callable[..., None]


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    """Write files of a group; ``own`` is the line of this process in /proc/self/cgroup."""
    monkeypatch.setattr(processor, "_GROUPS", tmp_path / "root")
    monkeypatch.setattr(processor, "_OWN_GROUPS", tmp_path / "own")

    def write(folder: str, own: str = "", **files: str) -> None:
        (tmp_path / "root" / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / "root" / folder / name.replace("__", ".")).write_text(text)
        if own:
            (tmp_path / "own").write_text(own)

    return write


def test_without_groups_there_is_no_limit(group: Group) -> None:
    assert cpu_quota() is left_in_container() is None  # not Linux
    group("", "0::/")
    assert cpu_quota() is left_in_container() is None


@pytest.mark.parametrize(
    ("text", "expected"), [("max 100000\n", None), ("150000 100000\n", 1.5), ("20000 40000\n", 0.5)]
)
def test_the_processor_time_of_a_container(group: Group, text: str, expected: float | None) -> None:
    group("", "0::/\n", cpu__max=text)
    assert cpu_quota() == expected


def test_the_smallest_limit_of_a_service_and_the_groups_above_it_holds(group: Group) -> None:
    group("system.slice", cpu__max="300000 100000\n")
    group("system.slice/my.service", "0::/system.slice/my.service\n", cpu__max="max 100000\n")
    assert cpu_quota() == 3.0
    group("system.slice/my.service", cpu__max="250000 100000\n")
    assert cpu_quota() == 2.5


@pytest.mark.parametrize(("quota", "expected"), [("-1\n", None), ("150000\n", 1.5)])
def test_version_1_has_a_tree_for_each_controller(
    group: Group, quota: str, expected: float | None
) -> None:
    own = "9:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n1:name=systemd:/x\n"  # of the host
    group("cpu", own, cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000\n")
    assert cpu_quota() == expected
    assert left_in_container() is None


def test_memory_that_the_kernel_can_drop_is_left(group: Group) -> None:
    stat = "anon 600\nfile 300\ninactive_file 200\n"
    group("", "0::/\n", memory__max="max\n", memory__current="900\n", memory__stat=stat)
    assert left_in_container() is None
    group("", memory__max="1000\n")
    assert left_in_container() == 300  # 1000 - 900 + 200
