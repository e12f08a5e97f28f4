"""Migrations that fail at any step, or are killed: one model answers, and no row is lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from sbert_search.index.index import Index
from sbert_search.index.upkeep.check import check
from sbert_search.search.engine import SearchEngine
from tests.faults import FAULTS, FULL, Fault, every_step, keep_result
from tests.index.building.test_migration import WORDS
from tests.index.faults.migration_victim import migrate_once
from tests.index.faults.test_kills import read_line

OLD, NEW = "hashing:24", "hashing:40"
KILLS = 1000 if FULL else 20
SEED = 52_001

Answers = list[tuple[str, float]]


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=9))


def answer(engine: SearchEngine) -> Answers:
    return [(hit.doc_id, hit.score) for hit in engine.search("river moon", 200, mode="dense")]


def expected(index: Index) -> Answers:
    """Answer as an index of the same documents that its model built anew."""
    rows = [{"_id": document.doc_id, "text": document.text} for document in index]
    return answer(SearchEngine(Index.build(rows, model=index.identity.name)))


steps: dict[str, int] = {}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("way", ["there", "back"])
def test_any_failing_step_leaves_the_old_or_the_new_model(
    fast_path: Path, way: str, fault: Fault
) -> None:
    rng, base, path = random.Random(SEED), fast_path / "base", fast_path / "i"
    index = Index.from_texts([text(rng) for _ in range(11)], out=base, model=OLD)
    index.upsert([{"_id": f"e{i}", "text": text(rng)} for i in range(3)])
    index.delete(["4"])
    answers = {OLD: expected(index)}
    migrate_once(base, NEW)
    answers[NEW] = expected(Index.open(base))
    if way == "there":
        Index.open(base).roll_back()
        Index.open(base).drop_unused_vectors()
    else:
        Index.open(base).upsert([{"_id": "late", "text": text(rng)}])
        answers[NEW] = expected(Index.open(base))
        shutil.copytree(base, path)
        migrate_once(path, OLD)
        answers[OLD] = expected(Index.open(path))
    target = NEW if way == "there" else OLD

    def prepare() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(base, path)

    count = 0
    for _ in every_step(fault, prepare, lambda: migrate_once(path, target)):
        count += 1
        assert check(path).problems == ()
        index = Index.open(path)
        assert answer(SearchEngine(index)) == answers[index.identity.name]
        if index.identity.name != target:
            migrate_once(path, target)
        assert answer(SearchEngine(path)) == answers[target]
    assert count >= 10
    steps[f"{way}, {fault}"] = count
    keep_result("migration_steps", {"failed_steps": steps, "answers_of_neither_model": 0})


@pytest.mark.thorough
def test_no_kill_mixes_models_or_loses_an_acknowledged_row(fast_path: Path) -> None:
    rng, path = random.Random(SEED), fast_path / "i"
    truth = {str(i): text(rng) for i in range(120)}
    Index.from_texts(list(truth.values()), out=path, model=OLD)
    outcomes: Counter[str] = Counter()
    writer, reader = Index.open(path, wait_s=60), SearchEngine(path)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.index.faults.migration_victim"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    ) as victim:
        assert victim.stdin is not None
        read_line(victim)
        for _ in range(KILLS):
            before = writer.identity.name
            target = NEW if before == OLD else OLD
            victim.stdin.write(f"{json.dumps([str(path), target])}\n".encode())
            child = int(read_line(victim))
            until = time.monotonic() + rng.uniform(0, 0.6)
            while time.monotonic() < until:
                doc_id = str(rng.randrange(140))
                words = text(rng)
                writer.refresh()
                writer.upsert([{"_id": doc_id, "text": words}])
                truth[doc_id] = words
                reader.refresh()
                hits = reader.search("river moon", 200, mode="dense")
                assert len(hits) == len(truth)
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(child, signal.SIGKILL)
            read_line(victim)
            writer.refresh()
            reader.refresh()
            outcomes["switched" if writer.identity.name == target else "not yet"] += 1
            assert {document.doc_id: document.text for document in writer} == truth
            assert check(path).problems == ()
            assert answer(reader) == expected(writer)
            if writer.identity.name != target and rng.random() < 0.5:
                migrate_once(path, target)
                writer.refresh()
                assert answer(SearchEngine(path)) == expected(writer)
                assert writer.identity.name == target
        victim.stdin.close()
    keep_result(
        "migration_kills",
        {
            "kills": KILLS,
            "seed": SEED,
            "state_after_the_kill": outcomes,
            "acknowledged_rows_lost": 0,
            "mixed_answers": 0,
        },
    )
