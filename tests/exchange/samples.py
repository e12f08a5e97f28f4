"""An index with passages, changes, deletions and all types of columns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.index import Index
from sbert_search.index.storage.manifest import Metric, VectorType
from sbert_search.search.engine import SearchEngine
from tests.cli.process import environment

WORDS = ["mill", "river", "wheel", "grain", "stone", "bread", "oven", "flour", "yeast", "dough"]
QUESTION = "river mill bread"


def rows(n: int, seed: int = 0) -> list[dict[str, object]]:
    """Make documents of random words; each third is long, and some lack title or metadata."""
    draw = np.random.default_rng(seed)
    made: list[dict[str, object]] = []
    for number in range(n):
        length = 40 if number % 3 == 0 else 6
        row: dict[str, object] = {
            "_id": f"d/{number} é",
            "text": " ".join([*draw.choice(WORDS, length), f"w{number}."]),
        }
        if number % 2:
            row["title"] = f"Title {number}"
        if number % 5:
            row |= {
                "year": 1900 + number,
                "price": number / 4,
                "sold": number % 4 == 0,
                "day": date(2020, 1, 1 + number % 28),
                "seen": datetime(2021, 2, 3, number % 24, 5, 6, 789, tzinfo=UTC),
                "tags": [WORDS[number % 10], "all"],
                "odd name!": f"v{number % 3}",
                "text.x": "x",
                "chunk": number,
            }
        made.append(row)
    return made


def sample(
    path: Path, n: int = 60, metric: Metric = "cosine", dtype: VectorType = "float32"
) -> Index:
    """Build an index of several segments, of which documents were replaced and deleted."""
    index = Index.build(
        rows(n), out=path, model="hashing:32", metric=metric, dtype=dtype, chunk_tokens=16
    )
    changed = rows(n, seed=1)[:7]
    index.upsert([*changed, {"_id": "late", "text": "river mill", "late_column": 7}])
    index.delete([f"d/{number} é" for number in (3, 12, n - 1)])
    return index


def best_passages(
    engine: SearchEngine, vector: NDArray[np.float32], k: int = 10, where: str | None = None
) -> list[tuple[str, int, float]]:
    """Return document, number and score of the best passages of an exact search."""
    hits = engine.search(vector, mode="dense", k=k, group=False, where=where)
    return [(hit.doc_id, hit.chunk, hit.score) for hit in hits]


def run(code: str, folder: Path) -> list[list[str]]:
    """Run printed code in a new process; return document, number and score of each line."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [line.rsplit(" ", 2) for line in done.stdout.splitlines()]


def require_same_ranking(
    printed: Sequence[Sequence[str]],
    engine: SearchEngine,
    vector: NDArray[np.float32],
    where: str | None = None,
) -> None:
    """Check that lines of document, number and score are the best passages, ties aside."""
    best = best_passages(engine, vector, k=60, where=where)
    assert len(printed) == 10
    assert len({(doc_id, chunk) for doc_id, chunk, _ in printed}) == 10
    scores = {(doc_id, chunk): score for doc_id, chunk, score in best}
    found = [scores[doc_id, int(chunk)] for doc_id, chunk, _ in printed]
    assert np.allclose(found, [score for _, _, score in best[:10]], atol=1e-5)
