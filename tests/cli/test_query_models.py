"""Small models for queries, from the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from sbert_search.embed.embedder import Embedder
from sbert_search.index.index import Index
from tests.cli.process import sbert_search
from tests.models.tiny import WORDS, tiny_static

DRAW = random.Random(0)
ROWS = [{"_id": f"d{n}", "text": " ".join(DRAW.choices(WORDS, k=6))} for n in range(9)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An index, beside the folders of two models in its space and one of another space."""
    Index.build(ROWS, model=str(tiny_static(tmp_path / "full")), out=tmp_path / "i").close()
    tiny_static(tmp_path / "near", noise=0.05)
    tiny_static(tmp_path / "other", seed=7)
    return tmp_path / "i"


def test_a_query_model_is_added_listed_used_and_removed(path: Path) -> None:
    near = path.parent / "near"
    added = sbert_search("index", "query-model", path, near, "--quiet")
    assert added.code == 0, added.err
    shown, use = added.out.splitlines()
    assert shown.startswith(f"fast  {near} (static, fp32), 16 dimensions, sha256 ")
    assert shown.endswith(", retention not measured")  # nine documents are too few
    assert use.endswith("--query-model fast")
    sbert_search("index", "query-model", path, near, "--name", "again", "--quiet")
    listed = sbert_search("index", "query-model", path, "--json").records
    assert [one["name"] for one in listed] == ["again", "fast"]
    assert {one["identity"]["name"] for one in listed} == {str(near)}
    facts = sbert_search("index", "info", path).out.splitlines()
    assert [line.split()[:4] for line in facts if "again" in line] == [
        ["queries", "by", "again", str(near)]
    ]
    asked = ("search", path, ROWS[0]["text"], "--mode", "dense", "-k", "1", "--json")
    (full,), (fast,) = (
        sbert_search(*asked).records,
        sbert_search(*asked, "--query-model", "fast").records,
    )
    assert fast["doc_id"] == full["doc_id"]
    assert fast["score"] < full["score"]
    assert sbert_search("index", "query-model", path, "--remove").code == 0
    assert list(Index.open(path).query_models) == ["again"]
    gone = sbert_search(*asked, "--query-model", "fast")
    assert (gone.code, "has no query model 'fast'; it has: again" in gone.err) == (2, True)


def test_another_space_is_refused(path: Path) -> None:
    done = sbert_search("index", "query-model", path, path.parent / "other", "--quiet")
    assert done.code == 1
    assert "is not in the space of the vectors" in done.err
    assert not Index.open(path).query_models


def test_the_retention_is_measured_on_queries_and_judgements(path: Path, tmp_path: Path) -> None:
    queries, qrels = tmp_path / "queries.jsonl", tmp_path / "qrels.tsv"
    asked = [{"_id": f"q{n}", "text": row["text"]} for n, row in enumerate(ROWS)]
    queries.write_text("".join(json.dumps(query) + "\n" for query in asked))
    qrels.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(9)))
    add = ("index", "query-model", path, path.parent / "near", "--judge", queries, "--quiet")
    judged = sbert_search(*add)
    assert judged.code == 0, judged.err
    assert "shared of 10 hits" in judged.out
    record = Index.open(path).query_models["fast"]
    assert (record.retention, record.measured_on) == (None, "queries")  # all nine are found
    Index.open(path).add([{**row, "_id": f"e{n}"} for n, row in enumerate(ROWS * 5)])
    assert "shared of 5 hits" in sbert_search(*add).out
    (shown,) = sbert_search("index", "query-model", path, "--json").records
    assert (0 < shown["retention"] <= 1, shown["measured_on"]) == (True, "queries")
    (shown,) = sbert_search(*add, "--qrels", qrels, "--json").records
    record = Index.open(path).query_models["fast"]
    assert (record.retention, record.measured_on) == (shown["retention"], "judgements")
    assert 0.5 < shown["retention"] <= 1


def test_a_model_that_cannot_be_judged_is_not_added(path: Path, tmp_path: Path) -> None:
    queries = tmp_path / "queries.jsonl"
    queries.write_text("{bad\n")
    add = ("index", "query-model", path, path.parent / "near", "--judge", queries, "--quiet")
    done = sbert_search(*add)
    assert (done.code, "queries.jsonl:1: broken JSON" in done.err) == (1, True)
    assert not Index.open(path).query_models


def test_a_migration_says_that_query_models_are_not_used_any_more(path: Path) -> None:
    sbert_search("index", "query-model", path, path.parent / "near", "--quiet")
    done = sbert_search("index", "migrate", path, "--model", path.parent / "other")
    assert "The query models fast belong to the model before" in done.err
    assert not sbert_search("index", "query-model", path).out


def test_wrong_queries_are_refused_before_a_migration(path: Path, tmp_path: Path) -> None:
    queries = tmp_path / "queries.jsonl"
    queries.write_text("{bad\n")
    line = ("index", "migrate", path, "--model", path.parent / "other", "--judge", queries)
    done = sbert_search(*line)
    assert (done.code, "queries.jsonl:1: broken JSON" in done.err) == (1, True)
    assert Index.open(path).info().migrating_to == ""
    queries.write_text('{"_id": "q", "text": "a"}\n')
    assert "Searched in mode hybrid:" in sbert_search(*line).out


def test_options_without_effect_are_refused(path: Path) -> None:
    for line in (["--name", "x"], ["x", "--remove"], ["x", "--qrels", path / "MANIFEST.json"]):
        done = sbert_search("index", "query-model", path, *line)
        assert (done.code, "has no effect" in done.err) == (2, True), done.err


def test_a_search_by_a_query_model_opens_it_by_its_record(path: Path) -> None:
    sbert_search("index", "query-model", path, path.parent / "near", "--quiet")
    search = ("search", path, ROWS[0]["text"], "--mode", "dense", "-k", "1", "--json")
    asked = (*search, "--query-model", "fast")
    (expected,) = sbert_search(*asked).records
    for place in ("full", "moved"):  # of the model of the index
        (hit,) = sbert_search(*asked, env={"SBERT_SEARCH_MODEL": str(path.parent / place)}).records
        assert hit == expected
    refused = sbert_search(*asked, "--model", path.parent / "full")
    assert (refused.code, "--model has no effect with --query-model" in refused.err) == (2, True)


def test_no_queries_judge_a_model_over_given_vectors(path: Path, tmp_path: Path) -> None:
    texts = [row["text"] for row in ROWS]
    vectors = Embedder(path.parent / "full").encode(texts)
    Index.from_texts(texts, vectors=vectors, out=tmp_path / "given").close()
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"_id": "q", "text": "cat"}\n')
    add = ("index", "query-model", tmp_path / "given", path.parent / "near")
    done = sbert_search(*add, "--judge", queries)
    assert (done.code, "leave --judge out" in done.err) == (2, True), done.err
    assert not Index.open(tmp_path / "given").query_models
    assert sbert_search(*add).code == 0
