"""Exact match and F1 of answers to questions, with SQuAD's own normalisation.

Source: Rajpurkar et al. 2016, SQuAD, section 6.1 (arXiv:1606.05250), and its evaluation script of
version 2.0: an answer is compared with each accepted answer and gets the best value; a question
without an answer accepts only the empty answer.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower the case, and remove ASCII punctuation, English articles and superfluous blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(predicted: str, accepted: Sequence[str]) -> float:
    """1 if the normalised answer equals a normalised accepted answer, else 0.

    Args:
        predicted: The answer; "" if it says that the context has no answer.
        accepted: The accepted answers; () if the context has no answer.
    """
    own = normalize_answer(predicted)
    return max(float(own == normalize_answer(text)) for text in _accepted(accepted))


def answer_f1(predicted: str, accepted: Sequence[str]) -> float:
    """F1 of the normalised words, against the accepted answer that gives the highest value.

    If one of the two answers has no words left, the value is 1 if both have none, else 0.
    Arguments as for `exact_match`.
    """
    own = normalize_answer(predicted).split()
    return max(_overlap(own, normalize_answer(text).split()) for text in _accepted(accepted))


def _accepted(accepted: Sequence[str]) -> Sequence[str]:
    """Return the answers that have words after normalisation; if no answer has any, ``[""]``."""
    return [text for text in accepted if normalize_answer(text)] or [""]


def _overlap(own: list[str], other: list[str]) -> float:
    if not own or not other:
        return float(own == other)
    shared = (Counter(own) & Counter(other)).total()
    return 2 * shared / (len(own) + len(other))
