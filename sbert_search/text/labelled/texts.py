"""Read texts, or pairs of texts, whose label is a class, several classes or a number."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from sbert_search.config import unknown_name
from sbert_search.errors import CorpusError
from sbert_search.text.formats.rows import BadRow, RawRow, check_text, map_rows
from sbert_search.text.labelled.pairs import decimal_text, find_columns, finite_number, text_of
from sbert_search.text.labelled.records import Label, LabelledText
from sbert_search.text.labelled.records import LabelKind as LabelKind
from sbert_search.text.sources import classify, read_rows, require_field_names

COLUMNS = {
    "text": ("text", "sentence", "sentence1", "text1", "premise", "query", "question"),
    "text2": ("sentence2", "text2", "hypothesis", "passage", "answer"),
    "label": ("label", "labels", "gold_label", "score"),
}
"""Default column names of the parts of a labelled text, in order of preference."""
_MOST_DIGITS = 18  # maximum digits of a class that is sorted as an integer


def read_labelled_texts(
    path: Path,
    *,
    kind: LabelKind = "class",
    text: str | None = None,
    text2: str | None = None,
    label: str | None = None,
    labels: Collection[str] | None = None,
    remedy: str = "Fix it.",
) -> list[LabelledText]:
    """Read the labelled texts of a table file (JSON lines, JSON, CSV, TSV, Parquet, Arrow).

    A class is a string or an integer, which becomes its decimal text. Several classes are a list of
    these or, as in CSV and TSV, a text: a JSON list, or names separated by ``|``. A column that is
    not named is found by `find_columns`; without a column for ``text2``, each row has one text. A
    class that is not among ``labels`` (None: all are accepted) is an error that ends in ``remedy``.
    """
    file = classify(path)
    named = {"text": text, "text2": text2, "label": label}
    names = require_field_names(file, "labelled texts")
    columns = find_columns(named, COLUMNS, names, file.shown, ("text", "label"))

    def make(row: RawRow) -> LabelledText:
        if text2 is None and "text2" not in columns:
            _require_single(row.values, columns.values())
        values = row.values if kind == "number" else row.named([columns["label"]])
        labelled = LabelledText(
            text_of(values, columns["text"]),
            text_of(values, columns["text2"]) if "text2" in columns else None,
            _label(values, columns["label"], kind),
            row.source,
        )
        if labels is not None and kind != "number":
            for name in _classes(labelled):
                if name not in labels:
                    noun = f"class in {columns['label']!r}"
                    reason = unknown_name(name, name, sorted(labels), noun).rstrip(".")
                    raise BadRow(reason).at(row.source).error(remedy)
        return labelled

    return map_rows(read_rows(file), make)


def _classes(row: LabelledText) -> tuple[str, ...]:
    return row.label if isinstance(row.label, tuple) else (str(row.label),)


def classes_of(rows: Sequence[LabelledText]) -> tuple[str, ...]:
    """Return the names of all classes of labelled texts, sorted.

    Names of at most 18 digits come first, by value; the others follow in alphabetical order.
    """
    found = {name for row in rows for name in _classes(row)}
    digits = (name for name in found if name.isdecimal() and len(name) <= _MOST_DIGITS)
    integers = sorted(digits, key=lambda name: (int(name), name))
    return (*integers, *sorted(found.difference(integers)))


def class_indices(rows: Sequence[LabelledText], labels: Sequence[str]) -> list[list[int]]:
    """Return the indices in ``labels`` of the classes of each row; an unknown class is an error.

    If the class at index 3 of ``labels`` is named ``LABEL_3``, it is also found as ``3``.
    """
    places = {str(n): n for n, label in enumerate(labels) if label == f"LABEL_{n}"}
    places |= {label: n for n, label in enumerate(labels)}
    found = []
    for row in rows:
        names = _classes(row)
        for name in names:
            if name not in places:
                raise CorpusError(
                    f"{row.source}: {unknown_name(name, name, labels, 'class of the model')}"
                )
        found.append([places[name] for name in names])
    return found


def _require_single(values: Mapping[str, object], taken: Collection[str]) -> None:
    """Refuse a row with a second text if no column for it was found in the first rows."""
    for name in values:
        usual = name.lower() in COLUMNS["text2"]
        if usual and name not in taken and values[name] is not None:
            reason = f"{name!r} is a second text, which the first rows do not have"
            raise BadRow(reason, values[name])


def _label(values: Mapping[str, object], name: str, kind: LabelKind) -> Label:
    value = values.get(name)
    if kind == "number":
        return finite_number(value, name)
    if kind == "several":
        return tuple(dict.fromkeys(_class(item, name) for item in _list(value, name)))
    return _class(value, name)


def _list(value: object, name: str) -> list[object]:
    if isinstance(value, list):
        return value
    if value is None:  # an empty cell
        return []
    if not isinstance(value, str):
        raise BadRow(f"{name!r} must be a list of classes", value)
    if not value.startswith("["):
        return [part.strip() for part in value.split("|") if part.strip()]
    with contextlib.suppress(ValueError, RecursionError):
        parsed = json.loads(value)
        if isinstance(parsed, list):
            return parsed
    raise BadRow(f"{name!r} must be a JSON list of classes, or classes separated by '|'", value)


def _class(value: object, name: str) -> str:
    value = decimal_text(value)
    if not isinstance(value, str) or not value.strip():
        reason = f"{name!r} must be the name of a class, a string or an integer"
        raise BadRow(reason, value)
    return check_text(value.strip(), name)
