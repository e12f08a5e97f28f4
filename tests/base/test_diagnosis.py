"""What `doctor` tells: facts of this machine, and advice for others."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sbert_search.base import machine as diagnosis
from sbert_search.base.cache import cache_folder
from sbert_search.base.machine import EXTRAS, advise, diagnose

GOOD: dict[str, Any] = {
    "usable": 4,
    "threads": 4,
    "switches": {},
    "extras": {"cpu": ()},
    "gpus": (),
    "torch": "2.13.0+cpu",
    "measured": True,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_this_machine_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = cache_folder("graphs")
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"12345")
    (folder / "removed").symlink_to("nowhere")  # as a file that goes after it was listed
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    found = diagnose()
    assert found.cpu
    assert 1 <= found.usable <= found.cores
    assert found.threads == 1
    assert 0 < (found.available_bytes or 1) <= found.memory_bytes
    assert found.libraries["torch"]
    assert found.verdicts == ()
    (cache,) = found.caches
    assert (cache.folder, cache.files, cache.size_bytes) == (str(folder), 1, 5)
    assert "was not measured with 1 thread yet" in found.advice[-1]


def test_a_thread_for_each_physical_core_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, count in (("usable_cores", 8), ("physical_cores", 4), ("torch_threads", 4)):
        monkeypatch.setattr(diagnosis, name, lambda count=count: count)
    found = diagnose()
    assert (found.usable, found.threads) == (8, 4)
    assert not [line for line in found.advice if "OMP_NUM_THREADS" in line]


def test_the_extras_are_those_of_the_package() -> None:
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert EXTRAS.keys() <= extras.keys()
    for name, modules in EXTRAS.items():
        own = [line for line in extras[name] if not line.startswith("sbert-search[")]
        assert len(modules) == len(own)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"threads": 1}, ["1 of 4 cores are used: unset OMP_NUM_THREADS"]),
        (
            {"usable": 2},
            ["4 threads share the time of 2 cores: export OMP_NUM_THREADS=2"],
        ),
        ({"switches": {"ONEDNN_MAX_CPU_ISA": "AVX2"}}, ["unset ONEDNN_MAX_CPU_ISA"]),
        ({"extras": {"cpu": ("onnxruntime",)}}, ["pip install -e '.[cpu]'"]),
        ({"extras": {"cpu": ("faiss",)}}, ["faiss of the extra cpu are missing"]),
        (
            {"gpus": ("NVIDIA A",)},
            ["(NVIDIA A), and torch 2.13.0+cpu cannot use it: pip install --force-reinstall torch"],
        ),
        ({"gpus": ("NVIDIA A",), "torch": "2.13.0+cu128"}, []),
        ({"measured": False}, ["sbert-search doctor --measure MODEL"]),
        ({"measured": False, "threads": 1, "usable": 1}, ["with 1 thread yet"]),
    ],
)
def test_advice_is_given_only_where_it_helps(
    changes: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    lines = advise(**{**GOOD, **changes}, cache=tmp_path / "absent" / "verdicts")
    assert len(lines) == len(expected)
    for line, part in zip(lines, expected, strict=True):
        assert part in line


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (line,) = advise(**GOOD, cache=tmp_path / "file" / "verdicts")
    assert "cannot be written" in line


def test_available_memory_is_read(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    assert diagnosis._available(path) is None
    path.write_text("MemTotal:  100 kB\nMemAvailable:   42 kB\n")
    assert diagnosis._available(path) == 42 * 1024
