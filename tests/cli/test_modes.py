"""Searching by words and by both from the command line, and the data that it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbert_search.index.index import Index
from tests.cli.process import sbert_search


def test_hybrid_hits_show_what_each_stage_said(index: Path) -> None:
    ask = ("search", index, "turning water wheels", "--mode", "hybrid", "-k", "1")
    (hit,) = sbert_search(*ask, "--json").records
    assert hit["doc_id"] == "mill"
    assert hit["stages"].keys() == {"dense", "lexical", "fused"}
    assert hit["stages"]["fused"] == {"rank": 1, "score": hit["score"]}
    shown = sbert_search(*ask).out
    assert "matched: turning, water, wheels · dense 1 (" in shown
    assert "lexical 1 (" in shown
    (other,) = sbert_search(*ask, "--json", "--fusion", "rrf", "--dense-weight", "0.9").records
    assert other["score"] == pytest.approx(1 / 61)


@pytest.mark.parametrize("query", ["zebra", "the of a"])
def test_no_shared_word_is_no_error(index: Path, query: str) -> None:
    done = sbert_search("search", index, query, "--mode", "lexical")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("No document has a word of the query; stop words do not count")
    done = sbert_search("search", index, query, "--mode", "lexical", "--where", "doc_id != ''")
    assert "matches the filter and has a word of the query" in done.err
    # With --sort, hybrid search also finds only documents that have a word of the query.
    done = sbert_search("search", index, query, "--mode", "hybrid", "--sort", "year")
    assert done.err.startswith("No document has a word of the query; stop words do not")


def test_settings_of_words_are_kept_and_shown(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "german.index"
    build = ("index", "build", corpus, "--out", path, "--model", "hashing")
    assert sbert_search(*build, "--language", "german").code == 0
    (info,) = sbert_search("index", "info", path, "--json").records
    assert info["lexical"]["language"] == "german"
    assert "und" in info["lexical"]["stop_words"]
    done = sbert_search("index", "lexical", path, "--language", "english", "--k1", "0.9")
    assert done.out == f"{path}: english, titles count 2 times, BM25 with k1 = 0.9 and b = 0.75.\n"
    assert sbert_search("search", path, "mills", "--mode", "lexical", "--json").records


def test_the_title_weight_of_a_build_decides_the_order(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    rows = [
        {"_id": "title", "title": "Mill", "text": "river bank stone flour"},
        {"_id": "text", "title": "River", "text": "mill mill mill stone"},
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for weight, first in (("1", "text"), ("9", "title")):
        path = tmp_path / weight
        build = ("index", "build", corpus, "--out", path, "--model", "hashing")
        assert sbert_search(*build, "--title-weight", weight).code == 0
        found = sbert_search("search", path, "mill", "--mode", "lexical", "--json").records
        assert found[0]["doc_id"] == first
    build = ("index", "build", corpus, "--out", tmp_path / "new", "--model", "hashing")
    done = sbert_search(*build, "--title-weight", "101")
    assert (done.code, "101 is not in the range 0<=x<=100" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("language", "message"), [("englich", "did you mean 'english'?"), ("", "Unknown language")]
)
def test_an_unknown_language_is_refused(
    corpus: Path, tmp_path: Path, language: str, message: str
) -> None:
    build = ("index", "build", corpus, "--out", tmp_path / "i", "--model", "hashing")
    done = sbert_search(*build, "--language", language)
    assert done.code == 2
    assert message in done.err


def test_an_index_without_lexical_data_is_given_them(index: Path) -> None:
    Index.open(index).set_lexical(None)
    refused = sbert_search("search", index, "mill", "--mode", "lexical")
    assert refused.code == 1
    assert f"sbert-search index lexical {index}" in refused.err
    assert sbert_search("index", "lexical", index).code == 0
    assert sbert_search("search", index, "mill", "--mode", "lexical").code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mode", "hybird"), "'hybird' is not one of 'auto', 'dense', 'lexical', 'hybrid'"),
        (("--mode", "hybrid", "--dense-weight", "2"), "2.0 is not in the range 0<=x<=1"),
        (("--mode", "hybrid", "--fusion", "sum"), "'sum' is not one of 'weighted', 'rrf'"),
        (("--mode", "dense", "--dense-weight", "0.3"), "--dense-weight needs --mode hybrid."),
        (("--mode", "lexical", "--fusion", "rrf"), "--fusion needs --mode hybrid."),
        (("--rerank-depth", "5"), "--rerank-depth needs --rerank."),
    ],
)
def test_what_cannot_be_asked_is_wrong_usage(
    index: Path, options: tuple[str, ...], message: str
) -> None:
    done = sbert_search("search", index, "mill", *options)
    assert done.code == 2
    assert message in done.err
