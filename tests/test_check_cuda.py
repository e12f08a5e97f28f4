"""The prepared check on a CUDA machine: its steps, its summary, and the wheels that it carries."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import stat
import struct
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sbert_search.models.loading.resolve import resolve_model
from tests.cli.process import ROOT, environment

BENCHMARKS = ROOT / "benchmarks"
SCRIPT = BENCHMARKS / "check_cuda.sh"
MOST_S = 8 * 60
# Notes the command of a step, and fails in one of them.
STUB = """
import json, sys
with open({noted!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
print("answer of", sys.argv[2:4])
sys.exit(3 if "benchmarks/bench_pretraining.py" in sys.argv else 0)
"""


def run(*arguments: object, runner: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *map(str, arguments)],
        env={**environment(), "PYTHON": sys.executable, "CHECK_RUNNER": runner},
        capture_output=True,
        text=True,
    )


def steps_of(folder: Path, *flags: str) -> tuple[dict[str, Any], list[list[str]], int]:
    """Run the check with a stub; return the steps of its summary, their commands, its exit code."""
    (folder / "pack").mkdir()
    (folder / "pack" / "some.whl").touch()
    stub, noted, out = folder / "stub.py", folder / "noted", folder / "new" / "out"
    stub.write_text(STUB.format(noted=str(noted)))
    done = run("run", *flags, folder / "pack", out, runner=f"{sys.executable} {stub}")
    steps = json.loads((out / "summary.json").read_text())["steps"]
    return steps, [json.loads(line) for line in noted.read_text().splitlines()], done.returncode


def test_a_failed_step_is_recorded_and_the_next_ones_run(tmp_path: Path) -> None:
    steps, commands, code = steps_of(tmp_path)
    assert {name: step["rc"] for name, step in steps.items()} == {
        "install": 0,
        "machine": 0,
        "tests": 0,
        "embedding": 0,
        "pretraining": 3,
        "faiss": 0,
    }
    assert code == 1
    assert len(commands) == len(steps)
    assert "bench_embedding_cuda.py" in steps["embedding"]["output"]
    assert sum(step["limit_s"] for step in steps.values()) <= MOST_S
    options = [command for command in commands if "--device" in command]
    assert [command[command.index("--device") + 1] for command in options] == ["cuda", "cuda"]


@pytest.mark.thorough
@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_the_steps_name_files_and_options_that_exist(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    _, commands, _ = steps_of(tmp_path, *flags)
    scripts = {command[1]: command[2:] for command in commands if command[1].endswith(".py")}
    assert len(scripts) == 3
    for script, options in scripts.items():
        done = subprocess.run(
            [sys.executable, ROOT / script, "--help"],
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        named = {option for option in options if option.startswith("--")}
        assert named <= set(re.findall(r"--[a-z-]+", done.stdout))
    [tests] = [command for command in commands if command[1:3] == ["-m", "pytest"]]
    files = [name for name in tests if name.endswith(".py")]
    assert files
    assert all("@pytest.mark.gpu" in (ROOT / name).read_text(encoding="utf-8") for name in files)


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_a_dry_run_on_the_cpu_passes_all_steps(tmp_path: Path) -> None:
    vocabulary = tmp_path / "pack" / "vocabulary"
    vocabulary.mkdir(parents=True)
    model = resolve_model(None).path
    for pattern in importlib.import_module("cuda_wheels").TOKENIZER:
        for path in model.glob(pattern):
            shutil.copy(path, vocabulary)
    done = run("run", "--dry-run", tmp_path / "pack", tmp_path / "out")
    steps = json.loads((tmp_path / "out" / "summary.json").read_text())["steps"]
    assert {name: step["rc"] for name, step in steps.items()} == {
        "tests": 0,
        "embedding": 0,
        "pretraining": 0,
        "faiss": 0,
    }, steps
    assert done.returncode == 0
    for name in ("embedding", "pretraining"):
        figures = json.loads((tmp_path / "out" / f"{name}.json").read_text())["figures"]
        assert all(figure["value"] > 0 for figure in figures.values())


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_every_dependency_is_carried_or_present() -> None:
    wheels = importlib.import_module("cuda_wheels")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=\[;]", line)[0].lower() for line in declared["dependencies"]}
    assert names <= {*wheels.CARRIED, *wheels.PRESENT, *wheels.LEFT_OUT}
    assert not {*wheels.CARRIED} & {*wheels.PRESENT}


@pytest.mark.thorough
def test_a_wheel_is_cut_and_its_record_is_right(tmp_path: Path) -> None:
    wheels = importlib.import_module("cuda_wheels")
    old = tmp_path / "some-1.0-py3-none-any.whl"
    info = "some-1.0.dist-info"
    with zipfile.ZipFile(old, "w") as archive:
        archive.writestr("some/__init__.py", "value = 1\n")
        archive.writestr("some/data.bin", bytes(100))
        archive.writestr("some/tests/test_it.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: some\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "some/tests/test_it.py,,\n")
    new = tmp_path / "new"
    new.mkdir()
    changed = {"some/data.bin": b"abc", "some.libs/new.so": b"so"}
    wheels.rewrite(old, new, ("some/tests/*",), changed)
    install = ["-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target"]
    command = [sys.executable, *install, tmp_path / "target", new / old.name]
    subprocess.run(list(map(str, command)), check=True)
    target = tmp_path / "target"
    found = {path.relative_to(target): path for path in target.rglob("*")}
    assert found[Path("some/data.bin")].read_bytes() == b"abc"
    assert Path("some.libs/new.so") in found
    assert Path("some/tests/test_it.py") not in found
    record = found[Path(info) / "RECORD"].read_text()
    assert "some.libs/new.so,sha256=" in record
    assert "test_it" not in record


def library_of(*entries: tuple[int, int, bytes]) -> bytes:
    """Make an ELF file with one section of device code, of entries (kind, architecture, code)."""
    content = b"".join(
        struct.pack("<HHIQ", kind, 1, 64, len(code)) + bytes(12) + struct.pack("<I", arch)
        + bytes(32) + code
        for kind, arch, code in entries
    )  # fmt: skip
    fat = bytes(8) + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content
    names = b"\0.nv_fatbin\0.shstrtab\0"
    at = 64 + len(fat) + len(names)
    sections = [(0, 0, 0, 0, 0, 0), (1, 1, 0, 0, 64, len(fat))]
    sections.append((12, 3, 0, 0, 64 + len(fat), len(names)))
    table = b"".join(struct.pack("<IIQQQQ", *each) + bytes(24) for each in sections)
    header = bytearray(64)
    struct.pack_into("<Q", header, 0x28, at)
    struct.pack_into("<HHH", header, 0x3A, 64, len(sections), 2)
    return bytes(header) + fat + names + table


def test_the_device_code_of_one_architecture_stays() -> None:
    wheels = importlib.import_module("cuda_wheels")
    given = library_of((2, 80, b"old card"), (2, 90, b"this card"), (1, 90, b"assembler"))
    kept = library_of((2, 80, bytes(8)), (2, 90, b"this card"), (1, 90, bytes(9)))
    assert wheels.cut_device_code(given, 90) == kept
    with pytest.raises(SystemExit, match=r"no code for architecture 75, only \[80, 90\]"):
        wheels.cut_device_code(given, 75)


def test_the_script_can_be_run_and_explains_itself() -> None:
    assert SCRIPT.stat().st_mode & stat.S_IXUSR
    done = run()
    assert done.returncode == 2
    assert "check_cuda.sh pack DIR" in done.stderr
