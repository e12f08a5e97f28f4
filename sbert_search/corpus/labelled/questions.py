"""Read questions, each with its context and its answers, which are parts of the context.

Formats are SQuAD's JSON and files with a question in each row.

Source: Rajpurkar et al. 2016, SQuAD (arXiv:1606.05250); Rajpurkar et al. 2018, Know What You Don't
Know (arXiv:1806.03822), for questions without an answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from sbert_search.corpus.formats.rows import BadRow, RawRow, Reject, check_text
from sbert_search.corpus.labelled.pairs import text_of
from sbert_search.corpus.sources import classify, read_rows
from sbert_search.errors import CorpusError
from sbert_search.records import Answer, Question


def read_questions(path: Path) -> list[Question]:
    """Read the questions of a file.

    Args:
        path: SQuAD's JSON (version 1.1 or 2.0), or a file of rows with the columns ``question``,
            ``context`` and ``answers``, and optionally ``id`` and ``title``. The answers of a row
            are a list of ``{"text": ..., "answer_start": ...}`` or of ``[text, start]``, or one
            object of lists, ``{"text": [...], "answer_start": [...]}``. A start is the index of the
            first character of the answer in the context. ``answers`` is [] if the context has no
            answer.

    Raises:
        CorpusError: The file cannot be read, a question or its context is missing, two questions
            have the same id, or the context has another text at the start of an answer; the message
            names the file and the row.
    """
    file, found = classify(path), dict[str, Question]()
    for row in read_rows(file):
        if isinstance(row, Reject):
            raise row.error()
        try:
            for question in _questions(row):
                if question.question_id in found:
                    first = found[question.question_id].source
                    raise BadRow(f"the id {question.question_id!r} occurs before, at {first}")
                found[question.question_id] = question
        except BadRow as bad:
            raise bad.at(row.source).error() from None
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
