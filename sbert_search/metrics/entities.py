"""Precision, recall and F1 of entities, as the CoNLL shared tasks count them.

An entity counts as found if its type, its first token and its last token are right.

Source: Tjong Kim Sang & De Meulder 2003, Introduction to the CoNLL-2003 shared task, section 2.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbert_search.metrics.classification import f1, share
from sbert_search.tag_schemes import Entity, Scheme, entities

Tags = Sequence[str]


@dataclass(frozen=True, slots=True)
class EntityScores:
    """Scores over the entities of some sentences.

    Attributes:
        matched: Number of predicted entities that are right.
        predicted: Number of predicted entities.
        gold: Number of entities in the gold tags.
    """

    matched: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """Share of the predicted entities that are right; 0 if none is predicted."""
        return float(share(self.matched, self.predicted))

    @property
    def recall(self) -> float:
        """Share of the gold entities that were found; 0 if there are none."""
        return float(share(self.matched, self.gold))

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 if both are 0."""
        return float(f1(self.matched, self.predicted, self.gold))


def entity_scores(
    gold: Sequence[Tags], predicted: Sequence[Tags], scheme: Scheme, *, strict: bool = False
) -> EntityScores:
    """Score the entities of all sentences together (micro average).

    Args:
        gold: Tags of each sentence.
        predicted: Predicted tags of each sentence, of the same lengths.
        scheme: Scheme of the tags.
        strict: Whether entities that break the scheme are ignored; see `tag_schemes.entities`.

    Raises:
        ValueError: The numbers of sentences or of tags differ, or a tag belongs to neither BIO nor
            BILOU or, if ``strict``, not to ``scheme``.
    """
    counts = sentence_counts(gold, predicted, scheme, strict=strict).sum(axis=0)
    return EntityScores(*counts.astype(int).tolist())


def scores_by_type(
    gold: Sequence[Tags], predicted: Sequence[Tags], scheme: Scheme, *, strict: bool = False
) -> dict[str, EntityScores]:
    """Score the entities of each type, sorted by type; arguments and errors as `entity_scores`."""
    pairs = _found(gold, predicted, scheme, strict)
    kinds = sorted({entity.kind for pair in pairs for found in pair for entity in found})
    return {kind: EntityScores(*_counts(pairs, kind).sum(axis=0).tolist()) for kind in kinds}


def sentence_counts(
    gold: Sequence[Tags], predicted: Sequence[Tags], scheme: Scheme, *, strict: bool = False
) -> NDArray[np.float64]:
    """Count matched, predicted and gold entities of each sentence, (sentences, 3)."""
    return _counts(_found(gold, predicted, scheme, strict)).astype(np.float64)


def _found(
    gold: Sequence[Tags], predicted: Sequence[Tags], scheme: Scheme, strict: bool
) -> list[tuple[set[Entity], set[Entity]]]:
    """Return the gold and predicted entities of each sentence."""
    for number, (a, b) in enumerate(zip(gold, predicted, strict=True)):
        if len(a) != len(b):
            raise ValueError(f"Sentence {number} has {len(a)} gold and {len(b)} predicted tags.")
    return [
        (set(entities(a, scheme, strict=strict)), set(entities(b, scheme, strict=strict)))
        for a, b in zip(gold, predicted, strict=True)
    ]


def _counts(
    pairs: Sequence[tuple[set[Entity], set[Entity]]], kind: str | None = None
) -> NDArray[np.int64]:
    def of(found: set[Entity]) -> set[Entity]:
        return found if kind is None else {entity for entity in found if entity.kind == kind}

    rows = [(len(of(a) & of(b)), len(of(b)), len(of(a))) for a, b in pairs]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)
