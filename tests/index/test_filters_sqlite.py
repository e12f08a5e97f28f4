"""Random filters select what sqlite selects, over segments whose columns differ in type.

`FAULT_SCALE=full` tries a million.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from sbert_search.errors import QueryError
from sbert_search.index.filters import conditions
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.writer import IndexWriter
from sbert_search.records import Document, MetadataValue
from tests.faults import FULL, keep_result
from tests.index.batches import make_batch, some_vectors
from tests.index.random_filters import ALL_COLUMNS, COLUMNS, FilterGenerator, RandomFilter
from tests.index.random_literals import DATES, FLOATS, INTEGERS, TEXTS, TIMES, stored_time

TABLES, FILTERS = (200, 5000) if FULL else (5, 4000)
SEED = 18
EVERY = (
    40 if FULL else 200
)  # how often a filter goes through the index on disk and a search as well
VALUES: dict[str, list[Any]] = {
    "int64": INTEGERS, "float64": FLOATS, "string": TEXTS, "date": DATES, "timestamp": TIMES,
    "bool": [True, False],
}  # fmt: skip
LISTS = [f"list[{kind}]" for kind in VALUES]
EVERY_NODE = {
    *("AND", "OR", "NOT", "( )", "literal first", "negative number", "flag", "flag IS NOT TRUE"),
    *(f"{word}{name} string" for word in ("", "NOT ") for name in ("LIKE", "ILIKE")),
    *(
        f"{word}{name} {kind}"
        for word in ("", "NOT ")
        for name in ("IN", "BETWEEN")
        for kind in VALUES
    ),
    *(f"{word}IN {kind}" for word in ("", "NOT ") for kind in LISTS),
    *(f"{name} {kind}" for name in ("lower", "upper") for kind in ("string", "list[string]")),
    *(f"IS{word} NULL {kind}" for word in ("", " NOT") for kind in (*VALUES, *LISTS)),
    *(f"{name} {kind}" for name in ("=", "<>", "<", "<=", ">", ">=") for kind in VALUES),
    *("int64 < float64", "float64 = int64", "string = string", "date <= date"),
}


@pytest.mark.thorough
@pytest.mark.timeout(7_200)
def test_random_filters_select_what_sqlite_selects(fast_path: Path) -> None:
    tally: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    for number in range(TABLES):
        rng = random.Random(f"{SEED}/{number}")
        store = random_index(fast_path / str(number), rng)
        with Peer(store.snapshot) as peer:
            for tried in range(FILTERS):
                drawn = FilterGenerator(rng).draw()
                nodes.update(drawn.nodes)
                tally["refused" if peer.compare(drawn) is None else "selected"] += 1
                if tried % EVERY == 0 and drawn.sqlite:
                    peer.compare_searches(drawn)
                    tally["searches"] += 1
            tally["deletions"] += delete_at_random(store, peer, rng)
    assert nodes.keys() >= EVERY_NODE
    keep_result(
        "filters_sqlite",
        {
            "filters": TABLES * FILTERS,
            "differences": 0,
            **dict(tally),
            "tables": TABLES,
            "uses_of_nodes": dict(sorted(nodes.items())),
            "seed": SEED,
        },
    )


class Peer:
    """A snapshot's documents in sqlite, and its columns as filters read them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.database = sqlite3.connect(":memory:")
        self.database.execute("PRAGMA case_sensitive_like = ON")
        for name, function in (("ilike", ilike), ("contains", contains)):
            self.database.create_function(name, 2, function, deterministic=True)
        for change in (lower, upper, lower_list, upper_list):
            self.database.create_function(change.__name__, 1, change, deterministic=True)
        names = ", ".join(f'"{name}"' for name in ALL_COLUMNS)
        self.database.execute(f"CREATE TABLE d ({names})")
        self.database.executemany(
            f"INSERT INTO d VALUES ({', '.join('?' * len(ALL_COLUMNS))})",
            [plain(document) for document in snapshot.iter_documents()],
        )
        self.numbers = numbered(snapshot)
        stored = {  # the names in segments, as the filters themselves find them
            name: conditions.parse(f'"{name}" IS NULL', COLUMNS).stored[name]
            for name in ALL_COLUMNS
        }
        self.columns = [
            conditions.document_columns(segment, ALL_COLUMNS, stored)
            for segment in snapshot.segments
        ]

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.database.close()

    def compare(self, drawn: RandomFilter) -> list[int] | None:
        """Return which documents both select, None where the filter is refused, as it must be."""
        try:
            condition = conditions.parse(drawn.ours, COLUMNS).condition
        except QueryError:
            if drawn.sqlite is not None:
                raise
            return None
        assert drawn.sqlite is not None, f"{drawn.ours} was not refused"
        found: list[int] = []
        for columns, numbers in zip(self.columns, self.numbers, strict=True):
            marks = condition(columns).fill_null(False).to_numpy(zero_copy_only=False)
            found += numbers[marks & (numbers > 0)].tolist()
        expected = [
            n for (n,) in self.database.execute(f"SELECT rowid FROM d WHERE {drawn.sqlite}")
        ]
        assert found == expected, drawn
        return found

    def compare_searches(self, drawn: RandomFilter) -> None:
        """Search under the filter: the hits are all passages of the documents it selects."""
        selected = self.compare(drawn)
        if selected is None:
            return
        mask = self.snapshot.filter_mask(drawn.ours)
        _, rows = self.snapshot.search(some_vectors(1), self.snapshot.n_rows, mask)
        rows = rows[rows >= 0]
        docs = np.unique(self.snapshot.doc_of(rows))
        names = set(self.snapshot.doc_ids(docs))
        wanted = self.names(selected)
        assert (names, mask.n_docs, mask.n_rows) == (wanted, len(wanted), len(rows)), drawn
        assert np.array_equal(np.sort(rows), self.snapshot.rows_of(docs)), drawn

    def names(self, selected: list[int]) -> set[str]:
        """Read the ids of documents by their numbers in sqlite."""
        every = dict(self.database.execute("SELECT rowid, doc_id FROM d"))
        return {every[n] for n in selected}


def delete_at_random(store: IndexStore, peer: Peer, rng: random.Random) -> int:
    """Delete what some filter selects: all else stays. Returns 1 when something was selected."""
    for drawn in iter(FilterGenerator(rng).draw, None):
        selected = peer.compare(drawn) if drawn.sqlite else None
        if selected:
            break
    before = {document.doc_id for document in store.snapshot.iter_documents()}
    with store.writer() as writer:
        assert writer.delete_where(drawn.ours) == len(selected or ())
    after = {document.doc_id for document in store.snapshot.iter_documents()}
    assert after == before - peer.names(selected or []), drawn
    return 1


def random_index(path: Path, rng: random.Random) -> IndexStore:
    """Three segments: one lacks a column, and has integers where the others have floats.

    Documents have one or two passages; some are replaced, and some deleted.
    """
    older = {name: kind for name, kind in COLUMNS.items() if name != "late"}
    store = IndexStore.create(
        path, Manifest.new(VectorSettings(dim=8), {**older, "mixed": "int64"})
    )
    names = [f"{text}{n}" for n, text in enumerate(rng.choices(TEXTS, k=50))]
    with store.writer() as writer:
        add(writer, names[:18], rng)
        writer._columns = dict(COLUMNS)  # as `add_columns` does
        add(writer, names[18:36], rng)
        writer.delete(rng.sample(names[:36], 4))
        add(writer, [*names[36:], *rng.sample(names[:36], 6)], rng)
    return store


def add(writer: IndexWriter, names: list[str], rng: random.Random) -> None:
    columns = writer._columns
    documents = [
        Document(name, "x", rng.choice(TEXTS), {c: value(rng, c, columns[c]) for c in columns})
        for name in names
    ]
    chunks = [rng.choice([1, 1, 2]) for _ in documents]
    vectors = some_vectors(sum(chunks), seed=rng.randrange(1000))
    writer.commit(make_batch(documents, vectors, chunks))


def value(rng: random.Random, column: str, kind: str) -> MetadataValue:
    """Draw a value for a document; every fifth is missing."""
    if rng.random() < 0.2:
        return None
    if (column, kind) == ("mixed", "int64"):  # as float64 later, which holds few wide integers
        return rng.choice([n for n in INTEGERS if float(n) == n])
    if kind in LISTS:
        return rng.choices(VALUES[kind[5:-1]], k=rng.choice([0, 1, 2, 5]))
    return cast(MetadataValue, rng.choice(VALUES[kind]))


def numbered(snapshot: Snapshot) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Number the live documents from 1, as sqlite numbers its rows; 0 is a dead one."""
    numbers, n_docs = [], 0
    for i, segment in enumerate(snapshot.segments):
        marks = snapshot.live_docs(i)
        live = np.ones(segment.record.n_docs, bool) if marks is None else marks
        numbers.append(np.where(live, n_docs + np.cumsum(live), 0))
        n_docs += int(live.sum())
    return numbers


def plain(document: Document) -> list[object]:
    """Give a document's values the types that sqlite has."""
    return [sqlite_value(v) for v in values_of(document)]


def values_of(document: Document) -> Iterator[MetadataValue]:
    for name in ALL_COLUMNS:
        of_document = {"doc_id": document.doc_id, "own.title": document.title}
        stored = "title" if name == "meta.title" else name
        yield of_document[name] if name in of_document else document.metadata.get(stored)


def sqlite_value(of: MetadataValue) -> object:
    if isinstance(of, list):
        return json.dumps([sqlite_value(item) for item in of])
    if isinstance(of, datetime):
        return stored_time(of)
    return of.isoformat() if isinstance(of, date) else of


def contains(value: object, items: str | None) -> bool | None:
    """Whether a list in JSON has a value; Python compares integers and floats exactly."""
    return None if items is None else value in json.loads(items)


def lower(text: str | None) -> str | None:
    """Unicode's simple mapping: one character for each."""
    return None if text is None else "".join(char.lower()[0] for char in text)


def upper(text: str | None) -> str | None:
    """Unicode's simple mapping, and Arrow's ẞ for ß, which has no simple upper case."""
    return None if text is None else "".join("ẞ" if c == "ß" else c.upper() for c in text)


def lower_list(items: str | None) -> str | None:
    return None if items is None else json.dumps([lower(text) for text in json.loads(items)])


def upper_list(items: str | None) -> str | None:
    return None if items is None else json.dumps([upper(text) for text in json.loads(items)])


def ilike(pattern: str, text: str | None) -> bool | None:
    """SQL's LIKE without case, by Python's regular expressions."""
    if text is None:
        return None
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    marks = {"%": ".*", "_": "."}
    body = "".join(marks.get(part) or re.escape(part[-1]) for part in parts)
    return re.fullmatch(body, text, re.DOTALL | re.IGNORECASE) is not None
