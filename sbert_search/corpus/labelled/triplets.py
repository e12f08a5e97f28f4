"""Read triplets of texts, and groups of texts with the same meaning.

A triplet is an anchor, a positive text that matches it, and one or more negative texts that do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

from sbert_search.corpus.formats.rows import BadRow, Reject, check_text
from sbert_search.corpus.labelled.pairs import find_columns, text_of
from sbert_search.corpus.sources import SourceFile, classify, field_names, read_rows
from sbert_search.errors import CorpusError
from sbert_search.records import TextGroup, Triplet

COLUMNS = {
    "anchor": ("anchor", "query", "question", "sentence1", "premise"),
    "positive": ("positive", "passage", "answer", "entailment", "sentence2"),
}
"""Default column names of the parts of a triplet, in order of preference."""

_NEGATIVE = re.compile(r"(hard_)?negatives?(_?\d+)?|contradiction")
_GROUPS = ("texts", "captions", "paraphrases", "sentences")

R = TypeVar("R")


def read_triplets(
    path: Path,
    *,
    anchor: str | None = None,
    positive: str | None = None,
    negative: str | None = None,
) -> list[Triplet]:
    """Read the triplets of a table file (JSON lines, JSON, CSV, TSV, Parquet, Arrow).

    Args:
        path: The file.
        anchor: Column of the anchor. None, here and for the positive: the first name in `COLUMNS`
            for this part that is a column of the file and is not named for the other part.
        positive: Column of the positive text.
        negative: Column of a negative text or of a list of negative texts. None: all columns with
            a name such as negative, negatives or negative_1 (see `negative_columns`).

    Raises:
        CorpusError: The file or a column is absent, a column has two parts, the file has no rows,
            or a row is not a triplet; the message names the file, the column or the row.
    """
    file = classify(path)
    names = _names(file, "triplets")
    columns = find_columns(
        {"anchor": anchor, "positive": positive, "negative": negative},
        {**COLUMNS, "negative": ()},
        names,
        file.shown,
        COLUMNS,
    )
    negatives = negative_columns(names) if negative is None else [negative]
    if not negatives:
        raise CorpusError(
            f"{file.shown}: no negative column among {', '.join(names)}; name the column to use."
        )
    if named := [part for part in COLUMNS if columns[part] in negatives]:
        raise CorpusError(
            f"{file.shown}: the column {columns[named[0]]!r} is named as the {named[0]}, but it is "
            "also a negative column. Name the negative column with data.columns.negative."
        )

    def make(values: Mapping[str, object], source: str) -> Triplet:
        # A row of JSON lines may have negative columns that the first rows do not have.
        own = negative_columns([*values]) if negative is None else negatives
        others = [text for name in own for text in _texts_of(values, name)]
        if not others:
            raise BadRow(f"no text in {', '.join(map(repr, negatives))}")
        first, second = (text_of(values, columns[part]) for part in COLUMNS)
        return Triplet(first, second, tuple(others), source)

    return _read(file, make)


def negative_columns(names: Collection[str]) -> list[str]:
    """Return the columns named negative, negatives, hard_negative_1, contradiction or similar."""
    return sorted(name for name in names if _NEGATIVE.fullmatch(name))


def read_groups(path: Path, *, texts: str | None = None) -> list[TextGroup]:
    """Read groups of texts with the same meaning, such as the captions of a picture.

    Args:
        path: A file in which each row has a list of texts (JSON lines, JSON, Parquet, Arrow).
        texts: Column of the lists. None: the first of texts, captions, paraphrases and sentences
            that is a column of the file.

    Raises:
        CorpusError: The file or the column is absent, the file has no rows, or a row has fewer than
            two different texts.
    """
    file = classify(path)
    names = _names(file, "groups")
    column = find_columns({"texts": texts}, {"texts": _GROUPS}, names, file.shown, ["texts"])

    def make(values: Mapping[str, object], source: str) -> TextGroup:
        group = tuple(dict.fromkeys(_texts_of(values, column["texts"])))
        if len(group) < 2:
            raise BadRow(f"{column['texts']!r} must be a list of two or more different texts")
        return TextGroup(group, source)

    return _read(file, make)


def _names(file: SourceFile, kind: str) -> list[str]:
    """Return the field names of the first rows.

    Raises:
        CorpusError: The file has no row, or no valid one.
    """
    names = field_names(file)
    if names is None:
        for row in read_rows(file):
            if isinstance(row, Reject):
                raise row.error()
        raise CorpusError(f"{file.shown}: holds no {kind}.")
    return names


def _read(file: SourceFile, make: Callable[[Mapping[str, object], str], R]) -> list[R]:
    """Make a record of every row; the first bad row raises an error that names the row."""
    records = []
    for row in read_rows(file):
        if isinstance(row, Reject):
            raise row.error()
        try:
            records.append(make(row.values, row.source))
        except BadRow as bad:
            raise bad.at(row.source).error() from None
    return records


def _texts_of(values: Mapping[str, object], name: str) -> list[str]:
    """Return the texts of a field: those of a list, or a single string; [] for null."""
    value = values.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        return [text_of(values, name)]
    for text in value:
        if not isinstance(text, str) or not text.strip():
            raise BadRow(f"{name!r} must be a list of texts that are not blank", text)
    return [check_text(text, name) for text in value]
