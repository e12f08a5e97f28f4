"""Find the answer to a query in each of its hits, with a model that answers questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from sbert_search.records import Hit, HitAnswer
from sbert_search.search.hits import passage_in_text


class FoundAnswer(Protocol):
    """An answer in a text, such as a `prediction.results.TextAnswer`."""

    @property
    def text(self) -> str:
        """The answer; "" if the text has no answer."""

    @property
    def start(self) -> int:
        """Index of the first character of the answer in the text."""

    @property
    def end(self) -> int:
        """Index after the last character of the answer."""

    @property
    def score(self) -> float:
        """Probability of the answer, from 0 to 1."""


class AnswerReader(Protocol):
    """A model that answers questions from texts, such as a `Predictor` of the task qa."""

    def answer(self, questions: Sequence[tuple[str, str]], /) -> Sequence[FoundAnswer]:
        """Return for each pair of a question and a text the answer that the text gives."""


def with_answers(reader: AnswerReader, query: str, hits: Sequence[Hit], depth: int) -> list[Hit]:
    """Fill `Hit.answer` of the first hits with the answer in their best passage.

    The hits keep their order.

    Args:
        reader: The model.
        query: The question.
        hits: Hits with their whole texts, best first.
        depth: Number of hits to read, from the first on.
    """
    places = [passage_in_text(hit) for hit in hits[:depth]]
    read = [
        (hit, start, end) for hit, (start, end) in zip(hits, places, strict=False) if end > start
    ]
    found = reader.answer([(query, hit.text[start:end]) for hit, start, end in read])
    answers = {
        hit.rank: HitAnswer(own.text, start + own.start, start + own.end, own.score)
        for (hit, start, _), own in zip(read, found, strict=True)
        if own.text
    }
    return [replace(hit, answer=answers.get(hit.rank)) for hit in hits]
