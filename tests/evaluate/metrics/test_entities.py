"""Scores of entities, against seqeval on random tags and by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import BILOU, IOB2

from sbert_search.evaluate.metrics.classification import (
    entity_scores,
    scores_by_type,
    sentence_counts,
)
from sbert_search.tag_schemes import Scheme, entities, tag_names

Sentences = list[list[str]]
N = 1_000


def random_tags(scheme: Scheme, seed: int) -> tuple[Sentences, Sentences]:
    """Random gold and predicted tags, most of which break the scheme, and half of which agree."""
    rng = np.random.default_rng(seed)
    names = np.array(tag_names(["LOC", "PER"], scheme))
    gold, predicted = [], []
    for length in rng.integers(1, 12, N):
        own = rng.choice(names, length)
        other = np.where(rng.random(length) < 0.8, own, rng.choice(names, length))
        gold.append(own.tolist())
        predicted.append(other.tolist())
    return gold, predicted


@pytest.mark.parametrize("scheme", ["bio", "bilou"])
def test_strict_scores_equal_seqeval_on_random_tags(scheme: Scheme) -> None:
    gold, predicted = random_tags(scheme, 0)
    theirs = {"mode": "strict", "scheme": {"bio": IOB2, "bilou": BILOU}[scheme]}
    ours = entity_scores(gold, predicted, scheme, strict=True)
    assert 0.1 < ours.f1 < 0.9
    assert ours.precision == pytest.approx(precision_score(gold, predicted, **theirs))
    assert ours.recall == pytest.approx(recall_score(gold, predicted, **theirs))
    assert ours.f1 == pytest.approx(f1_score(gold, predicted, **theirs))


@pytest.mark.parametrize("scheme", ["bio", "bilou"])
def test_scores_as_conll_counts_equal_seqeval_on_random_tags(scheme: Scheme) -> None:
    gold, predicted = random_tags(scheme, 1)
    # Outside its strict mode, seqeval knows BILOU by the letters E (end) and S (single).
    letters = str.maketrans("LU", "ES") if scheme == "bilou" else {}

    def renamed(sentences: Sentences) -> Sentences:
        return [[tag[:1].translate(letters) + tag[1:] for tag in tags] for tags in sentences]

    a, b = renamed(gold), renamed(predicted)
    ours = entity_scores(gold, predicted, scheme)
    assert 0.1 < ours.f1 < 0.9
    assert ours.precision == pytest.approx(precision_score(a, b))
    assert ours.recall == pytest.approx(recall_score(a, b))
    assert ours.f1 == pytest.approx(f1_score(a, b))
    for tags, own in zip(gold, a, strict=True):
        found = [(kind, start, end - 1) for kind, start, end in entities(tags, scheme)]
        assert found == get_entities(own)


def test_scores_by_hand() -> None:
    gold = [["B-a", "I-a", "O", "B-b"], ["O", "B-a"]]
    predicted = [["B-a", "O", "O", "B-b"], ["I-a", "B-a"]]
    scores = entity_scores(gold, predicted, "bio")
    # Predicted: a (too short), b (right), a (invented), a (right).
    assert (scores.matched, scores.predicted, scores.gold) == (2, 4, 3)
    assert scores.precision == 0.5
    assert scores.recall == pytest.approx(2 / 3)
    assert scores.f1 == pytest.approx(4 / 7)
    assert sentence_counts(gold, predicted, "bio").tolist() == [[1, 2, 2], [1, 2, 1]]
    by_type = scores_by_type(gold, predicted, "bio")
    assert {kind: (s.matched, s.predicted, s.gold) for kind, s in by_type.items()} == {
        **{"a": (1, 3, 2), "b": (1, 1, 1)}
    }


def test_no_entities_and_sentences_of_different_length() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert entity_scores([["O"]], [["O"]], "bio").f1 == 0
    assert entity_scores([], [], "bio").gold == 0
    with pytest.raises(ValueError, match="Sentence 1 has 1 gold and 2 predicted tags"):
        entity_scores([["O"], ["O"]], [["O"], ["O", "O"]], "bio")
