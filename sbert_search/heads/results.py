"""What a `Predictor` returns for a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

TaskName = Literal["classify", "tag", "qa"]
"""What a model does: classify texts, tag the words of texts, or answer questions."""


@dataclass(frozen=True, slots=True)
class TextLabel:
    """The class of a text or of a pair of texts.

    Attributes:
        label: Name of the most probable class. For a model that gives a number, its only label.
        score: Probability of this class, from 0 to 1. For a model that gives a number, the number.
        labels: The classes of the text. For a model that gives several classes, those whose
            probability is at least the model's threshold, most probable first (there may be none);
            otherwise ``label`` alone.
        scores: Probability of every class by name, or the number by the only label.

    Example:
        >>> [label] = Predictor("my-classifier", device="cpu").classify(["the cat sat"])
        >>> sorted(label.scores)
        ['maybe', 'no', 'yes']
    """

    label: str
    score: float
    labels: tuple[str, ...]
    scores: Mapping[str, float]

    def to_row(self, *, all_scores: bool = False) -> dict[str, object]:
        """Return the result as an object for JSON."""
        row: dict[str, object] = {"label": self.label, "score": self.score}
        if self.labels != (self.label,):
            row["labels"] = list(self.labels)
        return row | ({"scores": dict(self.scores)} if all_scores else {})


@dataclass(frozen=True, slots=True)
class TextEntity:
    """An entity in a text; or a word with its tag, if the tags of the model do not mark entities.

    Attributes:
        label: Type of the entity; or the tag of the word.
        start: Index of the first character of the entity in the text.
        end: Index after the last character of the entity.
        text: The text of the entity.
        score: Each word of the entity has a tag with a probability; this is the lowest of these
            probabilities, from 0 to 1.

    Example:
        >>> entity = TextEntity("loc", start=9, end=14, text="Paris", score=0.9)
        >>> "It is in Paris."[entity.start : entity.end]
        'Paris'
    """

    label: str
    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class TextEntities:
    """The entities of a text, in order.

    Example:
        >>> found = TextEntities((TextEntity("loc", 9, 14, "Paris", 0.9),))
        >>> [entity.text for entity in found.entities]
        ['Paris']
    """

    entities: tuple[TextEntity, ...]

    def to_row(self, *, all_scores: bool = False) -> dict[str, object]:
        """Return the result as an object for JSON; ``all_scores`` changes nothing."""
        return {"entities": [asdict(entity) for entity in self.entities]}


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """The answer to a question in a text.

    Attributes:
        text: The answer; "" if there is no answer.
        start: Index of the first character of the answer in the text; 0 if there is no answer.
        end: Index after the last character of the answer; 0 if there is no answer.
        score: Probability of the answer, from 0 to 1; or of "no answer", if there is no answer.
        margin: Score of the best span minus the score of "no answer", in logits; 0 if the text has
            no tokens. There is no answer if the margin is below ``-no_answer_threshold`` of the
            `Predictor`.

    Example:
        >>> model = Predictor("my-answerer", device="cpu")
        >>> model.answer([("what sat?", "the cat sat")])[0].text
        'sat'
    """

    text: str
    start: int
    end: int
    score: float
    margin: float

    def to_row(self, *, all_scores: bool = False) -> dict[str, object]:
        """Return the result as an object for JSON; ``all_scores`` adds the margin."""
        row: dict[str, object] = {
            "answer": self.text,
            "start": self.start,
            "end": self.end,
            "score": self.score,
        }
        return row | ({"margin": self.margin} if all_scores else {})


Prediction = TextLabel | TextEntities | TextAnswer
