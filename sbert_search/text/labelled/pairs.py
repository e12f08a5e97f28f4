"""Read labelled pairs of texts, triplets, and groups of texts with the same meaning.

A triplet is an anchor, a positive text that matches it, and one or more negative texts that do not.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from sbert_search.base.files import replace_file
from sbert_search.config import unknown_name
from sbert_search.errors import CorpusError
from sbert_search.text.fields import find_field
from sbert_search.text.formats.files import Reading
from sbert_search.text.formats.rows import BadRow, RawRow, check_text, map_rows
from sbert_search.text.labelled.records import TextGroup, TextPair, Triplet
from sbert_search.text.sources import as_read, classify, read_rows, require_field_names
from sbert_search.text.spool import ROWS, Rows, source_files

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
    positive: bool = False,
    class_names: bool = True,
) -> list[TextPair]:
    """Read the pairs of a table file.

    Formats are JSON lines, JSON, CSV and TSV, each plain or compressed; Parquet and Arrow. A column
    that is not named is found by `find_columns`. Integers as texts or labels become decimal text.
    ``need`` names the parts that every pair must have, besides the texts: ``score``, ``label`` or
    both. With ``positive``, a pair whose score or label marks it as negative is a bad row. With
    ``class_names``, the numbers of classes in a Hugging Face dataset are read by their names.
    """
    file = classify(path)
    named = {"text1": text1, "text2": text2, "score": score, "label": label}
    names = require_field_names(file, "pairs")
    columns = find_columns(named, COLUMNS, names, file.shown, {"text1", "text2", *need})
    stated = [columns[part] for part in ("score", "label") if part in columns]

    def make(row: RawRow) -> TextPair:
        values = row.named(stated, NO_LABEL) if class_names else row.values
        if positive:
            _require_positive(values, stated)
        return _pair(row.source, values, columns, score_range, need)

    return map_rows(read_rows(file), make)


class MissingColumnError(CorpusError):
    """A file has no column with a usual name for a part, such as the score of a pair."""

    def __init__(self, shown: str, part: str, names: Sequence[str], usual: Sequence[str]) -> None:
        self.part = part
        where = (
            f"[columns] {_OF_TASKS[part]} = NAME in a task file, --set data.columns.{part}=NAME "
            "in a training"
            if part in _OF_TASKS
            else "in a training, by the table data.columns of its recipe"
        )
        among = f" among {', '.join(names)}" if names else ", since the first rows have no fields"
        # The beginning of the message, without a full stop at its end.
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

    This is the column that the user ``named``. Without a name, it is the first of the ``known``
    names of the part that is a column of the file, in whatever case, and was not named for another
    part. If a ``needed`` part has none, `MissingColumnError` is raised.
    """
    columns, taken = {}, {*named.values()}
    for part, name in named.items():
        if name is not None and name not in names:
            raise CorpusError(f"{shown}: {unknown_name(name, name, names, f'{part} column')}")
        column = name or find_field(known[part], [own for own in names if own not in taken])
        if column is not None:
            columns[part] = column
        elif part in needed:
            raise MissingColumnError(shown, part, names, known[part])
    return columns


def _pair(
    source: str,
    values: Mapping[str, object],
    columns: Mapping[str, str],
    score_range: tuple[float, float] | None,
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
    """Return the text of a field, or of its integer; raises `BadRow` if there is none."""
    value = decimal_text(values.get(name))
    if not isinstance(value, str) or not value.strip():
        raise BadRow(f"{name!r} must be a text that is not blank", value)
    return check_text(value, name)


def decimal_text(value: object) -> object:
    """Return an integer, such as a number that is a text in a workbook, as its decimal text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


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
    value = decimal_text(values.get(name))
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise BadRow(f"{name!r} must be a string or an integer", value)
    return check_text(value, name)


_TRIPLET_COLUMNS = {
    "anchor": ("anchor", "query", "question", "sentence1", "premise"),
    "positive": ("positive", "passage", "answer", "entailment", "sentence2"),
}
"""Default column names of the parts of a triplet, in order of preference."""

_NEGATIVE = re.compile(r"(hard_)?negatives?(_?\d+)?|contradiction", re.IGNORECASE)
NO_LABEL = "-"  # the label of a pair on which annotators did not agree, as in SNLI
_UNRELATED = {
    NO_LABEL,
    *("false", "no", "n", "neutral", "contradiction", "negative"),
    *("different", "dissimilar", "irrelevant", "mismatch", "unrelated"),
}
"""Labels of pairs whose second text is no positive, besides 0 and smaller numbers."""
_DENIALS = ("not ", "not_", "not-", "non_", "non-", "no_", "no ")
_GROUPS = ("texts", "captions", "paraphrases", "sentences")


def read_triplets(
    path: Path,
    *,
    anchor: str | None = None,
    positive: str | None = None,
    negative: str | None = None,
    allow_pairs: bool = False,
    encoding: str | None = None,
) -> list[Triplet]:
    """Read the triplets of a table file (JSON lines, JSON, CSV, TSV, Parquet, Arrow).

    Unnamed, the anchor and the positive are found by `find_columns`, and all `negative_columns` are
    used. A negative column has a text or a list of texts. With ``allow_pairs``, a row may have no
    negative; then a score or a label must not say that its texts are no pair.
    """
    file = as_read(classify(path), Reading(encoding))
    names = require_field_names(file, "pairs" if allow_pairs else "triplets")
    columns = find_columns(
        {"anchor": anchor, "positive": positive, "negative": negative},
        {**_TRIPLET_COLUMNS, "negative": ()},
        names,
        file.shown,
        _TRIPLET_COLUMNS,
    )
    negatives = negative_columns(names) if negative is None else [negative]
    if not (negatives or allow_pairs):
        raise CorpusError(
            f"{file.shown}: no negative column among {', '.join(names)}; name the column to use."
        )
    if named := [part for part in _TRIPLET_COLUMNS if columns[part] in negatives]:
        raise CorpusError(
            f"{file.shown}: the column {columns[named[0]]!r} is named as the {named[0]}, but it is "
            "also a negative column. Name the negative column with data.columns.negative."
        )

    def make(row: RawRow) -> Triplet:
        # A row of JSON lines may have negative columns that the first rows do not have.
        own = negative_columns([*row.values]) if negative is None else negatives
        if allow_pairs:  # an empty cell of a CSV file is no negative
            own = [name for name in own if row.values.get(name) not in (None, "")]
        others = [text for name in own for text in _texts_of(row.values, name)]
        if not (others or allow_pairs):
            raise BadRow(f"no text in {', '.join(map(repr, negatives))}")
        if not others:
            known = (*COLUMNS["score"], *COLUMNS["label"])
            stated = [name for name in row.values if name.lower() in known]
            _require_positive(row.named(stated, NO_LABEL), stated)
        first, second = (text_of(row.values, columns[part]) for part in _TRIPLET_COLUMNS)
        return Triplet(first, second, tuple(others), row.source)

    return map_rows(read_rows(file), make)


def _require_positive(values: Mapping[str, object], names: Iterable[str]) -> None:
    """Refuse a row if a score or a label, in the columns ``names``, marks it as a negative pair."""
    for name in names:
        value = values.get(name)
        if _says_unrelated(value):
            raise BadRow(
                f"its {name!r} says that the texts are no pair; leave such rows out, or give the "
                "text as a 'negative' of a pair",
                value,
            )


def _says_unrelated(value: object) -> bool:
    """Whether a score or a label says that the texts of a pair are no pair."""
    stated = str(value).strip().lower()
    with contextlib.suppress(ValueError):
        return float(stated) <= 0
    return stated in _UNRELATED or stated.startswith(_DENIALS)


def dissimilar_first(labels: Iterable[str]) -> tuple[str, ...]:
    """Put the label of dissimilar pairs before that of similar ones; (): which it is is unclear."""
    ordered = tuple(sorted({*labels}, key=_says_unrelated, reverse=True))
    return ordered if [*map(_says_unrelated, ordered)] == [True, False] else ()


@contextlib.contextmanager
def rows_file(rows: str | Path | Rows) -> Iterator[Path]:
    """Yield the path of a file of rows; rows in memory are written to a temporary one."""
    if isinstance(rows, (str, Path)):
        yield Path(rows)
        return
    owner = set[str]()  # while it lives, `source_files` keeps its copy of the rows
    (file,) = source_files(rows, owner)
    with tempfile.TemporaryDirectory(prefix="sbert-search-rows-") as folder:
        path = Path(folder, f"{ROWS}.jsonl")
        read = map_rows(read_rows(file), lambda row: row.named(row.classes or (), NO_LABEL))
        replace_file(path, json_lines(read))
        yield path


def json_lines(rows: Iterable[Mapping[str, object]]) -> bytes:
    """Return rows as JSON lines; values that JSON does not have become their text."""
    lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    return "".join(lines).encode()


def negative_columns(names: Collection[str]) -> list[str]:
    """Return the columns named negative, negatives, hard_negative_1, contradiction or similar."""
    return sorted(name for name in names if _NEGATIVE.fullmatch(name))


def read_groups(path: Path, *, texts: str | None = None) -> list[TextGroup]:
    """Read groups of texts with the same meaning, such as the captions of a picture.

    Each row has a list of texts, so CSV and TSV cannot hold groups.
    """
    file = classify(path)
    names = require_field_names(file, "groups")
    column = find_columns({"texts": texts}, {"texts": _GROUPS}, names, file.shown, ["texts"])

    def make(row: RawRow) -> TextGroup:
        group = tuple(dict.fromkeys(_texts_of(row.values, column["texts"])))
        if len(group) < 2:
            raise BadRow(f"{column['texts']!r} must be a list of two or more different texts")
        return TextGroup(group, row.source)

    return map_rows(read_rows(file), make)


def _texts_of(values: Mapping[str, object], name: str) -> list[str]:
    """Return the texts of a field: those of a list, or a single text; [] for null."""
    value = values.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        return [text_of(values, name)]
    texts = []
    for text in map(decimal_text, value):
        if not isinstance(text, str) or not text.strip():
            raise BadRow(f"{name!r} must be a list of texts that are not blank", text)
        texts.append(check_text(text, name))
    return texts
