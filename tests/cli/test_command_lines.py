"""Mutated command lines of every command: each ends by name, and changes nothing it was not given.

Left out: `demo` indexes 20 docstrings here and not the whole library, and recipes of training have
one step. Lines that wait for the other end of a named pipe, and trainings of more than a million
epochs, are ended and counted.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.lines import commands, mutated_line, run_lines, sound_line
from tests.cli.lines_child import RED_FLAGS
from tests.faults import FULL, keep_result

CODES = {0, 1, 2, 3, 130}
LINES, PER_BATCH, SHARDS = (50_000, 50, 2) if FULL else (300, 30, 1)
SEED = 18
WAITED = -14  # ended by SIGALRM
MEMORY = {"RLIMIT_AS": 4 << 30}  # so that no line can harm this machine


@pytest.mark.thorough
def test_every_command_has_a_sound_line(template: Path, fast_path: Path) -> None:
    """Else a new command would be mutated only up to its first complaint."""
    # A comparison of variants needs minutes and several data sets: tests/lab/variants.
    tree = [(name, command) for name, command in commands() if name != "analyze variants"]
    lines = [sound_line(name, command) for name, command in tree]
    batches = [{"lines": [{"arguments": line}]} for line in lines]
    done = run_lines(fast_path / "job", template, batches)
    bad = [(line, end["shown"]) for line, [end] in zip(lines, done, strict=True) if end["code"]]
    assert not bad, "\n".join(map(str, bad))


@pytest.mark.thorough
def test_mutated_lines_end_by_name(template: Path, fast_path: Path) -> None:
    draw, tree = random.Random(SEED), list(commands())
    lines = [mutated_line(draw, tree) for _ in range(LINES)]
    batches = [lines[at : at + PER_BATCH] for at in range(0, LINES, PER_BATCH)]
    jobs = [
        {"lines": [{"arguments": line, "limits": {"RLIMIT_AS": 4 << 30}} for line in batch]}
        for batch in batches
    ]
    examples = [sound_line(name, command) for name, command in tree] if FULL else []
    results = run_lines(fast_path / "job", template, jobs, examples, SHARDS)
    done = [line for batch in results for line in batch]
    bad = [
        f"{line}: {problem}: {result['shown'][-3000:]}"
        for line, result in zip(lines, done, strict=True)
        if (problem := _problem(line, result))
    ]
    assert not bad, f"{len(bad)} of {LINES}\n" + "\n\n".join(bad[:20])
    codes = Counter(line["code"] for line in done if line["code"] != WAITED)
    keep_result(
        "command_lines",
        {
            "lines": LINES,
            "commands": len(tree),
            "options": sum(len(command.params) for _, command in tree),
            "exit_codes": {str(code): n for code, n in sorted(codes.items())},
            "ended_as_they_waited_or_trained_on": LINES - codes.total(),
            "tracebacks": 0,
            "other_codes": 0,
            "files_outside_changed": 0,
        },
    )


def _problem(line: list[str], result: dict[str, Any]) -> str:
    """Say what is wrong with how a line ended, "" for nothing."""
    if result["harm"]:
        return str(result["harm"])
    if any(flag in result["shown"] for flag in RED_FLAGS):
        return "no error by name"
    may_wait = any("fifo" in word or word == "--watch" for word in line) or _epochs(line) > 1e6
    waited = result["code"] == WAITED and may_wait
    return "" if result["code"] in CODES or waited else f"exit code {result['code']}"


def _epochs(line: list[str]) -> float:
    """The epochs that a line asks for; 0: none, or no number."""
    try:
        return float(line[line.index("--epochs") + 1])
    except (ValueError, IndexError):
        return 0
