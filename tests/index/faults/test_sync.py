"""`index sync` killed anywhere: what did not change is always there, and a rerun ends the job."""

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

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.index import Index
from sbert_search.index.upkeep.check import check
from tests.faults import FAULTS, FULL, Fault, every_step, keep_result
from tests.index.faults.sync_victim import sync_once
from tests.index.faults.test_kills import read_line

KILLS = 2000 if FULL else 25
RERUN_SHARE = 0.5  # of the kills; the others are followed by more changes of the folder
SEED = 24_113

Texts = dict[str, str]


def texts_of_index(path: Path) -> Texts:
    index = Index.open(path)
    texts = {document.doc_id: document.text for document in index}
    assert len(texts) == len(index), "a document is there twice"
    return texts


def texts_of_folder(folder: Path) -> Texts:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def change(folder: Path, rng: random.Random) -> None:
    """Change, remove and add some files."""
    present = sorted(texts_of_folder(folder))
    for name in rng.sample(present, min(len(present) - 5, 12)) if len(present) > 30 else []:
        if rng.random() < 0.5:
            (folder / name).unlink()
        else:
            (folder / name).write_text(f"changed {rng.random()}")
    for _ in range(12):
        path = folder / rng.choice("abc") / f"{rng.randrange(60)}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"new {rng.random()}")


def assert_between(path: Path, old: Texts, new: Texts) -> Texts:
    """Check an index after a kill, and return what it holds.

    Each document has its old or its new state, so one that did not change is there.
    """
    holds = texts_of_index(path)
    assert holds.keys() <= old.keys() | new.keys()
    for name in old.keys() | new.keys():
        assert holds.get(name) in (old.get(name), new.get(name)), name
    return holds


def new_index(path: Path, folder: Path) -> None:
    change(folder, random.Random(1))
    Index.create(path, model=HashingEmbedder(dim=16))
    sync_once(path, folder)


@pytest.mark.thorough
def test_no_kill_loses_or_doubles_a_document(fast_path: Path) -> None:
    rng, path, folder = random.Random(SEED), fast_path / "i", fast_path / "notes"
    folder.mkdir()
    new_index(path, folder)
    outcomes: Counter[str] = Counter()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.index.faults.sync_victim"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    ) as victim:
        assert victim.stdin is not None
        read_line(victim)
        whole_life_s = 0.0
        for _ in range(2):  # the second one shows how long an undisturbed sync takes
            change(folder, rng)
            started = time.monotonic()
            start_sync(victim, path, folder)
            read_line(victim)
            whole_life_s = time.monotonic() - started
        old = texts_of_index(path)
        assert old == texts_of_folder(folder)
        for _ in range(KILLS):
            change(folder, rng)
            new = texts_of_folder(folder)
            child = start_sync(victim, path, folder)
            time.sleep(rng.uniform(0, whole_life_s))
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(child, signal.SIGKILL)
            read_line(victim)
            holds = assert_between(path, old, new)
            outcomes["before" if holds == old else "after" if holds == new else "between"] += 1
            if rng.random() < RERUN_SHARE:
                sync_once(path, folder)
                holds = texts_of_index(path)
                assert holds == new
                assert check(path).problems == ()
            old = holds
        victim.stdin.close()
    keep_result(
        "sync_kills",
        {
            "kills": KILLS,
            "seed": SEED,
            "state_after_the_kill": outcomes,
            "unchanged_documents_missing": 0,
            "documents_doubled": 0,
            "reruns_that_differ_from_the_folder": 0,
        },
    )


def start_sync(victim: subprocess.Popen[bytes], path: Path, folder: Path) -> int:
    """Start a child that syncs, and return its id."""
    assert victim.stdin is not None
    victim.stdin.write(f"{json.dumps([str(path), str(folder)])}\n".encode())
    return int(read_line(victim))


steps: dict[str, int] = {}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS if FULL else FAULTS[:1])
def test_every_step_of_a_sync_can_fail(fast_path: Path, fault: Fault) -> None:
    base, path, folder = fast_path / "base", fast_path / "i", fast_path / "notes"
    folder.mkdir()
    new_index(base, folder)
    old = texts_of_index(base)
    change(folder, random.Random(2))
    new = texts_of_folder(folder)
    assert old.keys() - new.keys() or old != new

    def prepare() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(base, path)

    count = 0
    for _ in every_step(fault, prepare, lambda: sync_once(path, folder)):
        count += 1
        assert_between(path, old, new)
        sync_once(path, folder)
        assert texts_of_index(path) == new
    assert count >= 30
    steps[fault] = count
    keep_result("sync_steps", {"failed_steps": steps, "reruns_that_differ_from_the_folder": 0})
