"""Sorting hits by a column, and listing documents without a query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import QueryError
from sbert_search.index.index import Index
from sbert_search.records import Query
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import SearchMode
from tests.cli.process import sbert_search, told

# "d" has no price; "f" has no word of the query "red fish".
ROWS: list[dict[str, Any]] = [
    {"_id": "a", "text": "red fish", "price": 3.5, "kind": "x", "tags": ["t"]},
    {"_id": "b", "text": "red boat", "price": 1.0, "kind": "y"},
    {"_id": "c", "text": "red fish pond", "price": 3.5, "kind": "y"},
    {"_id": "d", "text": "fish", "kind": "x"},
    {"_id": "e", "text": "fish red", "price": 2.0},
    {"_id": "f", "text": "green tree", "price": 0.5, "kind": "x"},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sorting") / "i"
    index = Index.build(ROWS[:4], out=out, model=HashingEmbedder())
    index.add(ROWS[4:], model=HashingEmbedder())  # a second segment
    return out


@pytest.fixture(scope="module")
def engine(path: Path) -> SearchEngine:
    return SearchEngine(Index.open(path), HashingEmbedder())


def ids(hits: Any) -> list[str]:
    return [hit.doc_id for hit in hits]


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_documents_with_a_word_are_in_the_order_of_the_column(
    engine: SearchEngine, mode: SearchMode
) -> None:
    # "a" scores more than "c", which has the same price.
    assert ids(engine.search("red fish", mode=mode, sort="price")) == ["b", "e", "a", "c", "d"]
    found = engine.search("red fish", mode=mode, sort="-price")
    assert ids(found) == ["a", "c", "e", "b", "d"]
    assert len(found) == engine.count("red fish", mode=mode) == 5
    scores = {hit.doc_id: hit.score for hit in engine.search("red fish", mode=mode)}
    assert all(hit.score == scores[hit.doc_id] for hit in found)
    page = engine.search("red fish", 2, mode=mode, sort="-price", offset=1)
    assert [(hit.rank, hit.doc_id) for hit in page] == [(2, "c"), (3, "e")]
    assert ids(engine.search("+pond -tree", mode=mode, sort="price")) == ["c"]
    least = scores["e"]
    assert set(ids(engine.search("red fish", mode=mode, sort="price", min_score=least))) == {
        name for name, score in scores.items() if score >= least
    }


@pytest.mark.parametrize("group", [True, False])
@pytest.mark.parametrize("least", [None, -1.0])
def test_documents_without_a_word_take_no_place_of_others(least: float | None, group: bool) -> None:
    vectors = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)
    rows: list[dict[str, Any]] = [
        {"_id": f"p{n}", "text": "lamp of brass" if n < 600 else "other goods", "price": n}
        for n in range(3000)
    ]
    engine = SearchEngine(Index.build(rows, vectors=vectors))
    for offset in range(0, 600, 200):
        page = engine.search(
            "lamp",
            200,
            vector=np.ones(8, np.float32),
            sort="price",
            offset=offset,
            min_score=least,
            group=group,
        )
        assert [hit.metadata["price"] for hit in page] == list(range(offset, offset + 200))


def test_dense_search_sorts_the_nearest_and_groups_follow_the_order(engine: SearchEngine) -> None:
    found = engine.search("red fish", mode="dense", sort="price")
    assert ids(found) == ["f", "b", "e", "a", "c", "d"]
    grouped = engine.search("red fish", mode="lexical", sort="price", group_by="kind")
    assert ids(grouped) == ["b", "e", "a"]  # "e" has no kind


def test_without_a_query_all_documents_that_pass_the_filter_match(engine: SearchEngine) -> None:
    found = engine.search(None, 2, where="price > 0.7", sort="price", offset=1)
    assert ([(hit.rank, hit.doc_id, hit.score) for hit in found], found.total) == (
        [(2, "e", 0.0), (3, "a", 0.0)],
        4,
    )
    assert ids(engine.search(None)) == list("abcdef")
    assert ids(engine.search(None, group_by="kind", sort="-price")) == ["a", "c", "e"]
    assert ids(engine.index.documents("price > 0.7", sort="-price")) == ["a", "c", "e", "b"]
    assert ids(engine.index.documents(sort="price", offset=4, limit=2)) == ["c", "d"]
    assert ids(engine.index.documents(offset=5)) == ["f"]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("kind,-price", "afdcbe"),  # "d" has no price, "e" no kind
        (["-kind", "price"], "bcfade"),
        ("-price, -doc_id", "caebfd"),
        (["-price", "kind", "title"], "acebfd"),
        ("", "abcdef"),
        ((), "abcdef"),
    ],
    ids=str,
)
def test_the_next_column_orders_documents_with_equal_values(
    engine: SearchEngine, order: str | list[str], names: str
) -> None:
    assert ids(engine.search(None, sort=order)) == list(names)
    assert ids(engine.index.documents(sort=order)) == list(names)


def test_hits_have_the_fields_that_are_chosen(engine: SearchEngine) -> None:
    (hit,) = (found := engine.search("red fish", k=1, fields="price,kind"))
    assert (hit.doc_id, hit.metadata) == ("a", {"price": 3.5, "kind": "x"})
    assert (hit.title, hit.text, hit.passage) == ("", "", "")
    assert hit.score == engine.search("red fish", k=1)[0].score
    assert {"price", "kind"} <= {*found.to_arrow().column_names}
    assert "tags" not in found.to_arrow().column_names
    (hit,) = engine.search(None, where="doc_id = 'd'", fields=["text", "price"])
    assert (hit.text, hit.passage, hit.metadata) == ("fish", "fish", {})  # it has no price
    assert [(hit.text, dict(hit.metadata)) for hit in engine.similar("a", 1, fields=[])] == [
        ("", {})
    ]
    refused: list[tuple[Any, str]] = [("prise", "did you mean 'price'"), ([3], "pass names of col")]
    for wrong, message in refused:
        with pytest.raises(QueryError, match=message):
            engine.search("red", fields=wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sort": 5}, "sort is 5; pass names of columns"),
        ({"sort": "price,cost"}, "Unknown column 'cost'"),
        ({"sort": "cost"}, "Unknown column 'cost'"),
        ({"sort": "-tags"}, r"sort is 'tags', a column whose values are lists \(list\[string\]\)"),
        ({"sort": "price", "diversity": 0.5}, "sort and diversity both order the hits"),
    ],
    ids=str,
)
def test_orders_that_cannot_be_are_refused(
    engine: SearchEngine, options: dict[str, Any], message: str
) -> None:
    for query in ("red", None):
        with pytest.raises(QueryError, match=message):
            engine.search(query, **options)
    with pytest.raises(QueryError, match="min_score needs the scores of a query"):
        engine.search(None, min_score=0.1)
    with pytest.raises(QueryError, match="limit is -1; it must be an integer of at least 0"):
        engine.index.documents(limit=-1)
    with pytest.raises(QueryError, match="sort is 'price'; a run is ordered by score"):
        engine.run([Query("q", "red")], sort="price")


def test_a_run_by_group_has_the_values_of_the_column(engine: SearchEngine) -> None:
    scores = {hit.doc_id: hit.score for hit in engine.search("red fish", mode="lexical")}
    run = engine.run([Query("q", "red fish")], mode="lexical", group_by="kind")
    assert run == {"q": {"x": scores["a"], "e": scores["e"], "y": scores["c"]}}
    with pytest.raises(QueryError, match="group_size is 2; a run is ordered by score"):
        engine.run([Query("q", "red")], group_by="kind", group_size=2)


def test_the_command_lists_sorts_and_groups(path: Path) -> None:
    done = sbert_search("search", path, "--where", "price > 1", "--sort", "-price", "-k", "2")
    assert "red fish pond" in done.out
    assert "2 of 3 documents" in done.err
    found = told("search", path, "red fish", "--sort", "price")
    assert [hit["doc_id"] for hit in found] == ["b", "e", "a", "c", "d"]
    found = told("search", path, "--sort", "price", "--facets", "kind")
    assert (found[0]["doc_id"], found[-1]["facet"]) == ("f", "kind")
    assert [next(iter(line)) for line in told("search", path, "--facets", "kind")] == ["facet"]
    found = told("search", path, "--sort", "-kind", "--sort=-price", "-k", "1", "--fields", "price")
    assert [(hit["doc_id"], hit["text"], hit["metadata"]) for hit in found] == [
        ("c", "", {"price": 3.5})
    ]
    found = told("search", path, "--like", "a", "--group-by", "kind", "--no-highlight")
    assert {hit["metadata"].get("kind") for hit in found} == {"y", None}


@pytest.fixture(scope="module")
def titled(tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    rows = [
        {"_id": name, "title": title, "text": "red fish", "day": day, "size": size, "code": code}
        for name, title, day, size, code in (
            ("b", "Pond", "03.11.2025", "9", "0123"),
            ("a", "", "25.01.2024", "12", "0456"),
            ("d", "Boat", "01.12.2025", "10", "0007"),
            ("c", "Pond", "unknown", "100", "1200"),
        )
    ]
    out = tmp_path_factory.mktemp("titled") / "i"
    return SearchEngine(Index.build(rows, out=out, model=HashingEmbedder()))


def test_title_and_id_order_documents_too(titled: SearchEngine) -> None:
    assert ids(titled.search(None, sort="doc_id")) == list("abcd")
    assert ids(titled.search("red", sort="-doc_id", k=2)) == ["d", "c"]
    assert ids(titled.search(None, sort="title")) == list("dbca")  # "a" has no title
    assert ids(titled.search(None, sort="-title")) == list("bcda")
    assert [document.doc_id for document in titled.index.documents(sort="doc_id", limit=1)] == ["a"]


@pytest.mark.parametrize("order", ["size desc", "size:asc", "+size"])
def test_another_way_to_write_an_order_gets_the_right_one(titled: SearchEngine, order: str) -> None:
    hint = r"did you mean 'size'\? Write COLUMN or, for the descending order, -COLUMN"
    with pytest.raises(QueryError, match=hint):
        titled.search(None, sort=order)


def test_texts_that_are_dates_or_numbers_are_one_warning(
    titled: SearchEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    for sort in ("day", "-day", "size", "code", "title"):
        titled.search(None, sort=sort)
    shown = capsys.readouterr().err
    assert shown.count("is sorted letter by letter") == 2
    assert "such as '01.12.2025'" in shown
    assert "--column-type day=date:%d.%m.%Y" in shown
    assert "--column-type size=int" in shown  # codes of equal length are in order


def test_a_listing_shows_no_scores_and_counts_groups(path: Path) -> None:
    done = sbert_search("search", path, "--where", "price > 1", "--sort", "-price", "-k", "2")
    assert done.out.splitlines()[0] == " 1  a"
    done = sbert_search("search", path, "--sort", "price", "--group-by", "kind", "-k", "1")
    assert "1 of 3 groups" in done.err  # "e" has no kind


def test_groups_are_counted_as_k_counts_them(engine: SearchEngine) -> None:
    assert engine.search(None, 1, group_by="kind").total == engine.count(group_by="kind") == 3
    assert engine.count("red fish", group_by="kind") == 3
    assert engine.count(where="price = 3.5", group_by="kind") == 2
    with pytest.raises(QueryError, match="whose values are lists"):
        engine.count(group_by="tags")
