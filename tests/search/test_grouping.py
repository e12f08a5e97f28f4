"""Groups by hand; tests/search/test_ordering.py compares them with a plain reading."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import QueryError
from sbert_search.index.index import Index
from sbert_search.records import Query
from sbert_search.search.engine import SearchEngine
from sbert_search.search.facets import within_groups
from sbert_search.search.options import Boost


def test_groups_are_ordered_by_their_best_document() -> None:
    groups = np.array([7, 3, 7, 7, 5, 3, 9])
    assert within_groups(groups, 2, 2).tolist() == [0, 2, 1, 5]
    assert within_groups(groups, 9, 1).tolist() == [0, 1, 4, 6]
    assert within_groups(groups, 0, 2).tolist() == []
    assert within_groups(np.empty(0, np.int64), 3, 2).tolist() == []


@given(st.lists(st.integers(-3, 3)), st.integers(0, 5), st.integers(1, 3))
def test_groups_are_those_of_a_plain_reading(groups: list[int], n: int, size: int) -> None:
    members: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    expected = [i for own in list(members.values())[:n] for i in own[:size]]
    assert within_groups(np.array(groups, np.int64), n, size).tolist() == expected


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    """The last 3 of 203 documents are the only ones of their groups, and the worst ones."""
    rows: list[dict[str, Any]] = [
        {"_id": str(n), "text": "red fish", "kind": "common", "tags": ["t"]} for n in range(200)
    ]
    rows += [{"_id": f"r{n}", "text": f"fish w{n} x y", "kind": f"rare {n}"} for n in range(3)]
    out = tmp_path_factory.mktemp("groups") / "i"
    return SearchEngine(Index.build(rows, out=out, model=HashingEmbedder()))


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize("size", [1, 3])
def test_k_groups_come_back_whenever_there_are_k(
    engine: SearchEngine, mode: Any, size: int
) -> None:
    hits = engine.search("red fish", 3, mode=mode, group_by="kind", group_size=size)
    kinds = [hit.metadata["kind"] for hit in hits]
    assert kinds[:size] == ["common"] * size
    assert len(set(kinds)) == 3
    more = engine.search("red fish", 9, mode=mode, group_by="kind", group_size=size)
    assert [hit.doc_id for hit in more][: len(hits)] == [hit.doc_id for hit in hits]
    assert {hit.metadata["kind"] for hit in more} == {"common", "rare 0", "rare 1", "rare 2"}
    page = engine.search("red fish", 2, mode=mode, group_by="kind", group_size=size, offset=1)
    assert [(hit.rank, hit.doc_id) for hit in page] == [
        (hit.rank, hit.doc_id) for hit in more[size : size + 2]
    ]


def test_pages_of_reordered_groups_do_not_overlap(tmp_path: Path) -> None:
    """150 documents of one group are the first candidates; boosts must not see the page."""
    rows = [{"_id": f"a{i}", "text": f"apple apple u{i}", "g": "a", "n": 1} for i in range(150)]
    rows += [
        {"_id": f"{g}{i}", "text": f"apple pie crust {g}{i}", "g": g, "n": 1000 - 10 * j - i}
        for j, g in enumerate("bcdefgh")
        for i in range(3)
    ]
    engine = SearchEngine(Index.build(rows, out=tmp_path / "i", model=HashingEmbedder()))
    search = partial(engine.search, "apple", group_by="g", mode="lexical", boost=Boost("n", 0.5))
    for size in (1, 2):
        every = [hit.doc_id for hit in search(8, group_size=size)]
        assert len({name[0] for name in every}) == 8
        assert len(every) == 8 * size
        pages = [search(2, offset=start, group_size=size) for start in (0, 2, 4, 6)]
        assert [hit.doc_id for page in pages for hit in page] == every


def test_reranked_groups_are_complete(tmp_path: Path) -> None:
    """The reranker brings a group to the top of which one document was a candidate."""
    rows = [{"_id": f"a{i}", "text": f"red red fish a{i}", "g": "a"} for i in range(120)]
    rows.insert(50, {"_id": "b0", "text": "red red fish bb", "g": "b"})
    rows += [{"_id": f"b{i}", "text": f"fish {'water ' * i} b{i}", "g": "b"} for i in (1, 2, 3)]

    class LastFirst:
        def predict(self, pairs: list[tuple[str, str]], /) -> list[float]:
            return [float("bb" in text) for _, text in pairs]

    index = Index.build(rows, out=tmp_path / "i", model=HashingEmbedder())
    engine = SearchEngine(index, reranker=LastFirst())
    hits = engine.search("red fish", 1, mode="lexical", group_by="g", group_size=3)
    assert [hit.doc_id for hit in hits] == ["b0", "b1", "b2"]
    strict = engine.search("red fish", 1, mode="lexical", group_by="g", group_size=3, min_score=0.5)
    assert [hit.doc_id for hit in strict] == ["b0"]  # the reranker did not score the others


def test_documents_without_a_value_are_groups_of_their_own(tmp_path: Path) -> None:
    rows = [
        {"_id": str(n), "text": f"red {'x ' * n}", **({"k": 1} if n > 2 else {})} for n in range(5)
    ]
    engine = SearchEngine(Index.build(rows, out=tmp_path / "i", model=HashingEmbedder()))
    hits = engine.search("red", group_by="k", mode="dense")
    assert [hit.doc_id for hit in hits] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("knd", "Unknown metadata column 'knd'; did you mean 'kind'"),
        ("tags", r"group_by is 'tags', whose values are lists \(list\[string\]\)"),
    ],
)
def test_a_column_that_cannot_group_is_refused(
    engine: SearchEngine, column: str, message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        engine.search("red", group_by=column)


def test_a_group_has_one_name_in_all_segments(tmp_path: Path) -> None:
    rows = [{"_id": "a", "text": "mill", "n": 2}, {"_id": "b", "text": "sea", "n": 0.0}]
    index = Index.build(rows[:1], out=tmp_path / "i", model=HashingEmbedder())
    index.add([{"_id": "c", "text": "wheel", "n": 2.0}, rows[1]])
    index.add([{"_id": "d", "text": "stone", "n": -0.0}])
    engine = SearchEngine(index)
    queries = [Query(word, word) for word in ("mill", "wheel", "sea", "stone")]
    for n_segments in (3, 1):
        assert len(index.state.segments) == n_segments
        runs = engine.run(queries, k=1, group_by="n", mode="lexical").values()
        assert [[*run] for run in runs] == [["2.0"], ["2.0"], ["0.0"], ["0.0"]]
        (hit,) = engine.search("mill", mode="lexical")
        read = [hit.metadata, *(document.metadata for document in index.documents("n = 2"))]
        every = next(iter(index.documents())).metadata
        assert repr([*read, every]) == repr([{"n": 2.0}] * 4)
        index.compact()
