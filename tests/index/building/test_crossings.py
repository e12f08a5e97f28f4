"""Each option of an update, crossed with kinds of update, forms of input and changes of the rows.

What an index has and an update does not name is kept, or a warning or a refusal names it. A dry run
says what the update does, and the outcome does not depend on the form of the input.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbert_search import FieldNames, Index
from sbert_search.errors import SbertSearchError

Row = dict[str, Any]
Case = tuple[str, str, str, str]  # build, kind of update, option, change of the rows

ROWS: list[Row] = [
    {"_id": "a", "title": "Mill", "text": "a mill", "note": "old", "kind": "tool", "price": 1},
    {"_id": "b", "title": "Lamp", "text": "a lamp", "note": "new", "kind": "light", "price": 2},
    {"_id": "c", "title": "Coin", "text": "a coin", "note": "old", "kind": "money", "price": 3},
]
LISTS = [{**row, "tags": ["x", "y"]} for row in ROWS]


def without(*names: str) -> Callable[[Row], Row]:
    return lambda row: {name: value for name, value in row.items() if name not in names}


def renamed(old: str, new: str) -> Callable[[Row], Row]:
    return lambda row: {new if name == old else name: value for name, value in row.items()}


def filled(**values: object) -> Callable[[Row], Row]:
    return lambda row: {**row, **values}


CHANGES: Mapping[str, Callable[[list[Row]], list[Row]]] = {
    "none": lambda rows: rows,
    "value": lambda rows: [*rows[:1], {**rows[1], "price": 9}, *rows[2:]],
    "column missing": lambda rows: [*map(without("kind"), rows)],
    "columns missing": lambda rows: [*map(without("kind", "price", "title"), rows)],
    "column renamed": lambda rows: [*map(renamed("kind", "knid"), rows)],
    "value null": lambda rows: [*map(filled(kind=None), rows)],
    "one value null": lambda rows: [{**rows[0], "kind": None}, *rows[1:]],
    "type changed": lambda rows: [*map(filled(price="dear"), rows)],
    "list for text": lambda rows: [*map(filled(kind=["tool", "new"]), rows)],
    "list for number": lambda rows: [*map(filled(price=[1, 2]), rows)],
    "text for list": lambda rows: [*map(filled(tags="x"), rows)],
    "lists missing": lambda rows: [*map(without("tags"), rows)],
    "title missing": lambda rows: [*map(without("title"), rows)],
    "title renamed": lambda rows: [*map(renamed("title", "head"), rows)],
    "title empty": lambda rows: [*map(filled(title=""), rows)],
    "text empty": lambda rows: [*map(filled(text=""), rows)],
    "text renamed": lambda rows: [*map(renamed("text", "body"), rows)],
    "text missing": lambda rows: [*map(without("text"), rows)],
    "note missing": lambda rows: [*map(without("note"), rows)],
    "same ids": lambda rows: [*rows, {**rows[0], "price": 8}, {**rows[0], "price": 8}, rows[0]],
    "new row": lambda rows: [*rows, {**rows[0], "_id": "d"}],
    "new column": lambda rows: [*map(filled(size=4), rows)],
    "id missing": lambda rows: [*map(without("_id"), rows)],
    "one row": lambda rows: [*map(without("kind"), rows[:1])],
}
"""How the rows of the build change before they are sent as an update."""

OPTIONS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "metadata chosen": {"metadata_fields": ["kind"]},
    "text fields": {"fields": FieldNames(text=("text", "note"))},
    "title field": {"fields": FieldNames(title="kind")},
    "id field": {"fields": FieldNames(id="_id", text="note")},
    "no new columns": {"new_columns": "error"},
    "column types": {"column_types": {"price": "int"}},
    "skip": {"on_error": "skip"},
}

BUILDS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "text fields": {"fields": FieldNames(text=("text", "note"))},
    "title field": {"fields": FieldNames(title="note")},
    "metadata chosen": {"metadata_fields": ["kind", "price"]},
    "lists": {},
}


def in_memory(rows: list[Row], folder: Path) -> Any:
    return rows


def in_json(rows: list[Row], folder: Path) -> Any:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def in_csv(rows: list[Row], folder: Path) -> Any:
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def in_parquet(rows: list[Row], folder: Path) -> Any:
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return folder / "rows.parquet"


FORMS = {"memory": in_memory, "jsonl": in_json, "csv": in_csv, "parquet": in_parquet}
KINDS = ("add", "upsert", "partial", "clear", "sync")


def update(index: Index, kind: str, source: Any, options: dict[str, Any], dry_run: bool) -> Any:
    """Return the outcome of an update as counts, or its refusal."""
    try:
        if kind == "sync":
            report = index.sync(source, dry_run=dry_run, **options)
            return report.added, report.replaced, report.deleted, report.unchanged
        if kind == "add":
            return index.add(source, **options).counts
        more: dict[str, Any] = {"partial": True} if kind in ("partial", "clear") else {}
        if kind == "clear":
            more["clear"] = {"a": ["price"]}
        return index.upsert(source, dry_run=dry_run, **more, **options).counts
    except SbertSearchError as error:
        return str(error)


def held(index: Index) -> dict[str, Row]:
    return {
        document.doc_id: {"title": document.title, "text": document.text, **document.metadata}
        for document in index
    }


def named(rows: list[Row], options: dict[str, Any], name: str) -> bool:
    """Whether the rows of an update name a part of a document, so that its change is meant."""
    fields = options.get("fields", FieldNames())
    source = {"title": fields.title or "title"}.get(name, name)
    return any(source in row for row in rows) and name in rows_parts(fields, options)


def rows_parts(fields: FieldNames, options: dict[str, Any]) -> set[str]:
    """Return the parts of documents that an update reads from fields of their names."""
    taken = {*fields.texts, fields.title}
    chosen = options.get("metadata_fields")
    return {
        name
        for name in ("title", "text", "note", "kind", "price", "tags")
        if name in ("title", "text") or (name in chosen if chosen else name not in taken)
    }


def check(
    case: Case, form: str, folder: Path, said: Callable[[], str]
) -> tuple[Any, dict[str, Row]]:
    """Run one crossing, and check it; return its outcome and what the index holds."""
    build, kind, option, change = case
    rows = LISTS if build == "lists" or "list" in change.split() else ROWS
    options = {**BUILDS[build], **OPTIONS[option]}
    index = Index.build(rows, model="hashing:4", lexical=None, **BUILDS[build])
    new = CHANGES[change]([dict(row) for row in rows])
    source = FORMS[form](new, folder)
    before = held(index)
    said()
    planned = None if kind == "add" else update(index, kind, source, options, dry_run=True)
    warned = said()
    assert held(index) == before
    done = update(index, kind, source, options, dry_run=False)
    spoken, after = said(), held(index)
    assert kind == "add" or (planned, warned) == (done, spoken)
    assert not isinstance(done, str) or after == before
    assert kind == "sync" or before.keys() <= after.keys()
    for doc_id in before.keys() & after.keys():
        gone = {n for n, value in before[doc_id].items() if value and not after[doc_id].get(n)}
        if kind in ("add", "partial", "clear"):
            assert gone <= ({"price"} if (kind, doc_id) == ("clear", "a") else set())
            assert kind != "add" or after[doc_id] == before[doc_id]
            continue
        for name in gone:
            lost = "titles." if name == "title" else repr(name)
            assert named(new, options, name) or lost in spoken, (doc_id, name, spoken)
        row = next(row for row in rows if row["_id"] == doc_id)
        for field in ("text", "note"):
            if row[field] in before[doc_id]["text"] and row[field] not in after[doc_id]["text"]:
                meant = means_other_texts(new, options, BUILDS[build], field)
                assert meant or "text field" in spoken, (doc_id, field, spoken)
    return done, after


def means_other_texts(
    rows: list[Row], options: dict[str, Any], built: dict[str, Any], field: str
) -> bool:
    """Whether an update gives a field of the text another value, or is of other rows."""
    texts = options.get("fields", FieldNames()).texts or ("text",)
    if any(field in row for row in rows):
        return field in texts
    # Without names of its own, an index does not know that "text" was its text.
    return not built.get("fields", FieldNames()).texts


def run(cases: list[Case], forms: list[str], folder: Path, capsys: Any) -> None:
    faults = []
    for case in cases:
        outcomes: dict[str, Any] = {}
        for form in forms:
            if form == "csv" and any("list" in word for word in (case[0], case[3])):
                continue  # a cell of CSV has no list
            if form == "memory" and case[1] == "sync":
                continue  # which takes a file
            try:
                outcomes[form] = check(case, form, folder, lambda: capsys.readouterr().err)
            except Exception as error:
                faults.append(f"{case} {form}: {error!r:.600}")
        # A refusal names the form. Cells of CSV have no types, and rows without ids get them of the
        # name of the file.
        typed = [found for form, found in outcomes.items() if form != "csv"]
        differ = any(found[1] != typed[0][1] for found in typed)
        if differ and case[3] != "id missing":
            faults.append(f"{case}: forms differ: {outcomes}")
    assert not faults, "\n".join([f"{len(faults)} faults", *faults[:40]])


def selected(step: int = 1) -> list[Case]:
    """Return each kind of update with each option and each change; of these, each ``step``-th."""
    builds, every = list(BUILDS), product(OPTIONS, CHANGES, KINDS)
    return [
        (builds[(n + n // len(KINDS)) % len(builds)], kind, option, change)
        for n, (option, change, kind) in enumerate(every)
    ][::step]


def test_some_crossings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(selected(step=53), ["jsonl"], tmp_path, capsys)


@pytest.mark.thorough
@pytest.mark.parametrize("at", range(len(FORMS)))
def test_all_crossings(at: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [case for n, case in enumerate(selected()) if n % len(FORMS) == at]
    run(cases, [[*FORMS][at]], tmp_path, capsys)


@pytest.mark.thorough
def test_the_form_of_the_input_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(selected()[: len(CHANGES) * len(KINDS)], [*FORMS], tmp_path, capsys)
