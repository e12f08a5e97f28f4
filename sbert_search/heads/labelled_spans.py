"""Read texts whose parts are labelled: answers in a context, and tags of tokens.

Source: Rajpurkar et al. 2016, SQuAD (arXiv:1606.05250); Rajpurkar et al. 2018, Know What You Don't
Know (arXiv:1806.03822), for questions without an answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sbert_search.errors import CorpusError
from sbert_search.tag_schemes import Scheme, convert, detect_scheme, first_fault, split_tag
from sbert_search.text.formats.lines import read_lines
from sbert_search.text.formats.rows import BadRow, RawRow, check_text, decode, map_rows, printable
from sbert_search.text.labelled.pairs import find_columns, text_of
from sbert_search.text.labelled.records import Answer, Question, TaggedTokens
from sbert_search.text.sources import (
    COMPRESSIONS,
    classify,
    open_bytes,
    read_rows,
    require_field_names,
)


def read_questions(path: Path) -> list[Question]:
    """Read the questions of SQuAD's JSON (version 1.1 or 2.0), or of a file of rows.

    Rows have the columns ``question``, ``context`` and ``answers``, and optionally ``id`` and
    ``title``. ``answers`` is a list of ``{"text": ..., "answer_start": ...}`` or of ``[text,
    start]``, or one object of lists, ``{"text": [...], "answer_start": [...]}``; [] if the context
    has no answer. A start is the index of the first character of the answer in the context.
    """
    file, found = classify(path), dict[str, Question]()

    def add(row: RawRow) -> None:
        for question in _questions(row):
            if question.question_id in found:
                first = found[question.question_id].source
                raise BadRow(f"the id {question.question_id!r} occurs before, at {first}")
            found[question.question_id] = question

    map_rows(read_rows(file), add)
    if not found:
        raise CorpusError(f"{file.shown}: holds no questions.")
    return list(found.values())


def _questions(row: RawRow) -> Iterator[Question]:
    """Yield the questions of a row; the row is a question, or an article of SQuAD's JSON."""
    if "paragraphs" not in row.values:
        context = text_of(row.values, "context")
        yield _question(row.values, context, str(row.values.get("title") or ""), row.source)
        return
    title = str(row.values.get("title") or "")
    for n, paragraph in enumerate(_mappings(row.values["paragraphs"], "paragraphs"), start=1):
        context = text_of(paragraph, "context")
        for m, values in enumerate(_mappings(paragraph.get("qas"), "qas"), start=1):
            source = f"{row.source}:paragraph {n}:question {m}"
            try:
                yield _question(values, context, title, source)
            except BadRow as bad:
                bad.reason = f"paragraph {n}, question {m}: {bad.reason}"
                raise


def _question(values: Mapping[str, object], context: str, title: str, source: str) -> Question:
    question_id = values.get("id")
    return Question(
        # Without its folder, a place is the same in a copy of the file.
        os.path.basename(source) if question_id is None else check_text(str(question_id), "id"),
        text_of(values, "question").strip(),
        context,
        tuple(_answer(text, start, context) for text, start in _answers(values)),
        title,
        source,
    )


def _answers(values: Mapping[str, object]) -> list[tuple[object, object]]:
    """Return the text and the start of each answer; `_answer` checks them."""
    value = values.get("answers")
    if value is None:
        raise BadRow("no 'answers'; write [] if the context has no answer, or leave out the row")
    if values.get("is_impossible"):
        return []
    if isinstance(value, Mapping):  # the layout of Hugging Face's datasets
        texts, starts = value.get("text"), value.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list):
            raise BadRow("'answers' must have the lists 'text' and 'answer_start'", value)
        if len(texts) != len(starts):
            raise BadRow(f"'answers' has {len(texts)} texts and {len(starts)} starts")
        return list(zip(texts, starts, strict=True))
    if not isinstance(value, list):
        raise BadRow("'answers' must be a list", value)
    found: list[tuple[object, object]] = []
    for item in value:
        if isinstance(item, Mapping):
            found.append((item.get("text"), item.get("answer_start")))
        elif isinstance(item, list) and len(item) == 2:
            found.append((item[0], item[1]))
        else:
            raise BadRow("an answer must have a text and an answer_start", item)
    return found


def _answer(text: object, start: object, context: str) -> Answer:
    if not isinstance(text, str) or not text.strip():
        raise BadRow("the text of an answer is blank or no string", text)
    if not isinstance(start, int) or isinstance(start, bool):
        raise BadRow("answer_start must be an integer", start)
    if not 0 <= start <= len(context) - len(text):
        raise BadRow(
            f"the answer {text!r} from character {start} lies outside the context, which has "
            f"{len(context)} characters"
        )
    if (there := context[start : start + len(text)]) != text:
        raise BadRow(f"the context has {there!r} at character {start}, and the answer is {text!r}")
    return Answer(start, text)


def _mappings(value: object, name: str) -> list[Mapping[str, object]]:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise BadRow(f"{name!r} must be a list of objects", value)
    return value


BadTags = Literal["refuse", "repair"]
"""How to handle a sequence of tags that its scheme does not allow; see `read_tagged_tokens`."""

COLUMNS = {"tokens": ("tokens", "words"), "tags": ("tags", "ner_tags", "labels")}
"""Default column names of the parts of a tagged sentence, in order of preference."""

COLUMN_FILES = (".conll", ".bio", ".iob", ".iob2", ".bilou", ".txt", ".tsv")
"""Endings of files with one token on each line; a blank line ends a sentence."""

_SPACES = " \t\n\v\f\r"  # a token may have other white space, such as a no-break space
_CELL = re.compile(f"[^{_SPACES}]+")
_NEW_DOCUMENT = "-DOCSTART-"
_REPAIR = (
    "Fix it, or make it begin an entity: --set data.bad_tags=repair in a training, "
    'bad_tags = "repair" in a task file.'
)


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence with unchecked tags, and the position in the file of each token."""

    tokens: list[str]
    tags: list[str]
    sources: list[str]


def read_tagged_tokens(
    path: Path,
    *,
    tokens: str | None = None,
    tags: str | None = None,
    scheme: Scheme | None = None,
    to: Scheme | None = None,
    bad_tags: BadTags = "refuse",
) -> list[TaggedTokens]:
    """Read the sentences of a file with a tag for each token.

    It has CoNLL columns (see `COLUMN_FILES`), the token first and the tag last; or rows with a list
    of tokens and a list of tags, in the columns ``tokens`` and ``tags`` or else the first of
    `COLUMNS`. ``scheme`` is that of the file; None: BILOU if a tag begins with ``L-`` or ``U-``,
    else BIO. ``to`` is that of the result; None: the same. ``bad_tags`` "repair" reads tags that
    break the scheme as the script ``conlleval`` of CoNLL does: a tag such as ``I-PER`` that does
    not continue an entity begins one.
    """
    sentences = list(
        _column_sentences(path) if _has_columns(path) else _row_sentences(path, tokens, tags)
    )
    if not sentences:
        raise CorpusError(f"{printable(path)}: holds no tagged sentences.")
    _check_tags(sentences)
    scheme = scheme or detect_scheme(tag for sentence in sentences for tag in sentence.tags)
    return [_to_scheme(sentence, scheme, to or scheme, bad_tags) for sentence in sentences]


def _has_columns(path: Path) -> bool:
    name = path.name.lower()
    for packed in COMPRESSIONS:
        name = name.removesuffix(packed)
    return name.endswith(COLUMN_FILES)


def _check_tags(sentences: list[_Sentence]) -> None:
    for sentence in sentences:
        for tag, source in zip(sentence.tags, sentence.sources, strict=True):
            try:
                split_tag(tag)
            except ValueError as error:
                raise CorpusError(
                    f"{source}: the tag {error}. Write entities in BIO or BILOU."
                ) from None


def _to_scheme(sentence: _Sentence, scheme: Scheme, to: Scheme, bad_tags: BadTags) -> TaggedTokens:
    fault = first_fault(sentence.tags, scheme)
    if fault is not None and bad_tags == "refuse":
        before = sentence.tags[fault - 1] if fault else "the start of the sentence"
        is_last = fault == len(sentence.tags) - 1
        end = " and before the end of the sentence" if is_last else ""
        raise CorpusError(
            f"{sentence.sources[fault]}: {scheme.upper()} does not allow the tag "
            f"{sentence.tags[fault]!r} of token {fault + 1}, {sentence.tokens[fault]!r}, after "
            f"{before}{end}. {_REPAIR}"
        )
    tags = tuple(sentence.tags)
    if fault is not None or to != scheme:
        tags = convert(tags, scheme, to)
    return TaggedTokens(tuple(sentence.tokens), tags, sentence.sources[0])


def _column_sentences(path: Path) -> Iterator[_Sentence]:
    shown, width = printable(path), 0
    sentence = _Sentence([], [], [])
    with open_bytes(path) as stream:
        for number, data in read_lines(stream):
            source = f"{shown}:{number}"
            try:
                if isinstance(data, BadRow):
                    raise data
                line = check_text(decode(data), "line").strip(_SPACES)
                if not line or line.startswith(_NEW_DOCUMENT):
                    if sentence.tokens:
                        yield sentence
                        sentence = _Sentence([], [], [])
                    continue
                cells = line.split("\t") if "\t" in line else _CELL.findall(line)
                width = width or len(cells)
                if len(cells) != width or width < 2:
                    needed = f"{width} columns, like the first line" if width > 1 else "2 columns"
                    raise BadRow(f"the line must have {needed}, a token first and a tag last", line)
            except BadRow as bad:
                raise bad.at(source).error() from None
            sentence.tokens.append(cells[0])
            sentence.tags.append(cells[-1].strip(_SPACES))
            sentence.sources.append(source)
    if sentence.tokens:
        yield sentence


def _row_sentences(path: Path, tokens: str | None, tags: str | None) -> list[_Sentence]:
    file = classify(path)
    named = {"tokens": tokens, "tags": tags}
    names = require_field_names(file, "tagged sentences")
    columns = find_columns(named, COLUMNS, names, file.shown, COLUMNS)

    def make(row: RawRow) -> _Sentence:
        values = row.named([columns["tags"]])
        words, marks = (_texts(values, columns[part]) for part in ("tokens", "tags"))
        if len(words) != len(marks):
            raise BadRow(f"{len(words)} tokens and {len(marks)} tags; each token needs a tag")
        if not words:
            raise BadRow(f"{columns['tokens']!r} is an empty list")
        return _Sentence(words, marks, [row.source] * len(words))

    return map_rows(read_rows(file), make)


def _texts(values: Mapping[str, object], name: str) -> list[str]:
    value = values.get(name)
    if not isinstance(value, list):
        raise BadRow(f"{name!r} must be a list of texts", value)
    for text in value:
        if not isinstance(text, str) or not text.strip():
            hint = ", such as 'B-person'; the names of numbered tags are not known"
            wrong = f"{name!r} must be a list of texts that are not blank"
            raise BadRow(wrong + (hint if isinstance(text, int) else ""), text)
    return [check_text(text, name) for text in value]
