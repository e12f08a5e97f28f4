"""Updates that change a part of a document: which vectors stay, and which model is opened."""

from __future__ import annotations

import json
import multiprocessing
import random
import re
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search import Boost, FieldNames, Index, SearchEngine
from sbert_search.base.progress import set_quiet
from sbert_search.embed.delegation import LazyEmbedder
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, CorpusError, IndexStoreError, QueryError
from sbert_search.index.building import model_check
from sbert_search.index.settings import IndexSpec
from sbert_search.records import RowCounts
from tests.cli.process import sbert_search

WORDS = ["river", "mill", "wheel", "stone", "bread", "moon", "grain", "field", "lamp", "coin"]


def never() -> TextEmbedder:
    raise AssertionError("no text is embedded, so the model must not be opened")


UNOPENED = LazyEmbedder(never)


def shop(n: int, seed: int = 0, words: int = 30) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "_id": f"d{i}",
            "title": f"T{i}",
            "text": " ".join(rng.choices(WORDS, k=words)),
            "price": i,
        }
        for i in range(n)
    ]


def dearer(rows: list[dict[str, Any]], by: int = 1) -> list[dict[str, Any]]:
    return [{**row, "price": row["price"] + by} for row in rows]


def passages(index: Index) -> dict[tuple[str, int], tuple[object, bytes]]:
    """Return span, tokens and the bytes of the vector of each passage, in order."""
    state = index.state
    return {
        (p.document.doc_id, p.chunk): (
            (p.char_start, p.char_end, p.n_tokens, p.lost_tokens),
            state.vectors(np.array([p.row]))[0].tobytes(),
        )
        for p in state.fetch(state.live_rows())
    }


@pytest.mark.parametrize("n_shards", [None, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_unchanged_text_keeps_its_vectors_and_opens_no_model(
    dtype: Any, n_shards: int | None
) -> None:
    rows = shop(40)
    index = Index.build(rows, model="hashing:24", dtype=dtype, chunk_tokens=16, n_shards=n_shards)
    before = passages(index)
    assert len(before) > len(rows)
    report = index.upsert(dearer(rows), model=UNOPENED)
    assert (report.counts.replaced, report.reused, report.passages) == (40, 40, 0)
    assert passages(index) == before
    assert [document.metadata["price"] for document in index] == list(range(1, 41))
    assert index.check().problems == ()
    assert index.upsert(dearer(rows), model=UNOPENED).counts.duplicate == 40


def test_a_mixed_update_equals_a_new_index_in_the_order_of_its_rows() -> None:
    rng, rows = random.Random(1), shop(60)
    index = Index.build(rows, model="hashing:24", chunk_tokens=16)
    for seed in range(6):
        other = {row["_id"]: row for row in shop(60, seed=rng.randrange(3))}
        rows = [other[row["_id"]] if rng.random() < 0.4 else row for row in rows]
        rows = dearer(rows, rng.randrange(1, 3))
        twice = rows[7]  # the last of two rows with one id holds
        first = {**twice, "text": "another text", "price": -1}
        index.upsert([first, *rows])
        assert index.upsert([{**twice, "price": -2}, twice, first, twice]).reused >= 3, seed
        rows = [*rows[:7], *rows[8:], twice]
    fresh = Index.build(rows, model="hashing:24", chunk_tokens=16)
    assert list(passages(index).items()) == list(passages(fresh).items())
    assert {d.doc_id: d.metadata for d in index} == {d.doc_id: d.metadata for d in fresh}


def test_a_change_of_the_title_or_of_how_texts_are_cut_is_embedded() -> None:
    rows = shop(8)
    index = Index.build(rows, model="hashing:24", chunk_tokens=16)
    assert index.upsert([{**row, "title": "Other"} for row in rows]).reused == 0
    other = [{**row, "title": "Other"} for row in dearer(rows)]
    assert index.upsert(other, chunk_tokens=12).reused == 0
    fresh = Index.build(other, model="hashing:24", chunk_tokens=12)
    assert passages(index) == passages(fresh)
    short = Index.build(shop(8, words=5), model="hashing:24")
    assert short.upsert(dearer(shop(8, words=5)), chunk_tokens=64, model=UNOPENED).reused == 8


def test_a_given_vector_stays_while_the_text_stays() -> None:
    row = {"_id": "a", "text": "a river", "vec": [1.0, 0.0, 0.0, 0.0], "price": 1}
    index = Index.build([row], model="hashing:4", vectors="vec")
    report = index.upsert([{"_id": "a", "text": "a river", "price": 2}])
    assert (report.reused, report.passages) == (1, 0)
    report = index.upsert([{"_id": "a", "price": 3}], partial=True)
    assert (report.reused, report.passages) == (1, 0)
    assert index.state.vectors(index.state.live_rows()).tolist() == [row["vec"]]
    index.upsert([{"_id": "a", "vec": [0.0, 0.0, 1.0, 0.0]}], partial=True)
    (document,) = index
    assert (document.text, document.metadata) == ("a river", {"price": 3})
    assert index.state.vectors(index.state.live_rows()).tolist() == [[0.0, 0.0, 1.0, 0.0]]
    assert index.upsert([{"_id": "a", "text": "a mill"}], partial=True).passages == 1
    expected = HashingEmbedder(4).encode_document(["a mill"])
    np.testing.assert_allclose(index.state.vectors(index.state.live_rows()), expected, atol=1e-6)
    bare = Index.build([row], vectors="vec")
    assert bare.upsert([{"_id": "a", "price": 3}], partial=True).reused == 1
    bare.upsert([{"_id": "a", "vec": [0.0, 0.0, 1.0, 0.0]}], partial=True)
    (document,) = bare
    assert (document.text, document.metadata) == ("a river", {"price": 3})
    assert bare.state.vectors(bare.state.live_rows()).tolist() == [[0.0, 0.0, 1.0, 0.0]]
    with pytest.raises(CorpusError, match=r"no model that could embed it \(a\)"):
        bare.upsert([{"_id": "a", "text": "a mill"}], partial=True)
    with pytest.raises(ConfigError, match="rows of an index with given vectors must be whole"):
        bare.upsert([{"_id": "a", "price": 3}], vectors=[[1.0, 0.0, 0.0, 0.0]], partial=True)


@pytest.mark.parametrize("n_shards", [None, 2])
def test_vectors_of_both_models_of_a_migration_stay(n_shards: int | None) -> None:
    rows = shop(20)
    index = Index.build(rows, model="hashing:24", n_shards=n_shards)
    index.migrate("hashing:40", switch=False)
    index.upsert(dearer(rows), model=UNOPENED)
    report = index.migrate("hashing:40")
    assert (report.embedded, report.switched) == (0, True)
    assert passages(index) == passages(Index.build(rows, model="hashing:40"))
    index.upsert(dearer(rows, 2), model=UNOPENED)
    index.upsert([{**rows[0], "text": "a new text"}])
    assert index.roll_back().embedded == 1
    assert index.check().problems == ()
    fresh = Index.build([*rows[1:], {**rows[0], "text": "a new text"}], model="hashing:24")
    assert passages(index) == passages(fresh)


def test_a_quantised_index_keeps_the_exact_vectors() -> None:
    rows = shop(400, words=6)
    index = Index.build(rows, model="hashing:24", spec=IndexSpec(factory="SQ8"))
    before = passages(index)
    index.upsert(dearer(rows), model=UNOPENED)
    assert passages(index) == before
    index.compact(retrain=True)
    assert passages(index) == before


def test_an_index_opens_its_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    real = model_check.as_embedder

    def spied(model: Any = None, **options: Any) -> TextEmbedder:
        opened.append(model if isinstance(model, str) else "open")
        return real(model, **options)

    index = Index.from_texts(["a river"], model="hashing:24")
    monkeypatch.setattr(model_check, "as_embedder", spied)
    for text in ("a mill", "a wheel", "bread"):
        index.add([{"_id": text, "text": text}])
    assert opened == ["hashing:24", "open", "open"]
    opened.clear()
    index.upsert([{"_id": "a mill", "text": "stone"}], batch_tokens=512)
    assert opened == ["hashing:24"]
    index.migrate("hashing:40")
    opened.clear()
    index.upsert([{"_id": "a mill", "text": "moon"}])
    assert opened == ["hashing:40"]


def test_an_index_on_disk_is_sent_to_a_process_without_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise TypeError("the model is sent, too")

    monkeypatch.setattr(HashingEmbedder, "__reduce_ex__", refuse)
    index = Index.create(tmp_path / "i", model="hashing:24")
    index.add([{"_id": "a", "text": "a mill"}])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(len, (index,)) == 1


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_a_sync_with_a_table_makes_the_index_equal_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, index = shop(20), Index.build(shop(20), model="hashing:24")
    new = [{**rows[2], "price": 99}, *rows[3:], {"_id": "new", "text": "a lamp", "price": 5}]
    sheet = written(tmp_path / "sheet.jsonl", [{**rows[4], "text": "a draft"}, *new])
    planned = index.sync(sheet, dry_run=True)
    assert len(index) == 20
    report = index.sync(sheet)
    for each in (planned, report):
        assert (each.added, each.replaced, each.deleted) == (("new",), ("d2",), ("d0", "d1"))
        assert each.unchanged == 17
    said = "Several rows have one id, of which the last row counts: d4.\n"
    assert capsys.readouterr().err == 2 * said
    fresh = Index.build(new, model="hashing:24")
    assert {d.doc_id: (d.text, d.metadata) for d in index} == {
        d.doc_id: (d.text, d.metadata) for d in fresh
    }
    assert sorted(passages(index).items()) == sorted(passages(fresh).items())
    assert index.sync(sheet, model=UNOPENED).changes == 0


def test_an_upsert_names_the_ids_that_several_rows_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows, index = shop(2000), Index.build(shop(3), model="hashing:24")
    capsys.readouterr()
    index.upsert([*rows, rows[5], *dearer(rows[:7])])
    said = "the last row counts: d0, d1, d2, d3, d4 and 2 more.\n"
    assert capsys.readouterr().err.endswith(said)
    assert [d.metadata["price"] for d in index.documents(sort="price", limit=2)] == [1, 2]
    index.upsert([rows[0], rows[0], *dearer(rows[:1], 2)])
    assert capsys.readouterr().err.endswith("the last row counts: d0.\n")
    index.upsert([rows[9], rows[9]])
    assert capsys.readouterr().err == ""


def test_a_sync_with_a_table_refuses_to_delete_most_documents(tmp_path: Path) -> None:
    rows, index = shop(20), Index.build(shop(20), model="hashing:24")
    for n, reason in ((0, "holds no rows, so a sync would delete all"), (9, "delete 11 of 20")):
        cut = written(tmp_path / "sheet.jsonl", rows[:n])
        for dry_run in (True, False):
            with pytest.raises(CorpusError, match=reason):
                index.sync(cut, dry_run=dry_run)
    (tmp_path / "sheet.jsonl").write_text('{"_id": 3}\n{"_id": ')
    with pytest.raises(CorpusError):
        index.sync(tmp_path / "sheet.jsonl", allow_empty=True)
    assert len(index) == 20
    index.sync(written(tmp_path / "sheet.jsonl", rows[:1]), allow_empty=True)
    assert [document.doc_id for document in index] == ["d0"]
    with pytest.raises(CorpusError, match="No such file"):
        index.sync(tmp_path / "gone.csv", allow_empty=True)


def test_a_dry_run_of_a_sync_says_what_the_sync_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index, sheet = Index.build(shop(4), model="hashing:24"), tmp_path / "sheet.jsonl"
    renamed = [{"_id": row["_id"], "text": row["text"], "cost": row["price"]} for row in shop(4)]
    written(sheet, renamed)
    capsys.readouterr()
    said = set()
    for dry_run in (True, False):
        assert len(index.sync(sheet, dry_run=dry_run).replaced) == 4
        said.add(capsys.readouterr().err)
        assert ("price" in next(iter(index)).metadata) is dry_run
    (message,) = said
    assert message.count("New metadata columns: cost") == 1
    assert "No row has the column 'price', so 4 documents lose values." in message
    for dry_run in (True, False):
        written(sheet, [{**row, "other": 1} for row in renamed])
        with pytest.raises(CorpusError, match="new_columns is error"):
            index.sync(sheet, dry_run=dry_run, new_columns="error")


def test_a_chosen_column_that_a_table_lacks_is_refused_where_columns_may_not_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "shop.csv"
    table.write_text("_id,text,price\na,a mill,1\nb,a river,\n")
    fields = ["price"]
    index = Index.build(table, model="hashing:24", out=tmp_path / "i", metadata_fields=fields)
    table.write_text("_id,text,preis\na,a mill,1\nb,a river,\n")
    for dry_run in (True, False):
        with pytest.raises(CorpusError, match=r"'price', so one document loses values\. Such"):
            index.sync(table, new_columns="error", dry_run=dry_run)
        with pytest.raises(CorpusError, match="new_columns is error"):
            index.upsert(table, new_columns="error", dry_run=dry_run)
    assert [each.metadata for each in index] == [{"price": 1}, {}]
    new = tmp_path / "new.csv"
    new.write_text("_id,text\nc,a lamp\n")
    assert index.upsert(new, new_columns="error").counts.indexed == 1  # no document loses a value
    capsys.readouterr()
    part = tmp_path / "part.csv"
    part.write_text("_id,preis\na,2\n")
    assert index.upsert(part, partial=True).counts.duplicate == 1
    assert "Not read, since the index does not name them among its metadata fields: preis" in (
        capsys.readouterr().err
    )
    both = ["price", "preis"]
    assert index.upsert(part, partial=True, metadata_fields=both).counts.replaced == 1
    assert "Not read" not in capsys.readouterr().err


def test_partial_rows_without_the_field_of_the_ids_are_told_its_name(tmp_path: Path) -> None:
    fields = FieldNames(id="Nr", text=("Antwort",))
    index = Index.build([{"Nr": "A1", "Antwort": "ja"}], model="hashing:24", fields=fields)
    said = "Unknown id field 'Nr'; known: _id, text. The ids of partial rows belong there."
    with pytest.raises(CorpusError, match=re.escape(said)):
        index.upsert([{"_id": "A1", "text": "nein"}], partial=True)
    assert index.upsert([{"Nr": "A1", "Antwort": "nein"}], partial=True).counts.replaced == 1


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_misspelt_name_of_a_chosen_column_is_refused_or_told(
    tmp_path: Path, dry_run: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": n, "text": f"mill {n}", "price": n, "note": "x"} for n in ("1", "2", "3")]
    index = Index.build(rows, model="hashing:24", metadata_fields=["price"])
    misspelt = [{k.replace("price", "prcie"): v for k, v in rows[0].items()}, *rows[1:]]
    part = [{"id": "1", "prise": "7"}]
    for change in (
        partial(index.upsert, misspelt),
        partial(index.upsert, part, partial=True),
    ):
        with pytest.raises(CorpusError, match=r"Not read.* \(did you mean price"):
            change(new_columns="error", dry_run=dry_run)
        assert [each.metadata for each in index] == [{"price": n} for n in ("1", "2", "3")]
        capsys.readouterr()
        change(dry_run=True)
        assert "did you mean price?" in capsys.readouterr().err
    # Two similar names are two fields, not a misspelling, if some row has both.
    both: list[dict[str, object]]
    both = [{**rows[0], "prices": "1, 2"}, {**rows[1], "price": None, "prices": "3"}]
    index.upsert(both, new_columns="error", dry_run=dry_run)
    assert "Not read" not in capsys.readouterr().err


def test_a_column_that_is_no_longer_read_and_a_renamed_text_field_are_not_lost_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"_id": "a", "text": "a mill", "name": "Velora", "price": 1, "stock": 2}]
    table = tmp_path / "shop.jsonl"
    table.write_text(json.dumps(rows[0]))
    fields = FieldNames(text=("text", "name"))
    path = tmp_path / "i"
    index = Index.build(
        table, model="hashing:24", out=path, fields=fields, metadata_fields=["price"]
    )
    index.sync(table, metadata_fields=["price", "stock"])
    capsys.readouterr()
    unread = "'stock' is not among the metadata fields that are read, so one document loses values"
    for dry_run in (True, False):
        with pytest.raises(CorpusError, match=unread):
            index.sync(table, new_columns="error", dry_run=dry_run)
    for dry_run in (True, False):
        assert index.sync(table, dry_run=dry_run).replaced == ("a",)
        assert capsys.readouterr().err.count(unread) == 1
    table.write_text(json.dumps({**rows[0], "nom": rows[0].pop("name")}).replace('"name"', '"x"'))
    gone = "No row has the text field 'name', so one document loses values"
    for dry_run in (True, False):
        with pytest.raises(CorpusError, match=gone):
            index.sync(table, new_columns="error", dry_run=dry_run)
    assert [each.text for each in index] == ["a mill\n\nVelora"]
    for dry_run in (True, False):
        assert index.sync(table, dry_run=dry_run).replaced == ("a",)
        assert capsys.readouterr().err.count(gone) == 1
    assert [each.text for each in index] == ["a mill"]


def test_rows_without_ids_are_named_at_the_build_and_when_a_sync_would_delete_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "has no id field, so the number of a row is its id"
    rows = [{"nr": row["_id"], "text": row["text"]} for row in shop(4)]
    index = Index.build(written(tmp_path / "monday.jsonl", rows), model="hashing:24")
    assert f"monday.jsonl {said}" in (err := capsys.readouterr().err)
    assert "If a column (nr) identifies a row" in err
    for dry_run in (True, False):
        with pytest.raises(CorpusError, match=r"4 of 4 .* no id field.* a field of ids"):
            index.sync(written(tmp_path / "tuesday.jsonl", rows), dry_run=dry_run)
    written(tmp_path / "monday.jsonl", rows[1:])
    for dry_run in (True, False):
        index.sync(tmp_path / "monday.jsonl", dry_run=dry_run)
        assert "each replaces the document with its number" in capsys.readouterr().err
    for named in (written(tmp_path / "ids.jsonl", shop(2)), rows, [{"text": "a mill"}]):
        Index.build(named, model="hashing:24")
        assert said not in capsys.readouterr().err
    texts = written(tmp_path / "texts.jsonl", [{"text": "a mill"}])
    Index.build(texts, model="hashing:24")  # no column that could be an id
    assert said not in capsys.readouterr().err


@pytest.mark.parametrize("is_folder_first", [True, False])
def test_an_index_mirrors_a_folder_and_a_table(tmp_path: Path, is_folder_first: bool) -> None:
    (tmp_path / "notes").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"notes/{name}.md").write_text(f"A river {name}.")
    sheet = written(tmp_path / "sheet.jsonl", shop(3))
    sources = [tmp_path / "notes", sheet] if is_folder_first else [sheet, tmp_path / "notes"]
    index = Index.build(sources[0], model="hashing:24")
    assert len(index.sync(sources[1]).added) in (2, 3)
    (tmp_path / "notes/a.md").unlink()
    written(sheet, [*shop(3)[1:], {"_id": "new", "text": "a lamp", "path": "b.md"}])
    for _ in range(2):
        reports = [index.sync(source) for source in (sheet, tmp_path / "notes")]
    assert [(report.changes, report.documents) for report in reports] == [(0, 4)] * 2
    assert {document.doc_id for document in index} == {"d1", "d2", "new", "b.md"}
    written(sheet, [*shop(3), {"_id": "b.md", "text": "the id of a file"}])
    with pytest.raises(IndexStoreError, match=r"have the ids of rows: b\.md"):
        index.sync(sheet)
    with pytest.raises(CorpusError, match="delete 3 of 3 documents of rows"):
        index.sync(written(sheet, [{"_id": "x", "text": "a row of another table"}]))
    assert len(index) == 4


def test_partial_rows_change_only_the_fields_that_they_have(tmp_path: Path) -> None:
    rows, index = shop(6), Index.build(shop(6), model="hashing:24", chunk_tokens=16)
    before = passages(index)
    feed = tmp_path / "feed.csv"
    feed.write_text("_id,price,stock\nd1,77,3\nd2,,4\n")
    report = index.upsert(feed, partial=True, model=UNOPENED)
    assert (report.counts.replaced, report.reused) == (2, 2)
    assert sorted(passages(index).items()) == sorted(before.items())
    found = {document.doc_id: document for document in index}
    assert found["d1"].metadata == {"price": 77, "stock": 3}
    assert found["d2"].metadata == {"price": 2, "stock": 4}
    assert (found["d1"].title, found["d1"].text) == ("T1", rows[1]["text"])
    index.upsert([{"_id": "d3", "text": "a violin"}], partial=True)
    (changed,) = [document for document in index if document.doc_id == "d3"]
    assert (changed.full_text, changed.metadata) == ("T3 a violin", {"price": 3})
    assert index.check().problems == ()


def test_a_partial_row_keeps_a_text_of_several_fields_or_has_all_of_them() -> None:
    fields = FieldNames(id="sku", text=("sku", "name", "about"))
    row = {"sku": "BM-40", "name": "Mill", "about": "grinds grain", "kind": "tool", "stock": 1}
    index = Index.build([row], model="hashing:24", fields=fields)
    for change in ({"stock": 7}, {"stock": 7, "kind": "", "name": "", "about": None}):
        index.upsert([{"sku": "BM-40", **change}], partial=True, model=UNOPENED)
        (document,) = index
        assert document.text == "BM-40\n\nMill\n\ngrinds grain"
        assert document.metadata == {"kind": "tool", "stock": 7}
    with pytest.raises(CorpusError, match="joined from 'name', 'about'; a partial row has all of"):
        index.upsert([{"sku": "BM-40", "name": "Drill"}], partial=True)
    index.upsert([{"sku": "BM-40", "name": "Drill", "about": "bores"}], partial=True)
    assert [document.text for document in index] == ["BM-40\n\nDrill\n\nbores"]
    for whole in ({"stock": 9}, {"name": "", "stock": 9}):
        with pytest.raises(CorpusError, match=r"partial|blank document"):
            index.upsert([{"sku": "BM-40", **whole}])
    assert [document.text for document in index] == ["BM-40\n\nDrill\n\nbores"]


def test_a_partial_row_under_other_field_names_brings_the_text_that_it_changes() -> None:
    fields = FieldNames(id="sku", title="name", text=("about", "brand"))
    row = {"sku": "M4", "name": "Mill", "about": "grinds", "brand": "Velora", "stock": 1}
    columns = ["name", "brand", "stock"]
    index = Index.build([row], model="hashing:24", fields=fields, metadata_fields=columns)

    def change(**values: object) -> dict[str, object]:
        own = FieldNames(id="_id", title="title", text="text")  # as in requests to a server
        rows = [{"_id": "M4", "title": "", "text": "", **values}]
        index.upsert(rows, partial=True, fields=own, metadata_fields=None)
        (document,) = index
        return {"title": document.title, "text": document.text, **document.metadata}

    whole = {"title": "Mill", "text": "grinds\n\nVelora", "name": "Mill", "brand": "Velora"}
    assert change(stock=2) == {**whole, "stock": 2}
    assert change(brand="Velora", name=None, about="", stock=3) == {**whole, "stock": 3}
    for values, message in (
        ({"brand": "Urbano"}, "text is joined from 'about', 'brand'; a partial row with a new 'br"),
        ({"about": "mills"}, "with a new 'about' has the new text, too, as 'text'"),
        ({"name": "Drill"}, "title is that of 'name'; .* has the new title, too, as 'title'"),
        ({"name": "Drill", "text": "bores"}, "title is that of 'name'"),
    ):
        with pytest.raises(CorpusError, match=message):
            change(stock=9, **values)
    assert change(brand="Urbano", text="grinds\n\nUrbano") == {
        **whole,
        "text": "grinds\n\nUrbano",
        "brand": "Urbano",
        "stock": 3,
    }


def test_a_partial_update_clears_the_columns_that_it_names() -> None:
    fields = FieldNames(id="_id", text=("text", "brand"))
    row = {"_id": "a", "text": "a mill", "brand": "Velora", "price": 1, "sale": 0.5}
    columns = ["brand", "price", "sale"]
    index = Index.build([row], model="hashing:24", fields=fields, metadata_fields=columns)

    def clear(*names: str, **values: object) -> dict[str, object]:
        rows, own = [{"_id": "a", **values}], FieldNames(id="_id", text="text")
        index.upsert(rows, partial=True, clear={"a": names}, fields=own, metadata_fields=columns)
        (document,) = index
        return {"text": document.text, **document.metadata}

    with pytest.raises(ConfigError, match="Unknown column 'sle'; did you mean 'sale'"):
        clear("sale", "sle")
    assert clear("sale") == {"text": "a mill\n\nVelora", "brand": "Velora", "price": 1}
    with pytest.raises(CorpusError, match="with a new 'brand' has the new text"):
        clear("brand")
    assert clear("brand", text="a mill", price=2) == {"text": "a mill", "price": 2}
    with pytest.raises(CorpusError, match="has a value of 'price', which it is to lose"):
        clear("price", price=3)
    with pytest.raises(ConfigError, match=r"clear names ids that no row has: b\. Leave"):
        index.upsert([{"_id": "a"}], partial=True, clear={"a": ["price"], "b": ["price"]})
    with pytest.raises(ConfigError, match="clear needs partial=True"):
        index.upsert([row], clear={"a": ["sale"]})
    report = index.upsert([{"_id": "a", "prcie": 3}], partial=True, metadata_fields=None)
    assert (report.new_columns, report.changed_columns) == (("prcie",), {})
    report = index.upsert([{"_id": "a", "prcie": 4.5}], partial=True, metadata_fields=None)
    assert (report.new_columns, report.changed_columns) == ((), {"prcie": "float64"})


def test_an_update_need_not_read_the_columns_whose_types_the_index_declares(tmp_path: Path) -> None:
    rows, out = written(tmp_path / "a.jsonl", [{"_id": "a", "text": "x", "day": "2024-01-31"}]), "i"
    index = Index.build(rows, out=tmp_path / out, model="hashing:4", column_types={"day": "date"})
    more = written(tmp_path / "b.jsonl", [{"_id": "a", "brand": "Velora"}])
    index.upsert(more, partial=True, metadata_fields=["brand"])
    sbert_search("index", "upsert", tmp_path / out, more, "--partial", "--metadata-fields", "brand")
    (document,) = Index.open(tmp_path / out)
    assert document.metadata == {"day": date(2024, 1, 31), "brand": "Velora"}
    with pytest.raises(ConfigError, match="column_types has 'day', which metadata_fields leaves"):
        index.upsert(more, partial=True, metadata_fields=["brand"], column_types={"day": "date"})


def test_a_build_says_that_fields_of_the_text_are_no_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row, fields = {"_id": "a", "about": "x", "brand": "y"}, FieldNames(text=("about", "brand"))
    Index.build([row], model="hashing:4", fields=fields, metadata_fields=["brand"])
    assert "no columns" not in capsys.readouterr().err
    Index.build([row], model="hashing:4", fields=fields)
    assert "about, brand are texts and no columns. To filter" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([{"_id": "d1", "price": 2}, {"_id": "zz", "price": 2}], "no document with this id.*zz"),
        ([{"_id": "d1", "price": 2}, {"_id": "d1", "price": 3}], "an earlier row has this id"),
        ([{"price": 2}], "no id field"),
    ],
)
def test_partial_rows_that_name_no_document_change_nothing(
    rows: list[dict[str, Any]], match: str
) -> None:
    index = Index.build(shop(4), model="hashing:24")
    with pytest.raises(CorpusError, match=match):
        index.upsert(rows, partial=True)
    assert [document.metadata["price"] for document in index] == [0, 1, 2, 3]


def test_a_row_without_text_says_how_to_change_some_fields() -> None:
    with pytest.raises(CorpusError, match="partial"):
        Index.build(shop(4), model="hashing:24").upsert([{"_id": "d1", "price": 2}])


@pytest.mark.parametrize("n_shards", [None, 2])
def test_a_column_that_no_row_of_a_file_has_is_named_with_what_was_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n_shards: int | None
) -> None:
    rows = [{"_id": f"d{n}", "text": f"text {n}", "kind": "tool"} for n in range(4)]
    rows += [{"_id": "e", "text": "other"}]
    index = Index.build(rows, model="hashing", n_shards=n_shards)
    path = tmp_path / "renamed.jsonl"
    renamed = [{"_id": row["_id"], "text": row["text"], "sort": "tool"} for row in rows[2:]]
    path.write_text("".join(json.dumps(row) + "\n" for row in renamed))
    capsys.readouterr()
    index.upsert(path, partial=True)
    assert "lose" not in capsys.readouterr().err
    for dry_run in (True, False):
        report = index.upsert(path, dry_run=dry_run)
        assert (report.counts, report.dry_run) == (RowCounts(replaced=2, duplicate=1), dry_run)
        said = capsys.readouterr().err
        assert "the column 'kind', so 2 documents lose values" in said
    index.upsert(path)
    assert "lose" not in capsys.readouterr().err


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path) -> None:
    rows, index = shop(9), Index.build(shop(9), model="hashing:24", out=tmp_path / "i")
    before = index.state.manifest
    feed = [*dearer(rows[:2]), rows[2], {"_id": "new", "text": "a lamp", "kind": "k"}]
    sheet = written(tmp_path / "sheet.jsonl", feed)
    with sheet.open("a") as file:
        file.write("broken\n")
    planned = index.upsert(sheet, dry_run=True, on_error="skip", model=UNOPENED)
    assert planned.counts == RowCounts(indexed=1, replaced=2, duplicate=1, rejected=1)
    assert Index.open(index.path).state.manifest == index.state.manifest == before
    assert index.upsert(sheet, on_error="skip").counts == planned.counts
    part = [{"_id": "d4", "price": 4}, {"_id": "d5", "price": 0}]
    assert index.upsert(part, partial=True, dry_run=True).counts == RowCounts(0, 1, 1)
    with pytest.raises(CorpusError, match="new_columns is error"):
        index.upsert([{**rows[0], "prise": 2}], dry_run=True, new_columns="error")


def test_a_new_column_may_be_misspelt_and_can_be_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"_id": "b", "text": "a lamp", "color": "red", "prise": 2}
    index = Index.build(shop(2), model="hashing:24", out=tmp_path / "i", new_columns="error")
    index = Index.open(index.path)
    for update in (index.add, index.upsert, partial(index.upsert, partial=True)):
        with pytest.raises(CorpusError, match=r"prise \(int64; did you mean price\?\), color"):
            update([row | {"_id": "d0"}])
    assert len(index) == 2
    index.upsert([*shop(1), {**shop(2)[1], "price": None}])
    set_quiet(True)
    index.upsert([row], new_columns="add")
    said = "New metadata columns: prise (int64; did you mean price?), color (string).\n"
    assert capsys.readouterr().err.endswith(said)
    index.upsert([row | {"size": 1}], new_columns="add")
    assert capsys.readouterr().err == ""
    assert set(index.state.columns) == {"price", "color", "prise", "size"}


def test_texts_that_are_dates_are_named_with_the_type_to_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"_id": "a", "text": "river", "Stand": "15.03.2025", "created": "2025-03-15"}]
    index = Index.build(rows, model="hashing:24")
    assert [*index.documents("Stand >= '31.12.2025'")] == []
    assert "Stand=date:%d.%m.%Y" in capsys.readouterr().err
    with pytest.raises(QueryError, match="created=date"):
        SearchEngine(index).search(
            "river", boost=Boost("created", 1.0, "recency", half_life_days=30)
        )


def said_by(index: Index, rows: Any, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    """Return what a dry run of an upsert and the upsert say, which is the same."""
    said = list[str]()
    for dry_run in (True, False):
        capsys.readouterr()
        report = index.upsert(rows, dry_run=dry_run, **options)
        said.append(capsys.readouterr().err)
        assert all(message in said[-1] for message in report.lost)
    assert said[0] == said[1]
    return said[0]


def test_titles_that_no_row_has_are_not_lost_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"_id": name, "text": "a mill", "title": name.upper()} for name in "abc"]
    index = Index.build([*rows, {"_id": "d", "text": "a river", "title": ""}], model="hashing:24")
    bare = [{"_id": name, "text": "a mill"} for name in "abd"]
    lost = "No row has the title field 'title', so 2 documents lose titles."
    for dry_run in (True, False):
        with pytest.raises(CorpusError, match=f"{lost} Such rows are refused"):
            index.upsert(bare, new_columns="error", dry_run=dry_run)
    assert [document.title for document in index] == ["A", "B", "C", ""]
    assert said_by(index, bare, capsys).count(lost) == 1
    assert {document.doc_id: document.title for document in index} == {
        **dict.fromkeys("abd", ""),
        "c": "C",
    }
    one = "No field is read as title, so one document loses titles."
    row = {"_id": "c", "title": "C", "text": "a mill"}
    assert one in said_by(index, [row], capsys, fields=FieldNames(text=("title", "text")))


def test_a_column_that_an_update_reads_as_text_or_title_is_not_lost_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"_id": "a", "text": "a mill", "brand": "Velora", "kind": "tool"}
    index = Index.build([row], model="hashing:24")
    fields = FieldNames(text=("text", "brand"), title="kind")
    for dry_run in (True, False):
        with pytest.raises(CorpusError, match="'brand' is read as text and not as metadata, so"):
            index.upsert([row], fields=fields, new_columns="error", dry_run=dry_run)
    said = said_by(index, [row], capsys, fields=fields)
    assert "'brand' is read as text and not as metadata, so one document loses values." in said
    assert "'kind' is read as title and not as metadata, so one document loses values." in said
    assert "text fields of this update are 'text', 'brand', those of the index 'text'" in said
    fields = FieldNames(text=("brand", "text"), title="kind")
    kept = said_by(index, [row], capsys, fields=fields, metadata_fields=["brand", "kind"])
    assert "lose" not in kept


def test_other_text_fields_than_those_of_the_index_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"_id": "a", "text": "a mill", "name": "Velora"}
    index = Index.build([row], model="hashing:24", fields=FieldNames(text=("name", "text")))
    said = said_by(index, [row], capsys, fields=FieldNames(text="text"))
    assert "text fields of this update are 'text', those of the index 'name', 'text'" in said
    assert "name" in index.state.columns
    for same in ({}, {"fields": FieldNames(text=("name", "text"))}):
        assert "text fields" not in said_by(index, [row], capsys, **same)
    index.upsert([{"_id": "a", "price": 3}], partial=True, fields=FieldNames(text="text"))
    assert "text fields" not in capsys.readouterr().err


def test_an_index_with_a_column_called_title_takes_rows_without_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"_id": "a", "text": "a mill", "title": "Book", "name": "Velora"}
    fields = FieldNames(title="name")
    index = Index.build([row, {**row, "_id": "b"}], model="hashing:24", fields=fields)
    new = [{"_id": "a", "text": "a mill", "name": "Velora"}]
    said = said_by(index, new, capsys)
    assert "No row has the column 'title', so one document loses values." in said
    assert {document.doc_id: document.metadata for document in index} == {
        "a": {},
        "b": {"title": "Book"},
    }


def test_a_dry_run_counts_rows_with_one_id_as_the_update_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows, index = shop(3), Index.build(shop(3), model="hashing:24")
    new = {"_id": "new", "text": "a lamp"}
    feed = [*dearer(rows[:1]), rows[1], *dearer(rows[:1], 2), rows[0], new, new]
    feed += [{**new, "text": "two lamps"}, *dearer(rows[1:2]), rows[1]]
    said = list[str]()
    for dry_run in (True, False):
        capsys.readouterr()
        counts = index.upsert(feed, dry_run=dry_run).counts
        said.append(capsys.readouterr().err)
        assert counts == RowCounts(indexed=1, replaced=6, duplicate=2)
    assert said[0] == said[1]


def test_a_file_that_replaces_one_of_another_folder_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x/a.md", "x/b.md", "y/a.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"The text of {name}.")
    for first, before in (([tmp_path / "x"], "a.md"), (shop(1), f"{tmp_path}/x/a.md")):
        index = Index.build(first, model="hashing:24")
        said_by(index, [tmp_path / "x"], capsys)
        (tmp_path / "x/b.md").write_text("A new text.")
        assert "read from other files" not in said_by(index, [tmp_path / "x"], capsys)
        said = said_by(index, [tmp_path / "y/a.md"], capsys)
        assert f"documents that were read from other files: a.md (of {before})" in said
        assert "build an index from a folder that holds both" in said
