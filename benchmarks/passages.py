"""Real texts with real queries, embedded once and stored: SciFact, and Wikipedia with SQuAD."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search import Embedder, Index
from sbert_search.embed.cache import CachedEmbedder
from sbert_search.index.store import IndexStore
from sbert_search.text.labelled.retrieval import read_queries

DISTRACTORS, SHORTEST = 100_000, 150  # paragraphs of Wikipedia, and minimum characters of each

EmbeddedSet = tuple[str, IndexStore, NDArray[np.float32]]
"""Name, index and query vectors, (queries, dim)."""


def embedded_sets(data: Path | None, work: Path, only: str | None) -> Iterator[EmbeddedSet]:
    """Yield SciFact and Wikipedia, or the set that ``only`` names; nothing if ``data`` is None.

    The queries of a set are in a random order, which is always the same.
    """
    if data is None:
        return
    for name, make in (("scifact", scifact), ("wikipedia", wikipedia)):
        if only in (None, name):
            yield (name, *embedded(name, make(data, work), work))


def embedded(
    name: str, sources: tuple[Path, list[str]], work: Path
) -> tuple[IndexStore, NDArray[np.float32]]:
    """Embed corpus and queries with all-MiniLM-L6-v2, or open the results of an earlier run."""
    corpus, texts = sources
    path, kept = work / f"{name}.index", work / f"{name}.queries.npy"
    if not kept.exists():
        with closing(CachedEmbedder(Embedder(precision="fp32"))) as embedder:
            if not (path / "MANIFEST.json").exists():
                Index.build(corpus, out=path, model=embedder, on_truncate="warn")
            np.save(kept, embedder.encode_query(texts))
    queries: NDArray[np.float32] = np.load(kept)
    return Index.open(path).store, np.random.default_rng(0).permutation(queries)


def scifact(data: Path, work: Path) -> tuple[Path, list[str]]:
    """Return the folder of SciFact and its queries."""
    folder = data / "scifact"
    return folder, [query.text for query in read_queries(folder)]


def wikipedia(data: Path, work: Path) -> tuple[Path, list[str]]:
    """Write 1,216 paragraphs of SQuAD and 100,000 of Wikipedia; return the file and questions."""
    rows = [row for part in "ab" for row in lines(data / f"squad/dev_{part}.jsonl.gz")]
    questions = [row["question"] for row in rows if not row["is_impossible"]]
    corpus = work / "wikipedia.jsonl"
    if not corpus.exists():
        contexts = dict.fromkeys(row["context"] for row in rows)
        with corpus.open("w", encoding="utf-8") as file:
            for number, text in enumerate([*contexts, *islice(paragraphs(data), DISTRACTORS)]):
                file.write(json.dumps({"_id": str(number), "text": text}) + "\n")
    return corpus, questions


def paragraphs(data: Path) -> Iterator[str]:
    """Yield the paragraphs of Wikipedia of `SHORTEST` characters or more."""
    for number in range(5):
        for row in lines(data / f"wikipedia-en-2014/train-{number}.jsonl.xz"):
            yield from (text for text in row["text"].split("\n") if len(text) >= SHORTEST)


def lines(path: Path) -> Iterator[dict[str, str]]:
    """Read the objects of a compressed JSON lines file."""
    opened = lzma.open if path.suffix == ".xz" else gzip.open
    with opened(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)
