from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import QueryError
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import Boost
from sbert_search.search.queries import example_query
from tests.cli.process import sbert_search
from tests.search.corpus import write_jsonl

TEXTS = {
    "a": "river water mill",
    "b": "river water boat",
    "c": "bread dough yeast",
    "d": "bread flour mill",
    "e": "river river river",
}


@pytest.fixture
def engine(tmp_path: Path) -> SearchEngine:
    rows = [{"_id": i, "text": text, "n": n} for n, (i, text) in enumerate(TEXTS.items())]
    source = write_jsonl(tmp_path / "docs.jsonl", rows)
    return SearchEngine(Index.build(source, out=tmp_path / "index", model=HashingEmbedder()))


def vector(*texts: str) -> Any:
    return HashingEmbedder().encode_document(list(texts)).mean(axis=0)


def ids(hits: list[Any]) -> list[str]:
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    return [hit.doc_id for hit in hits]


def test_hits_are_like_the_document_and_not_the_document(engine: SearchEngine) -> None:
    hits = engine.similar("a", 3)
    assert ids(hits) == ["b", "e", "d"]
    cosines = [float(vector(TEXTS["a"]) @ vector(TEXTS[i])) for i in ("b", "e", "d")]
    assert [hit.score for hit in hits] == pytest.approx(cosines, abs=1e-6)
    assert [hit.score for hit in hits] == pytest.approx([2 / 3, 3**-0.5, 1 / 3], abs=1e-6)


def test_a_vector_is_an_example_too(engine: SearchEngine) -> None:
    assert ids(engine.similar(vector(TEXTS["c"]) * 7, 2)) == ["c", "d"]
    assert ids(engine.similar([float(x) for x in vector(TEXTS["c"])], 2)) == ["c", "d"]
    both = np.stack([vector(TEXTS["c"]), vector(TEXTS["e"])])
    assert set(ids(engine.similar(both, 2))) == {"c", "e"}


def test_unlike_pushes_hits_away(engine: SearchEngine) -> None:
    # a and d share "mill" only; away from e, its "river" counts against the documents that have it.
    assert ids(engine.similar("a", 3, unlike=["e"]))[0] == "b"
    assert ids(engine.similar(["a", "d"], 5)) == ["b", "e", "c"]
    assert ids(engine.similar(["a", "d"], 5, unlike="e")) == ["c", "b"]
    query, doc_ids = example_query(engine.index.state, ["a", "d"], ["e"])
    unit = {i: vector(TEXTS[i]) for i in TEXTS}
    assert doc_ids == ["a", "d", "e"]
    np.testing.assert_allclose(query, unit["a"] + unit["d"] - unit["e"], atol=1e-6)


def test_a_document_of_several_passages_has_their_mean(tmp_path: Path) -> None:
    model = HashingEmbedder(64, max_len=2)
    index = Index.from_texts(["one two three four", "five"], model=model, on_truncate="chunk")
    query, _ = example_query(index.state, "0")
    passages = HashingEmbedder(64).encode_document(["one two", "three four"]).mean(axis=0)
    np.testing.assert_allclose(query, passages / np.linalg.norm(passages), atol=1e-6)


def test_the_filter_and_k_hold(engine: SearchEngine) -> None:
    assert ids(engine.similar("a", 10, where="n >= 2")) == ["e", "d", "c"]
    assert ids(engine.similar("a", 1)) == ["b"]
    assert len(engine.similar("a", 100)) == 4


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ([], "Name at least one document or vector"),
        ("x", "holds no document with the id 'x'"),
        (["a", 7], "holds no document with the id '7'"),
        (b"a", "b'a' is not an id"),
        (None, "None is not an id"),
        (0.5, "0.5 is not an id"),
        (np.array(5), r"array\(5\) is not an id"),
        (np.ones(3), r"shape \(3,\); a vector of this index has \(384,\)"),
        (np.full(384, np.nan), "not finite"),
        ([[0.0, "a"]], "An example is not a vector"),
        (np.zeros(384), "cancel out"),
    ],
)
def test_bad_examples_are_named(engine: SearchEngine, like: Any, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        engine.similar(like)


def test_a_file_that_is_no_document_names_its_pages() -> None:
    rows = [{"id": f"a.pdf#page={n}", "text": f"page {n}"} for n in (2, 3, 12)]
    engine = SearchEngine(
        Index.build([*rows, {"id": "b.pdf#page=1", "text": "x"}], model="hashing")
    )
    known = (
        r"id 'a\.pdf'\. Each page of it is a document: 'a.pdf#page=2' \.\.\. 'a.pdf#page=12'\. Name"
    )
    with pytest.raises(QueryError, match=known):
        engine.similar("a.pdf")
    with pytest.raises(QueryError, match=r"document: 'b.pdf#page=1'\. Name one"):
        engine.similar("b.pdf")


def test_a_search_by_example_loads_no_model(engine: SearchEngine, tmp_path: Path) -> None:
    done = sbert_search(
        "search", tmp_path / "index", "--like", "a", "--unlike", "e", "--json", "-k", 2
    )
    assert [record["doc_id"] for record in done.records] == ["b", "d"]
    assert "Model" not in done.err
    variable = {"SBERT_SEARCH_DEVICE": "cpu"}  # is for other commands, and no mistake here
    assert sbert_search("search", tmp_path / "index", "--like", "a", env=variable).code == 0
    wrong = sbert_search("search", tmp_path / "index", "--like", "a", "--mode", "hybrid")
    assert (wrong.code, "--mode has no effect with --like" in wrong.err) == (2, True)
    both = sbert_search("search", tmp_path / "index", "a query", "--like", "a")
    assert (both.code, "Ask one QUERY" in both.err) == (2, True)


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_pages_join_to_the_whole_ranking(engine: SearchEngine, mode: Any) -> None:
    whole = engine.search("river mill", 10, mode=mode)
    parts = [engine.search("river mill", 2, mode=mode, offset=start) for start in (0, 2, 4, 6)]
    joined = [hit for part in parts for hit in part]
    assert [(hit.rank, hit.doc_id, hit.score) for hit in joined] == [
        (hit.rank, hit.doc_id, hit.score) for hit in whole
    ]
    middle = whole[1].score
    kept = engine.search("river mill", 10, mode=mode, min_score=middle)
    assert kept == [hit for hit in whole if hit.score >= middle]
    assert engine.search("river mill", 10, mode=mode, min_score=1e9) == []
    assert engine.search("river mill", 1, mode=mode, offset=1, min_score=middle) == kept[1:2]


def test_examples_may_come_from_a_generator(engine: SearchEngine) -> None:
    given: Any = (doc_id for doc_id in ("a", "d"))
    assert ids(engine.similar(given, 3)) == ids(engine.similar(["a", "d"], 3))


@pytest.mark.parametrize(
    "options",
    [
        {"offset": 1},
        {"min_score": 0.3},
        {"sort": "-n"},
        {"boost": Boost("n", 0.5, "linear")},
        {"diversity": 0.7},
        {"where": ("n > ?", [0]), "sort": "n", "offset": 1},
        {"group_by": "kind", "group_size": 2},
    ],
    ids=str,
)
def test_options_mean_the_same_as_in_a_search_by_the_vector(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    rows = [
        {"_id": i, "text": text, "n": n, **({} if i == "a" else {"kind": "xy"[n % 2]})}
        for n, (i, text) in enumerate(TEXTS.items())
    ]
    engine = SearchEngine(Index.build(rows, out=tmp_path / "i", model=HashingEmbedder()))
    example = vector(TEXTS["a"])
    for k in (1, 2, 10):
        asked: dict[str, Any] = {"mode": "dense", **options, "where": options.get("where", "n > 0")}
        expected = engine.search(example, k, **asked)
        found = engine.similar("a", k, **options)
        assert [(hit.rank, hit.doc_id) for hit in found] == [
            (hit.rank, hit.doc_id) for hit in expected
        ]
        assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected])


def test_groups_of_the_examples_are_left_out_however_large(tmp_path: Path) -> None:
    rows = [{"_id": f"a{n}", "text": "river mill", "file": "a"} for n in range(30)]
    rows += [{"_id": f"b{n}", "text": f"river w{n}", "file": f"b{n // 2}"} for n in range(6)]
    engine = SearchEngine(Index.build(rows, out=tmp_path / "i", model=HashingEmbedder()))
    files = [hit.metadata["file"] for hit in engine.similar("a3", 3, group_by="file")]
    assert set(files) == {"b0", "b1", "b2"}
    pairs = engine.similar("a3", 2, group_by="file", group_size=2, offset=1)
    assert ids_of(pairs) == ids_of(engine.similar("a3", 3, group_by="file", group_size=2))[2:]
    by_id = engine.similar("a3", 2, group_by="file", sort="-doc_id")
    assert ids_of(by_id) == ["b5", "b3"]


def ids_of(hits: Any) -> list[str]:
    return [hit.doc_id for hit in hits]


def test_options_that_need_a_text_are_refused_by_name(engine: SearchEngine) -> None:
    wrong: Any = {"mode": "hybrid"}
    with pytest.raises(TypeError, match="Unknown keyword 'mode'; known: boost, diversity"):
        engine.similar("a", **wrong)
    with pytest.raises(QueryError, match="group_size is 2, but group_by names no column"):
        engine.similar("a", group_size=2)
