"""The tools without the protocol: their schemas, their answers and their errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import Fusion, SearchOptions
from sbert_search.serve.access import AccessTokens, ServerLimits
from sbert_search.serve.mcp_tools import MAX_COLUMNS, TOOLS, described_indexes
from sbert_search.serve.problems import Problem
from sbert_search.serve.queue import Work
from sbert_search.serve.state import Served, ServeSettings, open_served


@pytest.fixture(scope="module")
def served(built: Path) -> Served:
    return opened({"my.index": built}, ServerLimits(k=5, filter_chars=50, query_chars=60))


def opened(indexes: Mapping[str, Path], limits: ServerLimits | None = None, **more: Any) -> Served:
    limits, tokens = limits or ServerLimits(), AccessTokens({})
    return open_served(ServeSettings(indexes=indexes, tokens=tokens, limits=limits, **more))


def call(served: Served, name: str, **arguments: object) -> Any:
    answer = asyncio.run(TOOLS[name].call(served, arguments, Work()))
    return msgspec.to_builtins(answer)


def test_the_tools_answer_as_the_engine_does(served: Served, built: Path) -> None:
    engine = SearchEngine(built)
    found = call(served, "search", query="dough", k=2, mode="hybrid", where="year < 2015")
    expected = engine.search("dough", k=2, mode="hybrid", where="year < 2015")
    assert [(hit["id"], hit["score"], hit["text"]) for hit in found["hits"]] == [
        (hit.doc_id, hit.score, hit.text) for hit in expected
    ]
    assert (found["index"], found["commit"]) == ("my.index", expected.commit)
    assert (found["total"], found["suggestion"]) == (1, None)
    assert call(served, "search", query="dogh")["suggestion"] == "dough"
    assert len(call(served, "search", query="dough")["hits"]) == 3
    assert call(served, "search", query="dough", k=2, offset=1)["hits"][0]["rank"] == 2
    assert call(served, "search", query="dough", k=2.0, offset=1.0)["hits"][0]["rank"] == 2
    near = call(served, "similar", id="mill", k=1, where="year > 2015")
    assert [hit["id"] for hit in near["hits"]] == ["vaccines"]
    document = call(served, "document", id="mill", index="my.index")
    assert document["text"] == "The mill stands by the river. Water turns its wheel."
    assert document["metadata"] == {"year": 1999}


def test_a_search_that_names_no_mode_gets_that_of_the_server(built: Path) -> None:
    defaults = SearchOptions(mode="hybrid", fusion=Fusion(dense_weight=0.9), fuzzy=1)
    served = opened({"my.index": built}, defaults=defaults)
    properties: Any = TOOLS["search"].input_schema(served)["properties"]
    assert properties["mode"]["default"] == "hybrid"
    assert properties["k"]["default"] == 10
    found = call(served, "search", query="wheal", k=1)
    expected = SearchEngine(built).search("wheal", 1, options=defaults)
    assert [(hit["id"], hit["score"]) for hit in found["hits"]] == [
        (hit.doc_id, hit.score) for hit in expected
    ]
    assert found["total"] == 1
    assert call(served, "search", query="wheal", mode="dense")["total"] == 3


def test_hits_are_grouped_or_are_passages(tmp_path: Path) -> None:
    rows = [
        {
            "_id": "a",
            "text": "Mills grind the grain all day. Mills need some wind to turn.",
            "kind": "craft",
        },
        {"_id": "b", "text": "Mills need water.", "kind": "craft"},
        {"_id": "c", "text": "Bread is baked.", "kind": "food"},
    ]
    cut: Any = {"on_truncate": "chunk", "chunk_tokens": 6}
    Index.build(rows, out=tmp_path / "mills", model="hashing", **cut)
    served = opened({"mills": tmp_path / "mills"})

    def found(**options: object) -> list[str]:
        answer = call(served, "search", query="mills", mode="dense", **options)
        return sorted(hit["id"] for hit in answer["hits"])

    assert found() == ["a", "b", "c"]
    assert len(found(group_by="kind")) == 2
    assert found(passages=True) == ["a", "a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "arguments", "status", "param"),
    [
        ("search", {}, 400, "query"),
        ("search", {"query": " "}, 400, "query"),
        ("search", {"query": "x" * 61}, 413, "query"),
        ("search", {"query": "x", "k": 6}, 400, "k"),
        ("search", {"query": "x", "k": 0}, 400, "k"),
        ("search", {"query": "x", "k": 10**30}, 400, "k"),
        ("search", {"query": "x", "k": "3"}, 400, "k"),
        ("search", {"query": "x", "k": float("nan")}, 400, "k"),
        ("search", {"query": "x", "k": float("inf")}, 400, "k"),
        ("search", {"query": "x", "k": 1.5}, 400, "k"),
        ("search", {"query": "x", "K": 3}, 400, "K"),
        ("search", {"query": "x", "mode": "magic"}, 400, "mode"),
        ("search", {"query": "x", "where": "nope = 1"}, 400, "where"),
        ("search", {"query": "x", "where": "year = 1 AND " * 9}, 413, "where"),
        ("search", {"query": "x", "index": "/etc"}, 404, "index"),
        ("search", {"query": "x", "rerank": True}, 400, "rerank"),
        ("search", {"query": "x", "group_by": "nope"}, 400, "group_by"),
        ("search", {"query": "x", "group_by": "year", "passages": True}, 400, "group_by"),
        ("similar", {"id": "none"}, 404, "id"),
        ("similar", {"id": "mill", "k": 6}, 400, "k"),
        ("similar", {"id": ["mill"]}, 400, "id"),
        ("document", {"id": "none"}, 404, "id"),
        ("document", {"id": "mill", "index": "none"}, 404, "index"),
    ],
)
def test_a_wrong_argument_is_named(
    served: Served, name: str, arguments: Mapping[str, object], status: int, param: str
) -> None:
    with pytest.raises(Problem) as refused:
        call(served, name, **arguments)
    assert (refused.value.status, refused.value.param) == (status, param)


def test_the_schema_of_arguments_has_the_limits_of_the_server(served: Served) -> None:
    schema: Any = TOOLS["search"].input_schema(served)
    assert (schema["type"], schema["required"]) == ("object", ["query"])
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert properties["k"] | {"description": ""} == {
        "type": "integer",
        "minimum": 1,
        "maximum": 5,
        "default": 5,
        "description": "",
    }
    assert (properties["query"]["maxLength"], properties["where"]["maxLength"]) == (60, 50)
    assert properties["index"]["enum"] == ["", "my.index"]
    assert "rerank" not in properties  # the server has no reranker
    for tool in TOOLS.values():
        described: Any = tool.input_schema(served)
        assert all("description" in one for one in described["properties"].values())
        result: Any = tool.output_schema()
        assert result["type"] == "object"
        assert "#/components" not in str(result)


def test_the_indexes_are_described_with_their_columns(served: Served, tmp_path: Path) -> None:
    described = described_indexes(served)
    assert described.splitlines()[1] == "- my.index: 3 documents. Columns: year (int64)."
    rows = [{"_id": "a", "text": "b", **{f"c{n:02}": n for n in range(MAX_COLUMNS + 2)}}]
    Index.build(rows, out=tmp_path / "wide", model="hashing")
    assert "c49 (int64), 2 more." in described_indexes(opened({"wide": tmp_path / "wide"}))


def test_advice_can_be_followed_by_every_caller(served: Served, tmp_path: Path) -> None:
    """No message names an argument of Python or an option of the command line."""
    plain = tmp_path / "no-words.index"
    Index.build([{"_id": "a", "text": "mill"}], out=plain, model="hashing", lexical=None)
    indexes = opened({"no-words.index": plain})
    for one, arguments in (
        (served, {"query": "-wheel"}),
        (indexes, {"query": "mill", "mode": "lexical"}),
        (indexes, {"query": "+mill"}),
        (served, {"query": "mill", "where": "nope = 1"}),
        (served, {"query": "mill", "where": "text LIKE 'a'"}),
    ):
        with pytest.raises(Problem) as refused:
            call(one, "search", **arguments)
        message = str(refused.value)
        assert not re.search(r"--[a-z]|syntax|\w\(|sbert-search ", message), message
    # The two remedies: double quotes; and the mode dense without operators.
    assert call(served, "search", query='"-wheel"')["hits"][0]["id"] == "mill"
    assert call(indexes, "search", query="mill", mode="dense")["hits"]
