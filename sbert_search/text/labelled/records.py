"""Records of labelled data, for training and evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts with a similarity score (STS), a class label (NLI, relevance), or neither."""

    text1: str
    text2: str
    score: float | None = None
    label: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Triplet:
    """An anchor, a positive text and negative texts."""

    anchor: str
    positive: str
    negatives: tuple[str, ...]
    source: str = ""


@dataclass(frozen=True, slots=True)
class TextGroup:
    """Texts of the same meaning, such as captions of one picture."""

    texts: tuple[str, ...]
    source: str = ""


LabelKind = Literal["class", "several", "number"]
"""What the label of a text is: one class, any number of classes, or a number."""

Label = str | float | tuple[str, ...]
"""The label of a text: the name of its class, a number, or the names of several classes."""


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text, or a pair of texts, with its label."""

    text: str
    text2: str | None
    label: Label
    source: str = ""


@dataclass(frozen=True, slots=True)
class TaggedTokens:
    """The tokens of a sentence, and for each token its tag."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]
    source: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question: a part of the context."""

    start: int  # index of its first character in the context
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question on a text, its context."""

    question_id: str
    text: str
    context: str
    answers: tuple[Answer, ...]  # the accepted ones; (): the context has no answer
    title: str = ""  # of the article that the context is from
    source: str = ""
