"""Given vectors on the command line: files, columns, queries, and builds that were killed."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sbert_search.index.index import Index
from tests.cli.process import command, sbert_search
from tests.cli.test_resume import assert_equal, rows_done, started, stop_when
from tests.search.corpus import write_jsonl

ROWS = [{"_id": "east", "text": "sun rise"}, {"_id": "north", "text": "cold star"}, {"_id": "both"}]
VECTORS = np.array([[1, 0], [0, 1], [3, 4]], np.float32)


@pytest.fixture
def given(tmp_path: Path) -> tuple[Path, Path]:
    np.save(tmp_path / "v.npy", VECTORS)
    return write_jsonl(tmp_path / "rows.jsonl", ROWS), tmp_path / "v.npy"


def test_an_array_file_gives_the_vectors(given: tuple[Path, Path], tmp_path: Path) -> None:
    (rows, vectors), out = given, tmp_path / "my.index"
    build = sbert_search("index", "build", rows, "--vectors", vectors, "--out", out, "--json")
    assert (build.records[0]["read"], build.records[0]["indexed"]) == (3, 3)
    assert "model       none; the vectors were given" in sbert_search("index", "info", out).out
    (added,) = sbert_search("index", "add", out, rows, "--vectors", vectors, "--json").records
    assert added["duplicate"] == 3
    new = write_jsonl(tmp_path / "new.jsonl", [{"_id": "new", "text": "moon"}])
    refused = sbert_search("index", "add", out, new)
    assert refused.code == 1
    assert "new.jsonl:1: the text or title is new, but the index has no model" in refused.err
    assert "Give vectors with the documents" in refused.err


def test_a_file_gives_the_vector_of_a_query(given: tuple[Path, Path], tmp_path: Path) -> None:
    (rows, vectors), out = given, tmp_path / "my.index"
    Index.build(rows, out=out, vectors=vectors)
    np.save(tmp_path / "q.npy", np.array([0.0, 2.0]))
    hits = sbert_search("search", out, "--vector-file", tmp_path / "q.npy", "--json").records
    assert [hit["doc_id"] for hit in hits] == ["north", "both", "east"]
    both = sbert_search("search", out, "sun", "--vector-file", tmp_path / "q.npy", "--json")
    stages = {name for hit in both.records for name in hit["stages"]}
    assert stages >= {"dense", "lexical"}
    one = sbert_search("search", out, "--vector-file", vectors)
    assert "--vector-file holds 3 vectors; one is needed" in one.err


def test_a_text_that_cannot_find_anything_is_told_why(tmp_path: Path) -> None:
    out = tmp_path / "my.index"
    Index.from_vectors(VECTORS, ids=["east", "north", "both"], out=out)
    for options in ((), ("--json",), ("--where", "doc_id != ''")):
        done = sbert_search("search", out, "sun", *options)
        assert (done.code, done.out) == (0, "")
        assert done.err.startswith(f"{out} has neither words nor a model, so no text finds its")
        assert "(--like ID) or by a vector of the query (--vector-file FILE.npy)." in done.err
    assert sbert_search("search", out, "--like", "east", "--json").records[0]["doc_id"] == "both"


def test_a_text_without_a_shared_word_is_told_why(given: tuple[Path, Path], tmp_path: Path) -> None:
    (rows, vectors), out = given, tmp_path / "my.index"
    Index.build(rows, out=out, vectors=vectors)
    done = sbert_search("search", out, "zebra")
    assert done.err.startswith("No document has a word of the query; stop words")


def test_options_that_contradict_given_vectors_are_refused(
    given: tuple[Path, Path], tmp_path: Path
) -> None:
    (rows, vectors), out = given, tmp_path / "my.index"
    build = ["index", "build", rows, "--out", out]
    device = sbert_search(*build, "--vectors", vectors, "--device", "cpu")
    assert "device: no model is opened, since the vectors are given" in device.err
    both = sbert_search(*build, "--vectors", vectors, "--vector-field", "v")
    assert both.code == 2
    assert "either by --vectors or by --vector-field" in both.err
    assert not out.exists()


def test_the_file_that_embed_writes_builds_an_index(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{**row, "text": row["_id"]} for row in ROWS])
    parquet, out = tmp_path / "e.parquet", tmp_path / "my.index"
    assert sbert_search("embed", rows, "--model", "hashing", "--out", parquet).code == 0
    build = ["index", "build", parquet, "--vector-field", "vector", "--model", "hashing"]
    assert sbert_search(*build, "--out", out).code == 0
    second = Index.build(rows, out=tmp_path / "whole.index", model="hashing").state
    first = Index.open(out).state
    assert np.array_equal(first.vectors(first.live_rows()), second.vectors(second.live_rows()))
    assert first.settings == second.settings


def _has_more(path: Path, rows: int) -> bool:
    return rows_done(path) > rows


@pytest.mark.thorough
def test_a_killed_build_of_given_vectors_ends_with_the_same_bytes(tmp_path: Path) -> None:
    count = 8 * 1024
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"_id": str(i)} for i in range(count)])
    vectors = np.random.default_rng(0).normal(size=(count, 8))
    vectors[[5, 3000]] = np.nan
    np.save(tmp_path / "v.npy", vectors)
    given = ["--vectors", tmp_path / "v.npy", "--on-error", "skip", "--json"]
    killed = command("index", "build", rows, "--out", tmp_path / "killed", *given)
    Index.build(rows, out=tmp_path / "whole", vectors=tmp_path / "v.npy", on_error="skip")
    for _ in range(2):
        grown = partial(_has_more, tmp_path / "killed", rows_done(tmp_path / "killed"))
        assert stop_when(grown, started(killed), signal.SIGKILL).code == -signal.SIGKILL
    last = started(killed)
    out_text, err_text = last.communicate(timeout=120)
    assert "resuming at row" in err_text
    record = json.loads(out_text)
    assert record["resumed_rows"] >= 2 * 1024
    assert (record["read"], record["rejected"]) == (count, 2)
    assert_equal(tmp_path / "whole", tmp_path / "killed")
