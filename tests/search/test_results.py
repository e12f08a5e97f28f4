"""Hits as a list, a table and a picture in a notebook."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError
from sbert_search.index.index import Index
from sbert_search.records import Hit, StageScore
from sbert_search.search.engine import SearchEngine
from sbert_search.search.results import Hits
from tests.search.corpus import small_index

FIRST = Hit(
    rank=1,
    doc_id="a",
    score=0.5,
    text="the text",
    title="A",
    metadata={"year": 2001, "rank": 7, "day": date(2020, 2, 29)},
    matched_words=("text",),
    stages={"dense": StageScore(1, 0.9), "fused": StageScore(1, 0.5)},
)
SECOND = Hit(
    rank=2,
    doc_id="b",
    score=0.25,
    text="other",
    metadata={"year": 1999},
    stages={"fused": StageScore(2, 0.25)},
)
HITS = Hits([FIRST, SECOND], query="a text", mode="hybrid")


def test_a_search_gives_a_list_that_knows_its_query_and_mode(tmp_path: Path) -> None:
    engine = SearchEngine(small_index(tmp_path))
    hits = engine.search("river water", 2)
    assert isinstance(hits, list)
    assert (len(hits), hits.query, hits.mode) == (2, "river water", "hybrid")
    assert hits == list(hits)
    assert (hits[:1].query, len(hits[:1]), hits[0].doc_id) == ("river water", 1, "mill")
    assert engine.search("water -bread").query == "water -bread"
    many = engine.search_many(["river", "dough"], mode="lexical")
    assert [(found.query, found.mode) for found in many] == [
        ("river", "lexical"),
        ("dough", "lexical"),
    ]
    assert engine.similar("mill", 2).mode == "dense"
    again = copy.deepcopy(hits)
    assert (type(again), again, again.query) == (Hits, hits, hits.query)


def test_a_table_has_typed_columns_of_hits_stages_and_metadata() -> None:
    table = HITS.to_arrow()
    assert table.schema.field("matched_words").type == pa.list_(pa.string())
    assert table.to_pylist() == [
        {
            **{
                "rank": 1,
                "doc_id": "a",
                "score": 0.5,
                "title": "A",
                "text": "the text",
                "passage": "",
                "chunk": 0,
            },
            **{"best_sentence": "", "matched_words": ["text"], "dense_rank": 1, "dense_score": 0.9},
            **{"fused_rank": 1, "fused_score": 0.5, "year": 2001, "meta.rank": 7},
            "day": date(2020, 2, 29),
        },
        {
            **{
                "rank": 2,
                "doc_id": "b",
                "score": 0.25,
                "title": "",
                "text": "other",
                "passage": "",
                "chunk": 0,
            },
            **{"best_sentence": "", "matched_words": [], "dense_rank": None, "dense_score": None},
            **{"fused_rank": 2, "fused_score": 0.25, "year": 1999, "meta.rank": None, "day": None},
        },
    ]
    empty = Hits().to_arrow()
    assert (empty.num_rows, empty.schema.field("score").type) == (0, pa.float64())


def test_a_table_has_all_metadata_columns_of_the_index(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"_id": "a", "text": "river mill", "year": 1, "day": date(2020, 2, 29), "score": 0.5},
        {"_id": "b", "text": "bread", "tags": ["x"], "kind": "food", "sold": True},
        {"_id": "c", "text": "oven", "seen": datetime(2021, 2, 3, 4, tzinfo=UTC), "ns": [1, 2]},
        {"_id": "d", "text": "wheel"},
    ]
    engine = SearchEngine(Index.build(rows, out=tmp_path / "i", model="hashing:32"))
    whole = engine.search("river mill", 4, mode="dense").to_arrow()
    assert whole.num_rows == 4
    inferred = Hits(engine.search("river mill", 4, mode="dense")).to_arrow()
    for found in (
        engine.search("wheel", 1, mode="dense"),
        engine.search("river mill", 4, mode="dense")[:1],
        engine.search("river mill", where="year = 2", mode="dense"),
        copy.deepcopy(engine.similar("a", 1)),
    ):
        table = found.to_arrow()
        named = [name for name in table.column_names if not name.startswith("dense_")]
        assert named == [n for n in whole.column_names if not n.startswith("dense_")]
        for name in named:
            assert table.schema.field(name).type == whole.schema.field(name).type, name
            assert table.schema.field(name).type == inferred.schema.field(name).type, name
        assert "meta.score" in named
        assert list(found.to_pandas().columns) == table.column_names
    assert set(Hits(engine.search("wheel", 1)).to_arrow().column_names).isdisjoint({"year", "tags"})


def test_a_column_that_became_float_keeps_its_large_integers(tmp_path: Path) -> None:
    index = small_index(tmp_path, [{"_id": "a", "text": "mill", "n": 2**60}])
    index.add([{"_id": "b", "text": "river", "n": 1.5}], model=HashingEmbedder())
    hits = SearchEngine(index, HashingEmbedder()).search("mill", mode="dense")
    assert [hit.metadata["n"] for hit in hits] == [2**60, 1.5]  # each as its segment stores it
    assert hits.to_arrow().column("n").to_pylist() == [2.0**60, 1.5]


def test_a_table_loses_no_column_by_its_name() -> None:
    values = {"rank": 7, "meta.rank": 8}
    (row,) = Hits([replace(FIRST, metadata=values)]).to_arrow().to_pylist()
    assert (row["rank"], row["meta.rank"], row["meta.meta.rank"]) == (1, 7, 8)


def test_a_frame_has_the_columns_of_the_table() -> None:
    frame = HITS.to_pandas()
    assert list(frame.columns) == HITS.to_arrow().column_names
    assert frame["score"].tolist() == [0.5, 0.25]
    assert frame["year"].dtype == "int64"
    assert len(Hits().to_pandas()) == 0


def test_without_pandas_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        HITS.to_pandas()


def test_tables_are_loaded_when_they_are_made() -> None:
    code = (
        "import sys; from sbert_search import Hit, Hits; repr(Hits([Hit(1, 'a', 0.5, 'x')]));"
        "loaded = {'pandas', 'pyarrow'} & set(sys.modules); assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class Tags(HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("field", ["doc_id", "title", "text", "best_sentence", "metadata", "query"])
def test_no_text_of_a_document_becomes_a_tag(field: str) -> None:
    evil = "<script>alert('1')</script>\x1b[2J\"><img src=x onerror=alert(1)>"
    fields: dict[str, Any] = {"doc_id": "d", "text": "t"}
    if field != "query":
        fields[field] = {evil: evil} if field == "metadata" else evil
    hits = Hits([Hit(rank=1, score=1.0, **fields)], query=evil)
    page = Tags(hits._repr_html_())
    assert page.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "br", "small", "p"}
    assert "<script>alert('1')</script>" in page.text
    assert "\x1b" not in page.text + repr(hits)


def test_a_notebook_shows_a_bounded_part_of_many_long_hits() -> None:
    hits = Hits(Hit(rank, str(rank), 1.0, "word " * 100_000) for rank in range(1, 101))
    page = hits._repr_html_()
    assert len(page) < 20_000
    assert "and 80 more hits" in page


def test_a_hit_is_one_short_line() -> None:
    assert repr(FIRST) == "<Hit 1: 0.5000 'a' 'A: the text'>"
    long = Hit(3, "x" * 500, -1.0, "line\nbreak " * 10_000)
    assert len(repr(long)) < 150
    assert "\n" not in repr(long)
    assert repr(long).endswith("...'>")
    assert repr(HITS).splitlines() == [
        "<Hits: 2 hits for 'a text'>",
        f"  {FIRST!r}",
        f"  {SECOND!r}",
    ]
    assert len(repr(Hits([FIRST] * 10_000)).splitlines()) == 22
