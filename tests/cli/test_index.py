"""Making, changing and keeping an index from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.index import Index
from tests.cli.conftest import ROWS
from tests.cli.process import Done, sbert_search

Write = Callable[..., Path]
HASHING = {"SBERT_SEARCH_MODEL": "hashing"}


def build(*arguments: object, stdin: str = "") -> Done:
    return sbert_search("index", "build", *arguments, stdin=stdin, env=HASHING)


def test_build_says_what_became_of_every_row(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "my.index"
    done = build(corpus, "--out", out)
    assert done.code == 0
    assert "3 rows read: 3 indexed, 0 replaced, 0 duplicate, 0 rejected" in done.out
    assert f"sbert-search search {out}" in done.out


def test_build_accounts_in_json(write: Write, tmp_path: Path) -> None:
    source = write("docs.jsonl", *ROWS, ROWS[0], {**ROWS[1], "text": "another"}, "{broken")
    out = tmp_path / "my.index"
    done = build(source, "--out", out, "--on-error", "skip", "--json")
    assert done.code == 3
    (record,) = done.records
    assert record["read"] == 6
    assert (record["indexed"], record["replaced"]) == (3, 0)
    assert (record["duplicate"], record["rejected"]) == (1, 2)
    rejects = [json.loads(line) for line in Path(record["rejects_file"]).read_text().splitlines()]
    assert record["rejects_file"] == f"{out}.rejects.jsonl"
    assert [reject["source"].rpartition(":")[2] for reject in rejects] == ["6", "5"]
    assert "other content" in rejects[1]["reason"]
    assert "2 rows were rejected" in done.err


def test_build_takes_the_names_of_fields_and_types(write: Write, tmp_path: Path) -> None:
    source = write("papers.jsonl", {"id": "a", "abstract": "On mills.", "body": "A.", "year": "5"})
    options = ("--text-field", "abstract, body", "--metadata-fields", "year")
    done = build(source, "--out", tmp_path / "i", *options, "--column-type", "year=int")
    assert done.code == 0, done.err
    index = Index.open(tmp_path / "i")
    assert index.info().columns == {"year": "int64"}
    assert [document.text for document in index] == ["On mills.\n\nA."]
    formats = "when=date:%B %d, %Y,price=float:1.234,56"  # with the comma between options
    source = write("german.jsonl", {"text": "x", "when": "May 1, 2024", "price": "1.234,5"})
    done = build(source, "--out", tmp_path / "f", "--column-type", formats)
    assert done.code == 0, done.err
    assert Index.open(tmp_path / "f").info().columns == {"when": "date", "price": "float64"}
    source = tmp_path / "papers.jsonl"
    for wrong, reason in (("year", "write NAME=TYPE"), ("year=whole", "Unknown column type")):
        refused = build(source, "--out", tmp_path / "j", *options, "--column-type", wrong)
        assert refused.code in (1, 2)
        assert reason in refused.err


def test_build_reads_stdin_folders_and_globs(corpus: Path, write: Write, tmp_path: Path) -> None:
    done = build("-", "--out", tmp_path / "a", "--json", stdin=corpus.read_text())
    assert done.records[0]["indexed"] == 3
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "one.md").write_text("first note")
    (notes / "two.txt").write_text("second note")
    assert build(notes, "--out", tmp_path / "b", "--json").records[0]["indexed"] == 2
    write("x1.jsonl", ROWS[0])
    write("x2.jsonl", ROWS[1])
    done = build(tmp_path / "x*.jsonl", "--out", tmp_path / "c", "--json")
    assert done.records[0]["indexed"] == 2


def test_an_id_without_its_option_is_not_deleted(index: Path) -> None:
    done = sbert_search("index", "delete", index, "mill", "a b")
    assert (done.code, "Name ids by --ids: --ids 'mill,a b'" in done.err) == (2, True)
    assert len(Index.open(index)) == 3


def test_fields_can_be_named(write: Write, tmp_path: Path) -> None:
    source = write("odd.csv", "key,headline,story,year", "k1,Mill,Water turns it,1999")
    out = tmp_path / "my.index"
    names = ["--id-field", "key", "--title-field", "headline", "--text-field", "story"]
    assert build(source, "--out", out, *names).code == 0
    (hit,) = sbert_search("search", out, "water", "--json").records
    assert (hit["doc_id"], hit["title"], hit["metadata"]) == ("k1", "Mill", {"year": 1999})


def test_a_finished_index_is_not_overwritten(index: Path, corpus: Path, write: Write) -> None:
    before = (index / "MANIFEST.json").read_bytes()
    done = build(write("other.csv", "id,text", "k1,Water turns it"), "--out", index)
    assert done.code == 1
    assert "already holds a finished index, made of another source" in done.err
    assert "index upsert" in done.err
    for option in (("--metric", "dot"), ("--new-columns", "error")):
        other = build(corpus, "--out", index, *option)
        assert other.code == 1
        assert "already holds a finished index, made with other settings" in other.err
    assert (index / "MANIFEST.json").read_bytes() == before


def test_the_same_build_again_changes_nothing(index: Path, corpus: Path) -> None:
    before = (index / "MANIFEST.json").read_bytes()
    done = build(corpus, "--out", index)
    assert done.code == 0, done.err
    assert "0 indexed, 0 replaced," in done.out
    assert "is the finished index of these rows and settings" in done.err
    assert (index / "MANIFEST.json").read_bytes() == before


def test_a_folder_with_other_things_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = build(corpus, "--out", tmp_path)
    assert done.code == 1
    assert "thesis.txt" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_recipe_holds_the_settings(corpus: Path, write: Write, tmp_path: Path) -> None:
    recipe = write("r.toml", 'corpus = "three rows"', 'model = "hashing"', 'dtype = "float16"')
    out = tmp_path / "my.index"
    done = sbert_search("index", "build", corpus, "--recipe", recipe, "--out", out)
    assert done.code == 0, done.err
    assert sbert_search("index", "info", out, "--json").records[0]["dtype"] == "float16"
    other = tmp_path / "other.index"
    options = ["--recipe", recipe, "--dtype", "float32", "--model", "hashing:64"]
    assert sbert_search("index", "build", corpus, *options, "--out", other).code == 0
    info = sbert_search("index", "info", other, "--json").records[0]
    assert (info["dtype"], info["dim"]) == ("float32", 64)


def test_a_recipe_wins_over_the_configuration_file_and_the_environment(
    corpus: Path, write: Write, tmp_path: Path
) -> None:
    recipe = write("r.toml", 'corpus = "three rows"', 'model = "hashing:32"', 'dtype = "float16"')
    build = '[index.build]\ndtype = "float32"\nchunk-tokens = 64\n'
    (tmp_path / "sbert-search.toml").write_text(f'model = "hashing:64"\n{build}')
    out = tmp_path / "my.index"
    line = ("index", "build", corpus, "--recipe", recipe, "--metric", "dot", "--out", out)
    done = sbert_search(*line, cwd=tmp_path, env={"SBERT_SEARCH_MODEL": "hashing:16"})
    assert done.code == 0, done.err
    info = sbert_search("index", "info", out, "--json").records[0]
    assert (info["dim"], info["dtype"], info["metric"]) == (32, "float16", "dot")
    assert info["chunk_tokens"] is None


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("IVF64,PQ50", "multiple of the number of"),
        ("PCA99,SQ8", "cannot increase"),
    ],
)
def test_a_spec_that_the_vectors_cannot_have_is_refused_at_once(
    spec: str, reason: str, corpus: Path, tmp_path: Path
) -> None:
    options = ["--model", "hashing:64", "--spec", spec, "--out", tmp_path / "i"]
    refused = sbert_search("index", "build", corpus, *options)
    assert (refused.code, (tmp_path / "i").exists()) == (2, False)
    assert f"{spec!r}, which does not fit vectors of 64 dimensions" in refused.err
    assert reason in refused.err


def test_add_is_idempotent_and_upsert_replaces(index: Path, write: Write) -> None:
    changed = {**ROWS[1], "text": "The mill has burnt down."}
    source = write("more.jsonl", ROWS[0], {"_id": "new", "text": "A new one.", "year": 2026})
    (added,) = sbert_search("index", "add", index, source, "--json").records
    assert (added["indexed"], added["duplicate"]) == (1, 1)
    (again,) = sbert_search("index", "add", index, source, "--json").records
    assert (again["indexed"], again["duplicate"]) == (0, 2)
    source = write("changed.jsonl", changed)
    conflict = sbert_search("index", "add", index, source)
    assert conflict.code == 1
    assert "changed.jsonl:1: the id is already indexed with other content" in conflict.err
    (upserted,) = sbert_search("index", "upsert", index, source, "--json").records
    assert upserted["replaced"] == 1
    hits = sbert_search("search", index, "burnt", "-k", "1", "--json").records
    assert hits[0]["text"] == changed["text"]


def test_delete_by_id_file_and_filter(index: Path, write: Write) -> None:
    out = sbert_search("index", "delete", index, "--ids", "mill,nobody,nobody").out
    assert out == f"Documents deleted: 1, left in {index}: 2; unknown ids: 1.\n"
    ids = write("ids.txt", "bread")
    (done,) = sbert_search("index", "delete", index, "--ids-file", ids, "--json").records
    assert (done["deleted"], done["absent"], done["documents"]) == (1, 0, 1)
    (done,) = sbert_search("index", "delete", index, "--where", "year > 1", "--json").records
    assert (done["deleted"], done["documents"]) == (1, 0)
    done_twice = sbert_search("index", "delete", index, "--where", "year > 1", "--ids", "mill")
    assert done_twice.code == 2


def test_an_ids_file_names_ids_with_any_separator_but_a_line_end(tmp_path: Path) -> None:
    strange = [f"a{separator}b" for separator in "\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029"]
    docs = tmp_path / "docs.jsonl"
    docs.write_text(
        "".join(json.dumps({"_id": i, "text": "t"}) + "\n" for i in ["a", "b", *strange])
    )
    index = tmp_path / "i"
    assert build(docs, "--out", index).code == 0
    ids = tmp_path / "ids.txt"
    ids.write_bytes(b"\xef\xbb\xbf" + "".join(f"{i}\r\n" for i in strange).encode())
    (done,) = sbert_search("index", "delete", index, "--ids-file", ids, "--json").records
    assert (done["deleted"], done["absent"], done["documents"]) == (9, 0, 2)
    ids.write_bytes(b"a\nb\xff\n")
    refused = sbert_search("index", "delete", index, "--ids-file", ids)
    assert refused.code == 1
    assert refused.err == (
        f"sbert-search: {ids}:2: invalid UTF-8 at byte 2 (b'b\\xff'). Fix it, or convert the file, "
        "such as by iconv -f cp1252 -t utf-8 FILE.\n"
    )
    piped = sbert_search("index", "delete", index, "--ids-file", "-", "--json", stdin="a\n")
    assert piped.records[0]["documents"] == 1
    (done,) = sbert_search("index", "delete", index, "--ids", "\udcff,b", "--json").records
    assert (done["deleted"], done["absent"]) == (1, 1)


def test_a_deletion_counts_from_what_others_left(index: Path) -> None:
    opened = Index.open(index)
    assert Index.open(index).delete(["mill"]) == 1
    assert opened.delete(["bread"]) == 1
    assert len(opened) == 1


def test_info_says_how_an_index_is_searched(corpus: Path, tmp_path: Path) -> None:
    for spec, shown in (("Flat", "exact scan\n"), ("HNSW32", "an index below 50,000 passages")):
        out = tmp_path / spec
        assert build(corpus, "--spec", spec, "--out", out).code == 0
        assert shown in sbert_search("index", "info", out).out


def test_info_check_repair_compact_snapshot(index: Path, tmp_path: Path) -> None:
    sbert_search("index", "delete", index, "--ids", "mill")
    (info,) = sbert_search("index", "info", index, "--json").records
    assert (info["documents"], info["dead_rows"], info["columns"]) == (2, 0, {"year": "int64"})
    assert (info["model"]["name"], info["finished"]) == ("hashing", True)
    shown = sbert_search("index", "info", index)
    assert "384 x float32, cosine" in shown.out
    checked = sbert_search("index", "check", index)
    assert (checked.code, "is sound" in checked.out) == (0, True)
    checked = sbert_search("index", "check", index, "--recall", "0.9")
    assert (checked.code, "--recall is for --drift" in checked.err) == (2, True)
    (repaired,) = sbert_search("index", "repair", index, "--json").records
    assert repaired["dropped"] == []
    (compacted,) = sbert_search("index", "compact", index, "--json").records
    assert (compacted["before"]["segments"], compacted["after"]["segments"]) == (1, 1)
    said = sbert_search("index", "compact", index).out
    assert "1 segment, " in said
    assert "1 segments" not in said
    copy = tmp_path / "copy.index"
    assert sbert_search("index", "backup", index, copy).code == 0
    again = sbert_search("index", "backup", index, copy)
    assert (again.code, f"{copy} exists already; name a new" in again.err) == (2, True)
    asked = ["river", "--json"]
    assert sbert_search("search", copy, *asked).out == sbert_search("search", index, *asked).out


def test_embed_writes_vectors_as_a_fixed_size_list(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "vectors.parquet"
    (done,) = sbert_search("embed", corpus, "--out", out, "--json", env=HASHING).records
    assert (done["file"], done["indexed"], done["passages"]) == (str(out), 3, 3)
    told = sbert_search("embed", corpus, "--out", out, env=HASHING).out
    assert told.startswith("3 rows read: 3 embedded, 0 rejected (")
    taken = sbert_search("index", "build", corpus, "--out", out, env=HASHING)
    assert (taken.code, "is a file" in taken.err) == (2, True)
    table = pq.read_table(out)
    assert str(table.schema.field("vector").type).startswith("fixed_size_list")
    vectors = table.column("vector").combine_chunks().flatten().to_numpy().reshape(3, 384)
    texts = table.column("text").to_pylist()
    assert texts[0] == "Vaccines They train immune cells."
    assert (vectors == HashingEmbedder().encode(texts)).all()
    assert table.column("year").to_pylist() == [2020, 1999, 2010]


@pytest.mark.parametrize("command", ["add", "upsert", "delete", "info", "check", "compact"])
def test_what_is_no_index_is_named(command: str, corpus: Path, tmp_path: Path) -> None:
    arguments: dict[str, list[object]] = {"delete": ["--ids", "x"]}
    more = arguments.get(command, [corpus] if command in ("add", "upsert") else [])
    done = sbert_search("index", command, tmp_path, *more)
    assert done.code == 1
    assert f"{tmp_path} holds no index" in done.err
    assert list(tmp_path.iterdir()) == []


def test_embed_tells_metadata_from_columns_of_its_own(tmp_path: Path) -> None:
    source, out = tmp_path / "c.jsonl", tmp_path / "v.parquet"
    source.write_text(
        '{"_id": "1", "text": "t", "doc_id": "other", "vector": "v", "n": 2, "meta.vector": "w"}\n'
    )
    assert sbert_search("embed", source, "--out", out, env=HASHING).code == 0
    [row] = pq.read_table(out).to_pylist()
    assert (row["doc_id"], row["meta.doc_id"]) == ("1", "other")
    assert (row["meta.meta.vector"], row["meta.vector"], row["n"]) == ("v", "w", 2)
    assert len(pq.read_schema(out).names) == len(set(pq.read_schema(out).names))


def test_embed_refuses_the_name_of_another_format(corpus: Path, tmp_path: Path) -> None:
    done = sbert_search("embed", corpus, "--out", tmp_path / "vectors.npy", env=HASHING)
    assert done.code == 2
    assert "vectors.npy: the file is written as Parquet; name a file such as x.parquet." in done.err
    assert not (tmp_path / "vectors.npy").exists()
