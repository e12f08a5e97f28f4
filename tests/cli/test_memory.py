"""``--memory`` is kept by every command that has it, or refused by name, whatever the rows are."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import hostile_shapes as shapes
from tests.faults import FULL, RESULTS, keep_result

LIMIT_MIB = 512 if FULL else 320
SLACK = 1.1
QUICK = (shapes.wide_metadata, shapes.huge_texts, shapes.parquet_cells)
SOURCES = shapes.SHAPES if FULL else QUICK
MODEL = ("--model", "hashing")

runs: list[dict[str, Any]] = []


def keep_runs() -> None:
    """Keep the figures of all commands, failed ones too, beside those of earlier sessions."""
    file = RESULTS / "memory_limits.json"
    before = json.loads(file.read_text())["figures"]["commands"] if FULL and file.exists() else []
    anew = {(run["command"], run["shape"]) for run in runs}
    commands = [run for run in before if (run["command"], run["shape"]) not in anew] + runs
    outcomes = Counter(run["outcome"] for run in commands)
    figures = {
        "limit_mib": LIMIT_MIB,
        "commands_run": len(commands),
        "held": outcomes["held"],
        "refused_by_name": outcomes["refused"],
        "over_the_limit": outcomes["over"],
        "largest_peak_mib": max(run["peak_mib"] for run in commands),
        "commands": commands,
    }
    keep_result("memory_limits", figures)


def peak_of(*arguments: object) -> tuple[int, float, str]:
    """Run a command and sample its anonymous memory: exit code, peak in MiB, all it printed."""
    script = "import sys; from sbert_search.cli.main import main; main()"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stderr is not None
        status, peak = Path(f"/proc/{child.pid}/status"), 0
        while child.poll() is None:
            found = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+)", status.read_text(), re.M)
            peak = max(peak, sum(map(int, found)))
            time.sleep(0.003)
        return child.returncode, peak / 1024, child.stderr.read()


def judge(shape: str, *arguments: object) -> None:
    """Run a command under the limit, and look at what became of it."""
    code, peak, said = peak_of(*arguments, "--memory", f"{LIMIT_MIB}M")
    over = peak > SLACK * LIMIT_MIB
    outcome = "over" if over else "refused" if code in (1, 2) else "held"
    name = " ".join(str(word) for word in arguments[:2] if not str(word).startswith("/"))
    facts = {"command": name, "shape": shape, "limit_mib": LIMIT_MIB, "peak_mib": round(peak)}
    runs.append(
        {
            **facts,
            "outcome": outcome,
            "code": code,
            "said": said.strip().replace(str(Path(tempfile.gettempdir())), "")[-300:],
        }
    )
    keep_runs()
    assert "Traceback" not in said
    assert not over, f"{peak:.0f} of {LIMIT_MIB} MiB: {said}"
    assert code in (0, 3) or re.search(r"--memory|columns|broken|damaged|cells", said), said


@pytest.fixture(scope="module", params=SOURCES, ids=lambda shape: shape.__name__)
def source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A hostile file, which is gone after its tests."""
    folder = tmp_path_factory.mktemp("shape")
    make: Callable[[Path, int], Path] = request.param
    yield make(folder, LIMIT_MIB)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of short rows."""
    folder = tmp_path_factory.mktemp("index")
    corpus = shapes.small(folder, LIMIT_MIB if FULL else 50)
    code, _, said = peak_of("index", "build", corpus, "--out", folder / "i", *MODEL)
    assert code == 0, said
    return folder / "i"


@pytest.mark.thorough
def test_a_build_keeps_its_limit(source: Path, tmp_path: Path) -> None:
    skip = ("--on-error", "skip")
    judge(
        f"{source.name}, skipped", "index", "build", source, "--out", tmp_path / "i", *skip, *MODEL
    )


@pytest.mark.thorough
def test_whatever_else_reads_documents_keeps_it(index: Path, tmp_path: Path) -> None:
    for make in (shapes.texts, *QUICK) if FULL else (shapes.parquet_cells,):
        source = make(tmp_path, LIMIT_MIB)
        shutil.copytree(index, tmp_path / "i")
        out = ("--out", tmp_path / "o")
        for command in (
            ("index", "upsert", tmp_path / "i", source),
            ("embed", source, *out, *MODEL),
            ("pairs", source, "--top", 10, *MODEL),
            ("index", "build", source, *out, "--on-truncate", "chunk", *MODEL),
        )[: None if FULL else 2]:
            judge(source.name, *command)
            (tmp_path / "o").unlink(missing_ok=True) if (tmp_path / "o").is_file() else None
        source.unlink()
        shutil.rmtree(tmp_path / "i")
        shutil.rmtree(tmp_path / "o", ignore_errors=True)


def queries(path: Path, n_queries: int) -> Path:
    rows = ({"_id": f"q{n}", "text": f"topic {n % 97}"} for n in range(n_queries))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.thorough
def test_many_hits_of_many_queries_keep_it(index: Path, tmp_path: Path) -> None:
    k = 20_000 if FULL else 3000
    for mode, out in itertools.product(("dense", "hybrid") if FULL else ("dense",), (True, False)):
        asked = queries(tmp_path / "q.jsonl", 300 if FULL or out else 30)
        to = ("--run-out", tmp_path / "r.trec") if out else ("--json",)
        judge(
            f"{k} hits, {mode}", "search", index, "--queries", asked, "-k", k, "--mode", mode, *to
        )


@pytest.mark.thorough
def test_many_queries_keep_it_or_are_refused(index: Path, tmp_path: Path) -> None:
    asked = queries(tmp_path / "q.jsonl", 1_000_000 if FULL else 100_000)
    to = ("--run-out", tmp_path / "r", "--mode", "dense")  # hybrid search would take minutes
    judge("many queries", "search", index, "--queries", asked, *to)


@pytest.mark.thorough
def test_large_documents_are_found_merged_and_tuned_within_it(tmp_path: Path) -> None:
    corpus = shapes.wide_metadata(tmp_path, LIMIT_MIB if FULL else 60)
    code, _, said = peak_of("index", "build", corpus, "--out", tmp_path / "i", *MODEL)
    assert code == 0, said
    for k in (5, 200):
        judge(f"{k} hits of 1 MiB", "search", tmp_path / "i", "word", "-k", k, "--json")
    ids = ",".join(map(str, range(0, LIMIT_MIB, 5)))
    assert peak_of("index", "delete", tmp_path / "i", "--ids", ids)[0] == 0
    judge("rows of 1 MiB", "index", "compact", tmp_path / "i")
    judge("rows of 1 MiB", "index", "tune", tmp_path / "i", "--max-minutes", 0.2)
    judge("rows of 1 MiB", "index", "migrate", tmp_path / "i", "--model", "hashing:48")


@pytest.mark.thorough
def test_less_than_a_process_takes_is_refused_by_name(index: Path, tmp_path: Path) -> None:
    corpus = shapes.small(tmp_path, 1)
    for command in (
        ("index", "build", corpus, "--out", tmp_path / "i", *MODEL),
        ("index", "add", index, corpus),
        ("embed", corpus, "--out", tmp_path / "v.parquet", *MODEL),
        ("search", index, "topic"),
        ("index", "tune", index),
        ("index", "compact", index),
        ("index", "migrate", index, "--model", "hashing:48"),
    ):
        code, _, said = peak_of(*command, "--memory", "1K")
        assert code == 2
        assert re.search(r"takes about .* of --memory are left; allow [\d,.]+ MiB or more", said)
    assert not (tmp_path / "i").exists()
