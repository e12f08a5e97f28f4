"""Threads, batch sizes and restarts change no row and no bit of a score."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sbert_search.index import settings as spec
from sbert_search.index.settings import IndexSpec
from sbert_search.index.storage.manifest import Manifest, Metric, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import merge_policy
from tests.cli.process import ROOT, environment
from tests.faults import FULL, keep_result
from tests.index.batches import make_batch, some_documents, some_vectors
from tests.index.faults.asker import BATCHES, DIM

THREADS = (1, 2, 4)
RESTARTS = 10 if FULL else 1
INDEXES: dict[str, tuple[str, Metric]] = {
    "flat": ("Flat", "cosine"),
    "far": ("Flat", "euclidean"),
    "hnsw": ("HNSW16", "cosine"),
    "ivf": ("IVF16,Flat", "dot"),
    "codes": ("IVF16,SQ8", "cosine"),
}


@pytest.mark.thorough
def test_no_answer_depends_on_threads_batches_or_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (merge_policy, spec):
        monkeypatch.setattr(module, "MIN_ANN_ROWS", 500)
    for name, (factory, metric) in INDEXES.items():
        chosen = VectorSettings(dim=DIM, metric=metric, spec=IndexSpec(factory=factory))
        with IndexStore.create(tmp_path / name, Manifest.new(chosen)).writer() as writer:
            writer.commit(make_batch(some_documents(3000), some_vectors(3000, DIM)))
            writer.compact()
            writer.commit(make_batch(some_documents(200, "e"), some_vectors(200, DIM, 2)))
            writer.settle()
            writer.delete([f"d{i}" for i in range(0, 3000, 7)])
    runs = [threads for threads in THREADS for _ in range(RESTARTS)]
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda threads: ask(tmp_path, threads), runs))
    for name in INDEXES:
        assert len({answers[f"{name} by {batch}"] for answers in told for batch in BATCHES}) == 1
    keep_result(
        "index_determinism",
        {
            "threads": list(THREADS),
            "batches": list(BATCHES),
            "restarts_each": RESTARTS,
            "indexes": [factory for factory, _ in INDEXES.values()],
            "answers_that_differ_in_any_bit": 0,
        },
    )


def ask(folder: Path, threads: int) -> dict[str, str]:
    """Search all indexes in a fresh process."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    child = [sys.executable, "-m", "tests.index.faults.asker", str(folder)]
    done = subprocess.run(child, cwd=ROOT, env=environment(limits), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers: dict[str, str] = json.loads(done.stdout)
    return answers
