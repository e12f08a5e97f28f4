"""Searches without a number of hits get the default, or what the server allows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from safetensors.numpy import load_file, save_file

from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.serve.access import AccessTokens, ServerLimits
from sbert_search.serve.endpoint import Call
from sbert_search.serve.problems import Problem
from sbert_search.serve.queue import Work
from sbert_search.serve.routes.searching import answer_search, answer_similar, similar
from sbert_search.serve.search_schemas import (
    AskedSearch,
    SearchRequest,
    SimilarRequest,
    SimilarResponse,
)
from sbert_search.serve.state import Served, ServeSettings, open_served
from tests.models.tiny import TOKENS, tiny_static
from tests.serve.live import Live


def asked(**fields: object) -> AskedSearch:
    return msgspec.convert(fields, SearchRequest)


def served_with(built: Path, k: int, items: int = 100) -> Served:
    limits = ServerLimits(k=k, items=items)
    return open_served(ServeSettings(indexes={"i": built}, tokens=AccessTokens({}), limits=limits))


@pytest.mark.parametrize(("allowed", "found"), [(2, 2), (10, 3)])
def test_the_default_number_of_hits_is_one_that_the_server_allows(
    allowed: int, found: int, built: Path
) -> None:
    served = served_with(built, allowed)
    request = asked(query="dough wheel vaccine", mode="dense")
    answer = asyncio.run(answer_search(served, request, Work()))
    assert len(answer.results[0].hits) == found
    call = Call(None, {"id": "mill"}, {}, Work(), {})
    near = asyncio.run(similar(served, call)).value
    assert isinstance(near, SimilarResponse)
    assert len(near.hits) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            asked(query="dough", k=4, group_by="year", group_size=3),
            "group_size is 12; it may be at most 10",
        ),
        (
            asked(queries=["a"] * 17, rerank=True, rerank_depth=1000),
            "17 queries with 1,000 documents to rerank for each are more than",
        ),
    ],
)
def test_groups_and_pairs_are_limited(built: Path, body: AskedSearch, message: str) -> None:
    with pytest.raises(Problem, match=message):
        asyncio.run(answer_search(served_with(built, 10), body, Work()))


def test_a_column_that_is_named_twice_is_counted_once(built: Path) -> None:
    body = asked(query="dough", facets=["year", "year"])
    served = served_with(built, 10, items=1)  # texts of a request, and not columns
    assert len(asyncio.run(answer_search(served, body, Work())).facets) == 1


def test_facets_are_those_of_a_query_in_a_list(built: Path) -> None:
    served = served_with(built, 10)
    forms: list[dict[str, object]] = [{"query": "dough"}, {"queries": ["dough"]}]
    bodies = [asked(mode="lexical", facets=["year"], **form) for form in forms]
    alone, in_list = (asyncio.run(answer_search(served, body, Work())).facets for body in bodies)
    assert alone == in_list
    assert alone != asyncio.run(answer_search(served, asked(facets=["year"]), Work())).facets


def test_a_query_without_a_direction_is_answered_by_words(tmp_path: Path) -> None:
    weights = tiny_static(tmp_path / "model") / "model.safetensors"
    table = load_file(weights)
    table["embedding.weight"][TOKENS.index("sun")] = 0
    save_file(table, weights)
    texts = ["the red sun", "a cat sat"]
    index = Index.from_texts(texts, model=str(weights.parent), out=tmp_path / "i")
    served = served_with(tmp_path / "i", 10)
    for queries in (["sun"], ["sun", "cat"]):
        answer = asyncio.run(answer_search(served, asked(queries=queries), Work()))
        found = [[hit.id for hit in result.hits] for result in answer.results]
        expected = SearchEngine(index).search_many(queries)
        assert found == [[hit.doc_id for hit in hits] for hits in expected]


def test_an_address_that_is_no_utf8_is_refused(live: Live) -> None:
    assert live.ask("GET", "/v1/search?q=M%C3%BChle").status == 200
    answer = live.ask("GET", "/v1/search?q=M%FChle")
    assert (answer.status, "cannot be read" in str(answer.json)) == (400, True)


def test_more_hits_than_allowed_are_refused(built: Path) -> None:
    request = asked(query="dough", k=3)
    with pytest.raises(Problem, match=r"offset \+ k is 3; it may be at most 2"):
        asyncio.run(answer_search(served_with(built, 2), request, Work()))


def test_boosts_are_written_as_on_the_command_line(built: Path) -> None:
    def ids(*boost: str) -> list[str]:
        request = asked(query="dough wheel vaccine", mode="dense", boost=list(boost))
        answer = asyncio.run(answer_search(served_with(built, 10), request, Work()))
        return [hit.id for hit in answer.results[0].hits]

    by_year = ids("year:linear:10")
    assert by_year == ids("year:linear:-10")[::-1]
    assert sorted(by_year) == sorted(ids())
    with pytest.raises(Problem, match=r"'year:cubic:1' is not a boost|kind of boost"):
        ids("year:cubic:1")
    with pytest.raises(msgspec.ValidationError, match="length <= 8"):
        ids(*["year:log:1"] * 9)


def test_similar_takes_examples_and_the_options_of_a_search(built: Path) -> None:
    served = served_with(built, 10, items=2)

    def ids(**body: object) -> list[str]:
        request = msgspec.convert(body, SimilarRequest)
        return [hit.id for hit in asyncio.run(answer_similar(served, request, Work())).hits]

    engine = SearchEngine(built)
    everything = [hit.doc_id for hit in engine.similar("mill")]
    assert ids(like=["mill"]) == everything
    assert ids(like=["mill"], offset=1, k=1) == everything[1:]
    assert ids(like=["mill"], where=["year > ?", [2015]]) == ["vaccines"]
    assert ids(like=["mill"], where={"year": {"$lte": 2015}}) == ["bread"]
    assert ids(like=["mill"], sort="-year") == ["vaccines", "bread"]
    assert ids(like=["mill"], boost=["year:linear:1"])[0] == "vaccines"
    assert ids(like=["mill"], unlike=["bread"]) == ["vaccines"]
    with pytest.raises(msgspec.ValidationError, match="unknown field `mode`"):
        ids(like=["mill"], mode="dense")
    for wrong, status, param in (
        ({"like": []}, 400, "like"),
        ({"like": ["mill", "bread", "vaccines"]}, 400, "like"),
        ({"like": ["none"]}, 404, "id"),
        ({"like": ["mill"], "offset": 9, "k": 2}, 400, "k"),
    ):
        with pytest.raises(Problem) as refused:
            ids(**wrong)
        assert (refused.value.status, refused.value.param) == (status, param)


def test_the_total_counts_groups_as_k_does(built: Path) -> None:
    def total(**fields: object) -> int | None:
        answer = asyncio.run(answer_search(served_with(built, 10), asked(**fields), Work()))
        return answer.results[0].total

    assert total(query="the dough", group_by="year") == 1
    assert total(group_by="year", k=1) == 3
