"""Random programs of updates, run on one index and on a sharded one with the same documents."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sbert_search.index.building.given_vectors import no_model
from sbert_search.index.index import Index
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.writer import IndexWriter
from sbert_search.records import Document, Hit
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import SearchMode
from tests.index.batches import make_batch

DIM = 3
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
MODES: tuple[SearchMode, ...] = ("dense", "lexical", "hybrid")


def created(folder: Path, n_shards: int) -> tuple[IndexStore, IndexStore]:
    """Make one index and a sharded one, both empty."""
    settings = VectorSettings(dim=DIM, metric="dot", identity=no_model(DIM, "dot").to_mapping())
    empty = Manifest.new(settings, {"year": "int64"}, lexical=LexicalSettings(language="none"))
    one = IndexStore.create(folder / "one", empty)
    sharded = IndexStore.create(folder / "sharded", empty, n_shards=n_shards)
    assert isinstance(sharded, IndexStore)
    return one, sharded


class Program:
    """Operations drawn from a seed; each is run on both indexes, which are then compared."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(f"program {seed}")
        self.vectors = np.random.default_rng(seed)
        self.n_ids = self.rng.choice([5, 20, 60])
        self.one, self.sharded = created(folder, self.rng.choice([1, 2, 3, 4, 7]))

    def run(self, n_steps: int) -> None:
        """Run some operations; compare the indexes after each."""
        for _ in range(n_steps):
            step = self.rng.choice([self._put] * 4 + [self._delete, self._forget, self._merge])
            step()
            if self.rng.random() < 0.2:
                self.one = IndexStore.open(self.one.path)
                self.sharded = IndexStore.open(self.sharded.path)
            self.compare()

    def _documents(self) -> list[Document]:
        ids = [f"d{self.rng.randrange(self.n_ids)}" for _ in range(self.rng.randint(1, 12))]
        return [
            Document(
                doc_id,
                " ".join(self.rng.choices(WORDS, k=self.rng.randint(1, 5))),
                title=self.rng.choice(["", *WORDS]),
                metadata={"year": 2000 + self.rng.randrange(4)},
            )
            for doc_id in ids
        ]

    def _put(self) -> None:
        documents = self._documents()
        chunks = [self.rng.choice([1, 1, 1, 2, 3]) for _ in documents]
        # Few different values, so that many scores are equal.
        vectors = self.vectors.integers(-1, 2, (sum(chunks), DIM)).astype(np.float32)
        for store in (self.one, self.sharded):
            with store.writer() as writer:
                writer.commit(make_batch(documents, vectors, chunks))

    def _delete(self) -> None:
        ids = [f"d{self.rng.randrange(self.n_ids)}" for _ in range(self.rng.randint(1, 6))]
        absent = []
        for store in (self.one, self.sharded):
            with store.writer() as writer:
                absent.append(writer.delete(ids))
        assert absent[0] == absent[1]

    def _forget(self) -> None:
        year = 2000 + self.rng.randrange(4)
        counts = []
        for store in (self.one, self.sharded):
            with store.writer() as writer:
                counts.append(writer.delete_where(f"year = {year}"))
        assert counts[0] == counts[1]

    def _merge(self) -> None:
        settles = self.rng.random() < 0.5
        for store in (self.one, self.sharded):
            with store.writer() as writer:
                merge(writer, settles)

    def compare(self) -> None:
        """Compare documents, dense, lexical and hybrid searches, filters and facets."""
        one, sharded = Index(self.one), Index(self.sharded)
        assert list(one) == list(sharded)
        assert len(one) == len(sharded)
        ids = [f"d{n}" for n in range(self.n_ids)]
        assert contents(one.state, ids) == contents(sharded.state, ids)
        if not len(one):
            return
        queries = self.vectors.integers(-1, 2, (2, DIM)).astype(np.float32)
        texts = [" ".join(self.rng.choices(WORDS, k=2)) for _ in queries]
        where = self.rng.choice([None, None, "year >= 2002"])
        group = self.rng.random() < 0.8
        k = self.rng.choice([1, 3, 30])
        engines = [SearchEngine(index) for index in (one, sharded)]
        for mode in MODES:
            given = None if mode == "lexical" else queries
            found = [
                engine.search_many(texts, k, vectors=given, mode=mode, where=where, group=group)
                for engine in engines
            ]
            for left, right in zip(*found, strict=True):
                assert ranking(left) == ranking(right)
        counted = [engine.facets(texts[0], "year") for engine in engines]
        assert counted[0] == counted[1]


def merge(writer: IndexWriter, settles: bool) -> None:
    """Merge segments, as after an update or by the command."""
    if settles:
        writer.settle()
    else:
        writer.compact()


def contents(snapshot: Snapshot, ids: Sequence[str]) -> list[int]:
    """Return the content hashes of documents."""
    return [int(value) for value in snapshot.find(ids)[1]]


def ranking(hits: Sequence[Hit]) -> list[tuple[str, float, int, str]]:
    """Return what must be equal to the bit: ids, scores and passages."""
    return [(hit.doc_id, hit.score, hit.chunk, hit.passage) for hit in hits]
