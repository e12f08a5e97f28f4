"""A live server: search, documents and the facts that it tells about itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import Fusion
from tests.cli.process import sbert_search
from tests.serve.live import Live, live_server


def test_a_search_finds_what_the_engine_finds(live: Live, built: Path) -> None:
    engine = SearchEngine(built)
    for mode in ("dense", "lexical", "hybrid", "auto"):
        answer = live.post("/v1/search", query="water wheel", mode=mode, k=2, explain=True)
        assert answer.status == 200
        [result] = answer.json["results"]
        expected = engine.search("water wheel", k=2, mode=mode)
        assert result["mode"] == expected.mode
        assert result["commit"] == expected.commit == 2
        shown = [
            {
                "rank": hit.rank,
                "id": hit.doc_id,
                "score": hit.score,
                "title": hit.title,
                "text": hit.text,
                "metadata": dict(hit.metadata),
                "chunk": hit.chunk,
                "stages": {n: {"rank": s.rank, "score": s.score} for n, s in hit.stages.items()},
            }
            for hit in expected
        ]
        assert result["hits"] == shown


def test_queries_are_answered_together_and_options_count(live: Live) -> None:
    body = {"queries": ["dough", "wheel"], "k": 1, "where": "year < 2015", "highlight": True}
    answer = live.ask("POST", "/search", body).json
    assert [result["query"] for result in answer["results"]] == ["dough", "wheel"]
    hits = [result["hits"][0] for result in answer["results"]]
    assert [(hit["id"], hit["matched_words"]) for hit in hits] == [
        ("bread", ["dough"]),
        ("mill", ["wheel"]),
    ]
    assert hits[0]["best_sentence"] == "Flour and yeast make dough."
    assert "stages" not in hits[0]
    (hit,) = live.search("it", mode="dense", highlight=True, where="year = 2010")
    assert hit["best_sentence"] == "Eat it."  # no word decides, since "it" is a stop word
    for filtered in ("year = 2010", ["year = ?", [2010]], {"year": 2010}):
        assert [hit["id"] for hit in live.search("it", where=filtered)] == ["bread"]
    assert live.search("dough", mode="lexical", offset=1) == []
    assert [hit["id"] for hit in live.search('"turns its wheel"', mode="lexical")] == ["mill"]


def test_documents_are_listed_and_sorted_without_a_query(live: Live) -> None:
    answer = live.post("/v1/search", where="year > 2000", sort="-year", k=1, facets=["year"]).json
    [result] = answer["results"]
    assert ([hit["id"] for hit in result["hits"]], result["total"]) == (["vaccines"], 2)
    assert (result["query"], result["mode"], result["suggestion"]) == ("", "", None)
    assert answer["facets"][0]["total"] == 2
    next_page = live.post("/v1/search", where="year > 2000", sort="-year", k=1, offset=1).json
    assert [hit["id"] for hit in next_page["results"][0]["hits"]] == ["bread"]
    refused = live.post("/v1/search", rerank=True)
    assert (refused.status, refused.json["error"]["param"]) == (400, "query")
    assert live.post("/v1/search", boost=["year:log:1"]).status == 400


def test_a_search_says_how_many_match_and_corrects_typing_errors(live: Live) -> None:
    [result] = live.post("/v1/search", query="watr", mode="lexical").json["results"]
    assert (result["hits"], result["total"], result["suggestion"]) == ([], 0, "water")
    [result] = live.post("/v1/search", query="watr", mode="lexical", fuzzy=1).json["results"]
    assert (len(result["hits"]), result["total"]) == (1, 1)
    several = live.post("/v1/search", queries=["watr"]).json["results"]
    assert (several[0]["total"], several[0]["suggestion"]) == (None, None)


def test_the_server_has_defaults_of_searches(built: Path, tmp_path: Path) -> None:
    """Counted by hand: of the three documents, only that of the mill has water."""
    config = tmp_path / "sbert-search.toml"
    config.write_text("[serve]\nmode = 'lexical'\ndense-weight = 0.9\nfuzzy = 1\n")
    with live_server(built, cwd=tmp_path) as server:
        assert server.ask("GET", "/v1/indexes").json["mode"] == "lexical"
        [result] = server.ask("GET", "/v1/search?q=watr").json["results"]
        assert (result["mode"], result["total"], len(result["hits"])) == ("lexical", 1, 1)
        assert server.search("watr") == server.search("watr", mode=None, fuzzy=None)
        assert server.search("watr") == result["hits"]
        assert server.search("watr", fuzzy=0) == []
        assert server.ask("GET", "/v1/search?q=watr&fuzzy=0").json["results"][0]["hits"] == []
        assert len(server.search("watr", mode="auto")) == 3
        for options, total in ({}, 1), ({"fuzzy": 0}, 0), ({"mode": "dense"}, 3):
            counted = server.post("/v1/facets", columns=["year"], query="watr", **options).json
            assert counted["facets"][0]["total"] == total
        assert server.post("/v1/search", where="year > 2000").json["results"][0]["total"] == 2
        assert len(server.post("/v1/similar", like=["mill"]).json["hits"]) == 2


def test_the_default_of_a_weight_is_that_of_requests_that_name_none(built: Path) -> None:
    engine = SearchEngine(built)

    def scores(**fusion: Any) -> list[float]:
        hits = engine.search("water wheel", k=2, mode="hybrid", fusion=Fusion(**fusion))
        return [hit.score for hit in hits]

    with live_server(built, "--mode", "hybrid", "--dense-weight", "0.9") as server:

        def served(**options: object) -> list[float]:
            return [hit["score"] for hit in server.search("water wheel", k=2, **options)]

        by_address = server.ask("GET", "/v1/search?q=water+wheel&k=2").json["results"][0]
        assert (by_address["mode"], [h["score"] for h in by_address["hits"]]) == (
            "hybrid",
            served(),
        )
        assert served() == served(fusion={"dense_weight": 0.9}) == scores(dense_weight=0.9)
        assert served(fusion={"dense_weight": 0.1}) == scores(dense_weight=0.1) != served()
        assert served(fusion={"depth": 50}) == served()  # it names no weight
        rrf = served(fusion={"method": "rrf", "dense_weight": None})
        assert rrf == scores(method="rrf", dense_weight=0.9)


@pytest.mark.parametrize("mode", ["lexical", "hybrid", "dense"])
def test_a_default_mode_that_an_index_lacks_is_refused(mode: str, tmp_path: Path) -> None:
    rows = [{"_id": "a", "text": "Water", "vector": [1.0, 0.0]}]
    Index.build(rows, out=tmp_path / "full.index", model="hashing")
    if mode == "dense":
        Index.build(rows, out=tmp_path / "my.index", vectors="vector")
        said = f"--mode {mode}: my.index has no model. Leave out --mode"
    else:
        Index.build(rows, out=tmp_path / "my.index", model="hashing", lexical=None)
        said = f"--mode {mode}: my.index has no lexical data. Leave out --mode"
    done = sbert_search("serve", "full.index", "my.index", "--mode", mode, cwd=tmp_path)
    assert (done.code, said in done.err) == (2, True), done.err


def test_facets_count_the_values_of_columns(live: Live) -> None:
    answer = live.post("/v1/search", query="dough", mode="dense", facets=["year"]).json
    assert answer["facets"] == [
        {
            "column": "year",
            "values": [{"value": year, "count": 1} for year in (1999, 2010, 2020)],
            "other": 0,
            "missing": 0,
            "low": 1999,
            "high": 2020,
            "ranges": [],
            "total": 3,
        }
    ]


def test_a_search_says_how_many_values_its_facets_list(live: Live) -> None:
    asked = {"query": "dough", "mode": "dense", "facets": ["year"], "facet_values": 2}
    (facet,) = live.post("/v1/search", **asked).json["facets"]
    assert [one["value"] for one in facet["values"]] == [1999, 2010]
    assert (facet["other"], len(facet["ranges"])) == (1, 2)


def test_facets_are_counted_without_a_query(live: Live) -> None:
    every = live.post("/v1/facets", columns=["year"], n=2).json["facets"][0]
    assert (every["values"], every["other"]) == (
        [{"value": 1999, "count": 1}, {"value": 2010, "count": 1}],
        1,
    )
    assert every["ranges"] == [
        {"low": 1999, "high": 2010, "count": 1},
        {"low": 2010, "high": 2020, "count": 2},
    ]
    for query, mode, found in (
        ("dough", "lexical", [2010]),
        ("dough", "dense", [1999, 2010, 2020]),
        ("bread -dough", "dense", [1999, 2020]),
    ):
        facet = live.post("/facets", columns=["year"], query=query, mode=mode).json["facets"][0]
        assert [one["value"] for one in facet["values"]] == found
    filtered = live.post("/facets", columns=["year"], where="year > 2015").json["facets"][0]
    assert filtered["values"] == [{"value": 2020, "count": 1}]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"columns": []}, 400, "columns"),
        ({"columns": ["year"], "query": " "}, 400, "query"),
        ({"columns": ["year"], "where": "nope = 1"}, 400, "where"),
        ({"columns": ["year"], "index": "none"}, 404, "index"),
        ({"columns": ["year"], "n": 0}, 400, "n"),
        ({"columns": ["nope"]}, 400, "columns"),
        ({"columns": ["year:5:1"]}, 400, "columns"),
    ],
)
def test_wrong_facets_are_refused(
    live: Live, body: dict[str, object], status: int, param: str
) -> None:
    answer = live.ask("POST", "/v1/facets", body)
    assert (answer.status, answer.json["error"]["param"]) == (status, param)


def test_documents_are_read_and_compared(live: Live) -> None:
    for prefix in ("", "/v1"):
        document = live.ask("GET", f"{prefix}/documents/mill").json
        assert document["text"] == "The mill stands by the river. Water turns its wheel."
        assert document["metadata"] == {"year": 1999}
        found = live.ask("GET", f"{prefix}/documents/mill/similar?k=1&where=year%20%3E%202015")
        assert [hit["id"] for hit in found.json["hits"]] == ["vaccines"]
    ask = "/documents/mill/similar?fields=title,year&sort=-year&offset=1&where=year%20%3E%201000"
    [hit] = live.ask("GET", ask).json["hits"]
    assert (hit["id"], hit["title"], hit["text"], hit["rank"]) == ("bread", "Bread", "", 2)
    assert hit["metadata"] == {"year": 2010}
    assert live.ask("GET", "/documents/none").status == 404
    assert live.ask("GET", "/documents/none/similar").status == 404
    for k in ("0", "x", "1001", "-1", "1e4", "1_0", "%D9%A3"):
        wrong = live.ask("GET", f"/documents/mill/similar?k={k}")
        assert (wrong.status, wrong.json["error"]["param"]) == (400, "k")


@pytest.mark.thorough
def test_an_id_may_be_any_text(tmp_path: Path) -> None:
    """A slash that is written as %2F belongs to the id; /similar after the id does not."""
    ids = ["a", "a/similar", "similar", "a/b c?#%2F", "a\nb", "Grün/é", "../x"]
    rows = [{"_id": doc_id, "text": f"flour {doc_id}"} for doc_id in ids]
    Index.build(rows, out=tmp_path / "ids.index", model="hashing")
    with live_server(tmp_path / "ids.index") as server:
        for doc_id in ids:
            path = f"/v1/documents/{quote(doc_id, safe='')}"
            assert server.ask("GET", path).json["id"] == doc_id
            similar = server.ask("GET", f"{path}/similar").json
            assert similar["id"] == doc_id
            assert {hit["id"] for hit in similar["hits"]} == {*ids} - {doc_id}
        assert server.ask("GET", "/documents/a/b%20c%3F%23%252F").json["id"] == "a/b c?#%2F"
        assert server.ask("GET", "/documents/a/similar").json["commit"]  # similar documents of a


def test_the_indexes_are_described(live: Live) -> None:
    answer = live.ask("GET", "/v1/indexes").json
    assert (answer["max_k"], answer["mode"]) == (1000, "auto")
    [card] = answer["indexes"]
    assert card["name"] == "my.index"
    assert card["documents"] == 3
    assert card["columns"] == {"year": "int64"}
    assert card["modes"] == ["dense", "lexical", "hybrid"]
    assert (card["reload_error"], card["migrating_to"], card["migration_left"]) == ("", "", 0)
    assert card["writable"] is False


def test_health_readiness_and_metrics(live: Live) -> None:
    assert live.ask("GET", "/health").json == {"status": "ok"}
    assert live.ask("GET", "/v1/ready").json == {"status": "ok", "refused": {}}
    live.search("dough")
    answer = live.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.raw.decode().splitlines()
    assert 'sbert_search_documents{index="my.index"} 3' in lines
    assert 'sbert_search_newest_commit_served{index="my.index"} 1' in lines
    assert any(line.startswith('te_request_success{method="/search"} ') for line in lines)
    assert any(line.startswith("te_batch_next_tokens_bucket") for line in lines)


def test_every_answer_says_what_it_took(live: Live) -> None:
    answer = live.post("/v1/search", query="flour and yeast")
    assert answer.headers["x-compute-tokens"] == "3"
    assert answer.headers["x-truncated-texts"] == "0"
    for name in ("x-total-time", "x-queue-time", "x-inference-time", "x-tokenization-time"):
        assert float(answer.headers[name]) >= 0
    assert answer.json["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 3,
        "truncated_texts": 0,
    }


@pytest.mark.parametrize(
    "path", ["/nope", "/v1", "/v1/search/x", "/..%2f..%2fetc/passwd", "/page/none.js"]
)
def test_a_path_that_is_not_there_is_named(live: Live, path: str) -> None:
    answer = live.ask("GET", path)
    assert answer.status == 404
    assert answer.json["error"]["type"] == "not_found"
    assert "Traceback" not in answer.raw.decode()


def test_a_wrong_method_names_the_right_ones(live: Live) -> None:
    answer = live.ask("GET", "/v1/facets")
    assert answer.status == 405
    assert answer.headers["allow"] == "POST"


def test_a_query_may_stand_in_the_address(live: Live) -> None:
    body = {"query": "bread", "k": 2, "mode": "dense", "where": "year > 1900", "full_text": True}
    address = "q=bread&k=2&mode=dense&where=year%20%3E%201900&full_text=true"
    for prefix in ("", "/v1"):
        found = live.ask("GET", f"{prefix}/search?{address}")
        assert found.json["results"] == live.ask("POST", "/search", body).json["results"]
        assert len(found.json["results"][0]["hits"]) == 2
    listed = live.ask("GET", "/search?sort=-year").json["results"][0]["hits"]
    assert [hit["id"] for hit in listed] == ["vaccines", "bread", "mill"]
    for wrong, param in {"q=": "query", "q=a&k=two": "k", "q=a&mode=x": "mode", "z=1": "z"}.items():
        answer = live.ask("GET", f"/search?{wrong}")
        assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert "known: q, index, k, offset, mode," in live.ask("GET", "/search?query=a").raw.decode()
    assert live.ask("GET", "/search?q=null").json["results"][0]["query"] == "null"
    assert live.ask("GET", "/search?q=a&min_score=nan").status == 400


@pytest.mark.thorough
def test_the_access_log_has_no_texts(built: Path) -> None:
    with live_server(built) as server:
        server.search("a secret question")
        server.ask("GET", "/v1/documents/mill")
        server.ask("POST", "/v1/search", {"query": "x", "where": "hidden ="})
        assert server.stop() == 0
    entries: list[dict[str, Any]] = server.log
    assert [(one["route"], one["status"]) for one in entries] == [
        ("/search", 200),
        ("/documents/{id:path}", 200),
        ("/search", 400),
    ]
    assert entries[0]["tokens"] == 3
    assert entries[0]["ms"] > 0
    text = json.dumps(entries)
    assert "secret" not in text
    assert "mill" not in text
    assert "hidden" not in text
