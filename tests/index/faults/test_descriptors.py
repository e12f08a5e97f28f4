"""Few open files: an index of any size is made, searched and changed by every command."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.process import environment
from tests.faults import FULL, keep_result

ROWS, LIMIT = (1_000_000, 128) if FULL else (14_000, 64)
TIMEOUT_S = 3_600 if FULL else 120

# Runs commands one after the other in one process, each line of stdin one, and times each.
LIMITED = f"""
import json, resource, sys, time
from sbert_search.cli.main import cli
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
for line in sys.stdin:
    arguments, started = json.loads(line), time.monotonic()
    cli(arguments, standalone_mode=False)
    seconds = round(time.monotonic() - started, 1)
    print(json.dumps({{"ran": arguments, "seconds": seconds}}), flush=True)
"""


def write_rows(path: Path, start: int, stop: int) -> Path:
    words = [f"w{i}" for i in range(20_000)]
    draw = random.Random(start)
    with path.open("w") as file:
        for number in range(start, stop):
            row = {"_id": f"d{number}", "text": " ".join(draw.choices(words, k=6))}
            file.write(json.dumps(row | {"y": number % 50}) + "\n")
    return path


@pytest.mark.thorough
def test_every_command_works_with_few_open_files(tmp_path: Path) -> None:
    index, copy = tmp_path / "i", tmp_path / "copy"
    rows = write_rows(tmp_path / "rows.jsonl", 0, ROWS)
    more = write_rows(tmp_path / "more.jsonl", ROWS - 500, ROWS + 500)
    commands: dict[str, list[object]] = {
        "build": ["index", "build", rows, "--out", index, "--model", "hashing"],
        "info": ["index", "info", index, "--json"],
        "search": ["search", index, "w1 w2 w3", "-k", 5, "--json"],
        "hybrid search": ["search", index, "w1 w2 w3", "--mode", "hybrid", "--json"],
        "upsert of 1,000": ["index", "upsert", index, more],
        "delete": ["index", "delete", index, "--where", "y = 7"],
        "compact": ["index", "compact", index],
        "backup": ["index", "backup", index, copy],
        "check": ["index", "check", index],
        "info of the backup": ["index", "info", copy, "--json"],
    }
    done = subprocess.run(
        [sys.executable, "-c", LIMITED],
        input="".join(json.dumps(list(map(str, line))) + "\n" for line in commands.values()),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ran = [line for line in told if "ran" in line]
    assert len(ran) == len(commands)
    counts = [line["documents"] for line in told if "documents" in line]
    assert counts == [ROWS, sum(number % 50 != 7 for number in range(ROWS + 500))]
    assert sum("doc_id" in line for line in told) == 15
    seconds = [f"{name} {line['seconds']}" for name, line in zip(commands, ran, strict=True)]
    keep_result(
        "index_descriptors",
        {
            "documents": ROWS,
            "open_files_at_most": LIMIT,
            "commands_that_failed": 0,
            "seconds": seconds,
        },
    )
