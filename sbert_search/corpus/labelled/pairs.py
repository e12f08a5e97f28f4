"""Read pairs of texts with a score (STS) or a label (NLI, paraphrase, relevance)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from sbert_search.config import unknown_name
from sbert_search.corpus.formats.rows import BadRow, Reject, check_text
from sbert_search.corpus.sources import classify, field_names, read_rows
from sbert_search.errors import CorpusError
from sbert_search.records import TextPair

COLUMNS = {
    "text1": ("sentence1", "text1", "premise", "anchor", "query", "question"),
    "text2": ("sentence2", "text2", "hypothesis", "positive", "passage", "answer"),
    "score": ("score", "similarity", "relatedness_score"),
    "label": ("label", "gold_label"),
}
"""Default column names of the parts of a pair, in order of preference."""

# The name of each part in the recipe of a training, and its name in the table [columns] of a task
# file of the command `eval`.
_OF_TASKS = {"text": "text1", **{name: name for name in (*COLUMNS, "tokens", "tags")}}


def read_pairs(
    path: Path,
    *,
    text1: str | None = None,
    text2: str | None = None,
    score: str | None = None,
    label: str | None = None,
    score_range: tuple[float, float] | None = None,
    need: Collection[str] = (),
) -> list[TextPair]:
    """Read the pairs of a table file.

    Formats are JSON lines, JSON, CSV and TSV, each plain or compressed; Parquet and Arrow.

    Args:
        path: The file.
        text1: Column of the first text. None, here and below: the first name in `COLUMNS` for this
            part that is a column of the file and is not named for another part.
        text2: Column of the second text.
        score: Column of the score, a number.
        label: Column of the label, a string or an integer; an integer becomes its decimal text.
        score_range: Minimum and maximum allowed score.
        need: Parts that every pair must have, besides the texts: ``score``, ``label`` or both.

    Raises:
        CorpusError: The file or a column is absent, the file has no rows, or a row is not a pair;
            the message names the file, the column or the row.
    """
    file = classify(path)
    named = {"text1": text1, "text2": text2, "score": score, "label": label}
    names = field_names(file)
    needed = {"text1", "text2", *need}
    columns = find_columns(named, COLUMNS, names, file.shown, needed) if names is not None else {}
    pairs = []
    for row in read_rows(file):
        if isinstance(row, Reject):
            raise row.error()
        try:
            pairs.append(_pair(row.values, columns, score_range, row.source, need))
        except BadRow as bad:
            raise bad.at(row.source).error() from None
    if not pairs:
        raise CorpusError(f"{file.shown}: holds no pairs.")
    return pairs


class MissingColumnError(CorpusError):
    """A file has no column with a usual name for a part of a record, such as the score of a pair.

    Attributes:
        part: The part.
        problem: The beginning of the message, without a full stop at its end: which part is
            missing, and which names are usual.
    """

    def __init__(self, shown: str, part: str, names: Sequence[str], usual: Sequence[str]) -> None:
        """Make the message, which says which names are usual and how to name another column."""
        self.part = part
        where = (
            f"[columns] {_OF_TASKS[part]} = NAME in a task file, --set data.columns.{part}=NAME "
            "in a training"
            if part in _OF_TASKS
            else "a setting of the table data.columns in a recipe"
        )
        among = f" among {', '.join(names)}" if names else ", since the first rows have no fields"
        self.problem = f"{shown}: no {part} column{among}. Rename a column to {' or '.join(usual)}"
        super().__init__(f"{self.problem}, or name the column to use: {where}.")


def find_columns(
    named: Mapping[str, str | None],
    known: Mapping[str, Sequence[str]],
    names: Sequence[str],
    shown: str,
    needed: Collection[str],
) -> dict[str, str]:
    """Choose the column of each part of a record, such as the score of a pair.

    This is the column that the user named. Without a name, it is the first usual name of the part
    that is a column of the file and was not named for another part.

    Args:
        named: Columns that the user named, by part; None: the column is detected.
        known: Default column names of each part, in order of preference.
        names: Columns of the file.
        shown: Name of the file in messages.
        needed: Parts that must have a column.

    Raises:
        CorpusError: A named column is missing; the message lists the columns of the file.
        MissingColumnError: No column is named for a needed part, and none has a usual name.
    """
    columns, taken = {}, {*named.values()}
    for part, name in named.items():
        if name is not None and name not in names:
            raise CorpusError(f"{shown}: {unknown_name(name, name, names, f'{part} column')}")
        usual = (own for own in known[part] if own in names and own not in taken)
        column = name or next(usual, None)
        if column is not None:
            columns[part] = column
        elif part in needed:
            raise MissingColumnError(shown, part, names, known[part])
    return columns


def _pair(
    values: Mapping[str, object],
    columns: Mapping[str, str],
    score_range: tuple[float, float] | None,
    source: str,
    need: Collection[str],
) -> TextPair:
    pair = TextPair(
        text1=text_of(values, columns["text1"]),
        text2=text_of(values, columns["text2"]),
        score=_score(values, columns["score"], score_range) if "score" in columns else None,
        label=_label(values, columns["label"]) if "label" in columns else None,
        source=source,
    )
    for part in need:
        if getattr(pair, part) is None:
            raise BadRow(f"no {columns[part]!r}, which every pair must have here")
    return pair


def text_of(values: Mapping[str, object], name: str) -> str:
    """Return the text of a field; raises `BadRow` if it is blank or not a string."""
    value = values.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadRow(f"{name!r} must be a text that is not blank", value)
    return check_text(value, name)


def _score(
    values: Mapping[str, object], name: str, score_range: tuple[float, float] | None
) -> float | None:
    value = values.get(name)
    if value is None:
        return None
    score = finite_number(value, name)
    if score_range and not score_range[0] <= score <= score_range[1]:
        raise BadRow(f"{name!r} must be from {score_range[0]:g} to {score_range[1]:g}", value)
    return score


def finite_number(value: object, name: str) -> float:
    """Return a number of a field, or that of its text; raises `BadRow` if it is not finite."""
    number = math.nan
    grouped = isinstance(value, str) and "_" in value  # Python reads "1_0" as 10
    if isinstance(value, (str, int, float)) and not isinstance(value, bool) and not grouped:
        with contextlib.suppress(ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise BadRow(f"{name!r} must be a finite number", value)
    return number


def _label(values: Mapping[str, object], name: str) -> str | None:
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise BadRow(f"{name!r} must be a string or an integer", value)
    return check_text(value, name)
