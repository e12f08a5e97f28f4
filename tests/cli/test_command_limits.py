"""Every command with closed, narrow and full streams, and with too little of everything else."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.lines import commands, run_lines, sound_line
from tests.cli.lines_child import RED_FLAGS
from tests.faults import FULL, keep_result

CODES = {0, 1, 2, 3, 130}
SLOW = ("analyze", "demo", "eval", "pretrain", "train", "tokenizer", "fill-mask")  # torch or scipy
TORCH = ("analyze", "eval", "fill-mask", "pretrain", "train")
PAGE = 4096

LIMITS: dict[str, dict[str, Any]] = {
    **{f"closed {fds}": {"closed": fds} for fds in ("0", "1", "2", "01", "02", "12", "012")},
    **{name: {"encoding": name} for name in ("ascii", "latin-1")},
    "full stdout": {"stdout": "/dev/full"},
    **{f"{n} files": {"limits": {"RLIMIT_NOFILE": n}} for n in (20, 24, 32, 64)},
    **{f"{n} MiB": {"limits": {"RLIMIT_AS": n << 20}} for n in (0, 1, 4, 16, 64, 256)},
    **{f"files of {n}": {"limits": {"RLIMIT_FSIZE": n}} for n in (0, 1, 100, PAGE, 16 * PAGE)},
    **{f"{n} pages of disk": {"disk": f"size={{pages}}+{n}"} for n in (0, 1, 3, 8, 20, 100)},
    **{f"{n} inodes": {"disk": f"nr_inodes={{inodes}}+{n}"} for n in (0, 1, 3, 8, 20)},
}
CHECK = {"arguments": ["index", "check", "index"]}


@pytest.mark.thorough
def test_every_command_ends_by_name_whatever_is_missing(template: Path, fast_path: Path) -> None:
    cases = list(_cases())
    batches = [_batch(template, *case) for case in cases]
    every = [sound_line(name, command) for name, command in commands()]
    results = run_lines(fast_path / "job", template, batches, every if FULL else ())
    bad, codes, skipped, crashes = [], Counter[int](), 0, 0
    for (name, limit), lines in zip(cases, results, strict=True):
        if not lines:
            skipped += 1
            continue
        line, check = lines
        if crashed_in_a_library(name, limit, line):
            crashes += 1
        else:
            codes[line["code"]] += 1
            if problem := _problem(line, LIMITS[limit]):
                bad.append(f"{name}, {limit}: {problem}: {line['shown']!r}")
        if check["code"] != 0 or "index is sound." not in check["shown"]:
            bad.append(f"{name}, {limit}: the index is damaged: {check['shown']}")
    assert not bad, "\n\n".join(bad)
    keep_result(
        "command_limits",
        {
            "commands": len(every),
            "limits": len(LIMITS),
            "lines": sum(codes.values()),
            "disks_that_could_not_be_mounted": skipped,
            "crashes_in_libraries_without_memory": crashes,
            "exit_codes": {str(code): n for code, n in sorted(codes.items())},
            "tracebacks": 0,
            "other_codes": 0,
            "damaged_indexes": 0,
        },
    )


def crashed_in_a_library(name: str, limit: str, line: dict[str, Any]) -> bool:
    """Whether native code of torch or Arrow failed to notice that it got no memory; it counts."""
    in_torch = name.startswith(TORCH) and line["code"] == -signal.SIGSEGV
    in_arrow = "arrow::stl::BadAlloc" in line["shown"] and line["code"] == -signal.SIGABRT
    return limit.endswith("MiB") and (in_torch or in_arrow)


def _problem(line: dict[str, Any], limit: dict[str, Any]) -> str:
    """Say what is wrong with how a line ended, "" for nothing."""
    if line["code"] not in CODES:
        return f"exit code {line['code']}"
    if line["harm"]:
        return str(line["harm"])
    if any(flag in line["shown"] for flag in RED_FLAGS):
        return "no error by name"
    silent = line["code"] != 0 and not line["shown"].strip()
    return "silent" if silent and "2" not in limit.get("closed", "") else ""


def _cases() -> Iterator[tuple[str, str]]:
    """Pair commands with limits: all of them, or each limit with some quick command."""
    names = [name for name, _ in commands()]
    if FULL:
        yield from ((name, limit) for name in names for limit in LIMITS)
        return
    quick = [name for name in names if not name.startswith(SLOW)]
    for number, limit in enumerate(LIMITS):
        yield quick[number % len(quick)], limit


def _batch(template: Path, name: str, limit: str) -> dict[str, Any]:
    line = {"arguments": sound_line(name, dict(commands())[name]), **LIMITS[limit]}
    disk = line.pop("disk", "")
    if disk:
        disk = disk.replace("{pages}", str(_used(template))).replace(
            "{inodes}", str(_inodes(template))
        )
        option, _, number = disk.partition("=")
        total = sum(map(int, number.split("+")))
        disk = f"{option}={total * (PAGE if option == 'size' else 1)}"
    return {"lines": [line, CHECK], "disk": disk}


def _used(template: Path) -> int:
    return sum(-(-path.lstat().st_size // PAGE) for path in template.rglob("*") if path.is_file())


def _inodes(template: Path) -> int:
    """Those of the copy: its own folder, the pipe, the link and the folder for temporary files."""
    return sum(1 for _ in template.rglob("*")) + 4
