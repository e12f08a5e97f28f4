"""Paraphrase mining from the command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sbert_search import Index
from tests.cli.process import sbert_search

LINES = (
    "the river turns the mill",
    "the mill turns the river",
    "yeast lifts the dough",
    "a cat",
    "dough the yeast lifts",
    "the river turns the mill",
)


@pytest.fixture
def texts(write: Callable[..., Path]) -> Path:
    return write("texts.txt", *LINES)


def test_close_pairs_come_as_lines(texts: Path) -> None:
    done = sbert_search("pairs", texts, "--model", "hashing", "--threshold", "0.99", "--json")
    found = [(pair["first"]["text"], pair["second"]["text"]) for pair in done.records]
    assert sorted(found) == sorted(
        [
            (LINES[0], LINES[1]),
            (LINES[0], LINES[5]),
            (LINES[1], LINES[5]),
            (LINES[2], LINES[4]),
        ]
    )
    assert all(pair["score"] == pytest.approx(1, abs=1e-6) for pair in done.records)


def test_the_best_pair_is_shown_for_people(texts: Path) -> None:
    done = sbert_search("pairs", texts, "--model", "hashing", "--top", "1")
    score, first, second = done.out.splitlines()
    assert score == "1.0000"
    assert sorted(first.split()[1:]) == sorted(second.split()[1:])
    texts.write_text(f"{'mill ' * 90}\n{'mill ' * 91}\n")
    long = sbert_search("pairs", texts, "--model", "hashing", "--top", "1")
    assert [len(line) for line in long.out.splitlines()[1:]] == [315, 315]  # ids and 300 characters


def test_only_the_first_of_close_documents_is_written(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "rest.jsonl"
    options = ("--model", "hashing", "--threshold", "0.99", "--deduplicated", out)
    done = sbert_search("pairs", texts, *options)
    assert done.out == f"6 documents: 3 left out, 3 written to {out}.\n"
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["text"] for row in rows] == [LINES[0], LINES[2], LINES[3]]
    again = sbert_search("pairs", out, *options, "--json")
    assert again.records == [{"documents": 3, "left_out": 0, "file": str(out)}]
    refused = sbert_search("pairs", texts, *options, "--top", "3")
    assert (refused.code, "goes with neither --top nor --clusters" in refused.err) == (2, True)


def test_metadata_of_written_documents_are_read_again(tmp_path: Path) -> None:
    row = {"_id": "a", "title": "T", "text": "x", "n": 1, "tags": ["é"], "day": "2024-01-31"}
    source, path, out = (tmp_path / name for name in ("a.jsonl", "index", "rest.jsonl"))
    source.write_text(json.dumps(row))
    types = {"day": "timestamp"}
    index = Index.build(source, out=path, model="hashing", column_types=types)
    assert sbert_search("pairs", path, "--deduplicated", out).code == 0
    (again,) = Index.build(out, model="hashing", column_types=types)
    assert again == dataclasses.replace(index.get("a"), source=again.source)  # type: ignore[type-var]


def test_clusters_of_an_index_that_is_there(index: Path, texts: Path) -> None:
    path = texts.with_name("texts.index")
    assert sbert_search("index", "build", texts, "--out", path, "--model", "hashing").code == 0
    done = sbert_search("pairs", path, "--clusters", "--threshold", "0.99", "--json")
    assert [record["size"] for record in done.records] == [3, 2]
    assert done.records[1]["doc_ids"] == ["texts.txt#3", "texts.txt#5"]
    none = sbert_search("pairs", index, "--threshold", "0.99")
    assert (none.code, none.out) == (0, "")
    assert none.err.endswith("No two documents score 0.99 or more.\n")
    wrong = sbert_search("pairs", index, "--threshold", "nan")
    assert (wrong.code, "'nan' is not finite" in wrong.err) == (2, True)


@pytest.mark.parametrize("option", [("--model", "hashing"), ("--id-field", "key")])
def test_options_of_a_build_are_refused_for_an_index(index: Path, option: tuple[str, str]) -> None:
    done = sbert_search("pairs", index, *option)
    assert (done.code, done.out) == (2, "")
    assert f"{option[0]} has no effect if SOURCE is an index; leave it out." in done.err


def test_files_that_cannot_be_read_are_named_and_the_others_compared(tmp_path: Path) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("# Mill\n\nThe mill turns.")
    for n in range(12):
        (tmp_path / f"bad {n:02}.pdf").write_text("no PDF")
    options = ("pairs", tmp_path, "--model", "hashing", "--threshold", "0.99")
    stopped = sbert_search(*options)
    assert (stopped.code, stopped.out) == (1, "")
    assert "12 bad files or pages:" in stopped.err
    assert stopped.err.endswith("pass --on-error skip to read the others and to list these.\n")
    done = sbert_search(*options, "--on-error", "skip")
    assert (done.code, done.out.count("The mill turns")) == (3, 2)
    assert "12 bad rows, files or pages are left out:\n" in done.err
    assert f"{tmp_path}/bad 00.pdf:1: the PDF file cannot be read" in done.err
    assert "bad 10.pdf" not in done.err
    assert "\nand 2 more\n" in done.err
    out = tmp_path / "rest.jsonl"
    written = sbert_search(*options, "--on-error", "skip", "--deduplicated", out)
    assert (written.code, len(out.read_text().splitlines())) == (3, 1)
    none = sbert_search(*options[:-1], "1.01", "--on-error", "skip")
    assert (none.code, "No two documents score" in none.err) == (3, True)


def test_a_source_that_is_not_there_is_named_before_the_model_is_opened() -> None:
    done = sbert_search("pairs", "nowhere.jsonl", "--model", "./no-model")
    assert done.code == 1
    assert "nowhere.jsonl" in done.err
    assert "no-model" not in done.err


def test_a_threshold_above_every_cosine_is_explained(texts: Path) -> None:
    done = sbert_search("pairs", texts, "--threshold", "90", "--model", "hashing")
    assert (done.code, done.out) == (0, "")
    assert "No two documents score 90 or more; no cosine is above 1." in done.err


def test_no_limit_of_cosines_is_named_for_products(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "products of vectors.index"
    built = sbert_search(
        "index", "build", texts, "--out", out, "--model", "hashing", "--metric", "dot"
    )
    assert f"sbert-search search '{out}' " in built.out
    assert sbert_search("pairs", out, "--threshold", "90").err == (
        "No two documents score 90 or more.\n"
    )
