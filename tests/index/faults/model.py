"""What an index should hold: a dict in the order of the rows, changed by the same operations.

Vectors are small whole numbers and the metric is the inner product, so every score is exact and
ties are common: the order of equal scores is compared too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.settings import LexicalSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import BuildCursor, Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.writer import IndexWriter
from sbert_search.records import Document
from tests.index.batches import make_batch

DIM = 4
EMPTY = Manifest.new(
    VectorSettings(dim=DIM, metric="dot"), {"v": "int64"}, lexical=LexicalSettings(language="none")
)

Model = dict[str, tuple[str, tuple[tuple[float, ...], ...]]]
"""Text and vectors of each document by id, in the order of the rows."""


@dataclass(frozen=True)
class Operation:
    """One commit.

    Attributes:
        kind: ``put`` adds documents or replaces those with the same ids; ``settle`` rewrites what
            an update leaves beyond the limits, ``compact`` all that can be rewritten.
        documents: Id, version and number of passages of each document put.
        doc_ids: What is deleted.
        cursor: Rows of a build that this commit ends, if it is part of one.
    """

    kind: Literal["put", "delete", "settle", "compact"]
    documents: tuple[tuple[str, int, int], ...] = ()
    doc_ids: tuple[str, ...] = ()
    cursor: int | None = None


def vectors_of(doc_id: str, version: int, n_passages: int) -> NDArray[np.float32]:
    """Draw the vectors of a document's passages, (n_passages, DIM)."""
    rng = random.Random(f"{doc_id}/{version}")
    return np.array([[rng.randint(-2, 2) for _ in range(DIM)] for _ in range(n_passages)], "f4")


def apply(writer: IndexWriter, operation: Operation) -> None:
    """Do an operation to an index."""
    if operation.kind == "compact":
        writer.compact()
    elif operation.kind == "settle":
        writer.settle()
    elif operation.kind == "delete":
        writer.delete(operation.doc_ids)
    else:
        cursor = operation.cursor
        put = operation.documents
        documents = [Document(d, f"text v{v}", metadata={"v": v}) for d, v, _ in put]
        vectors = [vectors_of(*document) for document in put]
        batch = make_batch(documents, np.concatenate(vectors), [len(v) for v in vectors])
        build = None if cursor is None else BuildCursor(source_sha256="s", rows=cursor)
        writer.commit(batch, cursor=build)


def applied(model: Model, operation: Operation) -> Model:
    """Say what an index holds after an operation."""
    model = dict(model)
    last = {document[0]: document for document in operation.documents}
    for doc_id in [*last, *operation.doc_ids]:
        model.pop(doc_id, None)
    for document in operation.documents:
        if last[document[0]] is document:
            vectors = tuple(tuple(vector.tolist()) for vector in vectors_of(*document))
            model[document[0]] = (f"text v{document[1]}", vectors)
    return model


def contents(snapshot: Snapshot) -> Model:
    """Read all that an index holds."""
    documents = list(snapshot.iter_documents())
    docs = snapshot.lookup([document.doc_id for document in documents])
    rows = snapshot.rows_of(docs)
    vectors, doc_of = snapshot.vectors(rows), snapshot.doc_of(rows)
    assert (snapshot.n_docs, snapshot.n_rows) == (len(documents), len(rows))
    return {
        document.doc_id: (document.text, tuple(map(tuple, vectors[doc_of == doc].tolist())))
        for document, doc in zip(documents, docs, strict=True)
    }


def assert_holds(snapshot: Snapshot, model: Model) -> None:
    """Compare an index with a model: documents, vectors, the order of rows, search results.

    Each document holds two words: "text", and its version, for which it is found first.
    """
    assert list(contents(snapshot).items()) == list(model.items())
    passages = [(doc_id, i) for doc_id, (_, vectors) in model.items() for i in range(len(vectors))]
    matrix = np.array([v for _, vectors in model.values() for v in vectors]).reshape(-1, DIM)
    for query in ([1, 0, 0, 0], [1, -2, 1, 2]):
        scores = matrix @ np.array(query, float)
        best = np.argsort(-scores, kind="stable")[:10]
        got_scores, rows = snapshot.search(np.array([query], "f4"), 10)
        hits = snapshot.fetch(rows[rows >= 0])
        assert [(hit.document.doc_id, hit.chunk) for hit in hits] == [passages[i] for i in best]
        assert got_scores[0, : len(best)].tolist() == scores[best].tolist()
    for text in sorted({text for text, _ in model.values()})[:2]:
        ((rows, scores, *_),) = snapshot.lexical.search([text], len(model) + 1)
        order = sorted(model, key=lambda doc_id: model[doc_id][0] != text)
        assert snapshot.doc_ids(rows) == order
        assert len({*scores.tolist()}) == len({other == text for other, _ in model.values()})


def random_operation(rng: random.Random, model: Model, number: int) -> Operation:
    """Draw an operation: mostly documents put, some deleted, now and then a merge."""
    draw = rng.random()
    if draw < 0.1:
        return Operation("compact" if draw < 0.04 else "settle")
    if draw < 0.25 and model:
        return Operation("delete", doc_ids=tuple(rng.sample(list(model), min(len(model), 5))))
    known = list(model)
    ids = [
        rng.choice(known) if known and rng.random() < 0.3 else f"{number}-{i}"
        for i in range(rng.randint(1, 12))
    ]
    documents = tuple((doc_id, number, rng.randint(1, 3)) for doc_id in ids)
    return Operation("put", documents, cursor=number)


def new_index(path: Path, operations: Sequence[Operation] = ()) -> Model:
    """Make an index by operations and return what it holds."""
    store = IndexStore.create(path, EMPTY)
    model: Model = {}
    with store.writer() as writer:
        for operation in operations:
            apply(writer, operation)
            model = applied(model, operation)
    return model
