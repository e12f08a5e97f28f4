"""Metrics of classes, entities and answers, as functions of sums, with intervals and tests.

``counts[g, p]`` is the number of items of class ``g`` that were predicted as class ``p``. A metric
gets one matrix, or several of them at once, (..., classes, classes), as a bootstrap makes them.

An entity counts as found if its type, its first token and its last token are right.

F1 and Matthews correlation are no means over items. They are functions of counts, and the counts
are sums over items, so a bootstrap resamples the items and adds up their counts. The randomisation
test swaps the counts of the two systems on random items. An evaluation record stores the values
that each item (a text or a sentence) adds to the sums, under the names in `CLASSES` or `COUNTS`.

Sources: Rajpurkar et al. 2016, SQuAD, section 6.1 (arXiv:1606.05250), and its evaluation script of
version 2.0; Tjong Kim Sang & De Meulder 2003, Introduction to the CoNLL-2003 shared task, section
2.3.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sbert_search.evaluate.metrics.significance import (
    DRAWS,
    Difference,
    draw_counts,
    equal_lists,
    percentiles,
    resampled,
    swaps,
    two_sided,
)
from sbert_search.tag_schemes import Entity, Scheme, entities

Floats = NDArray[np.float64]


def confusion(predicted: ArrayLike, gold: ArrayLike, n_classes: int) -> Floats:
    """Count the items by gold and predicted class, (n_classes, n_classes)."""
    p, g = (values.astype(np.int64) for values in equal_lists(predicted, gold))
    if len(p) and not (min(p.min(), g.min()) >= 0 and max(p.max(), g.max()) < n_classes):
        raise ValueError(f"An index of a class is outside 0 to {n_classes - 1}.")
    cells = np.bincount(g * n_classes + p, minlength=n_classes**2)
    return cells.reshape(n_classes, n_classes).astype(np.float64)


def accuracy(counts: ArrayLike) -> Floats:
    """Share of items whose predicted class is right, (...)."""
    matched, _, gold = _sums(counts)
    return share(matched.sum(-1), gold.sum(-1))


def macro_f1(counts: ArrayLike) -> Floats:
    """Mean F1 of the classes that occur as gold or predicted class, (...)."""
    return macro_f1_of(*_sums(counts))


def macro_f1_of(matched: Floats, predicted: Floats, gold: Floats) -> Floats:
    """`macro_f1` from the numbers of right, of predicted and of gold items, (..., classes) each."""
    occurs = (predicted + gold) > 0
    values = f1(matched, predicted, gold) * occurs
    return share(values.sum(-1), occurs.sum(-1))


def matthews(counts: ArrayLike) -> Floats:
    """Matthews correlation coefficient, for any number of classes, (...).

    It is 0 if all items have one gold class or one predicted class.

    Source: Gorodkin 2004, Comparing two K-category assignments by a K-category correlation
    coefficient, section 2.
    """
    return matthews_of(*_sums(counts))


def matthews_of(matched: Floats, predicted: Floats, gold: Floats) -> Floats:
    """`matthews` from the numbers of right, of predicted and of gold items, (..., classes) each."""
    total = gold.sum(-1)
    covariance = matched.sum(-1) * total - (gold * predicted).sum(-1)
    spread = (total**2 - (predicted**2).sum(-1)) * (total**2 - (gold**2).sum(-1))
    return share(covariance, np.sqrt(np.maximum(spread, 0)))


def f1(matched: ArrayLike, predicted: ArrayLike, gold: ArrayLike) -> Floats:
    """F1 from the numbers of matches, of predictions and of gold items, (...); 0 where all are 0.

    From numbers that are summed over all labels of a multi-label classifier, it is the micro F1.
    """
    both = np.asarray(predicted, dtype=np.float64) + np.asarray(gold, dtype=np.float64)
    return share(2 * np.asarray(matched, dtype=np.float64), both)


def share(part: ArrayLike, whole: ArrayLike) -> Floats:
    """Precision or recall: ``part / whole``, 0 where ``whole`` is 0, (...)."""
    above, below = (np.asarray(values, dtype=np.float64) for values in (part, whole))
    return np.divide(above, below, out=np.zeros(below.shape), where=below != 0)


def _sums(counts: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Number of right, of predicted and of gold items of each class, (..., classes) each."""
    table = np.asarray(counts, dtype=np.float64)
    return np.diagonal(table, axis1=-2, axis2=-1), table.sum(-2), table.sum(-1)


_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower the case, and remove ASCII punctuation, English articles and superfluous blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(predicted: str, accepted: Sequence[str]) -> float:
    """1 if the normalised answer equals an accepted one, else 0; "" and () mean no answer."""
    own = normalize_answer(predicted)
    return max(float(own == normalize_answer(text)) for text in _non_blank(accepted))


def answer_f1(predicted: str, accepted: Sequence[str]) -> float:
    """F1 of the normalised words, against the accepted answer that gives the highest value.

    If one of the two answers has no words left, the value is 1 if both have none, else 0.
    """
    own = normalize_answer(predicted).split()
    return max(_overlap(own, normalize_answer(text).split()) for text in _non_blank(accepted))


def _non_blank(accepted: Sequence[str]) -> Sequence[str]:
    """Return the answers that have words after normalisation; if no answer has any, ``[""]``."""
    return [text for text in accepted if normalize_answer(text)] or [""]


def _overlap(own: list[str], other: list[str]) -> float:
    if not own or not other:
        return float(own == other)
    shared = (Counter(own) & Counter(other)).total()
    return 2 * shared / (len(own) + len(other))


def best_thresholds(scores: ArrayLike, labels: ArrayLike) -> tuple[float, float]:
    """Return the thresholds of scores, (n,), with the highest accuracy and with the highest F1.

    An item counts as positive if its score is at least the threshold. ``labels`` are 0 or 1, (n,).
    Of several best thresholds, the highest is returned.
    """
    values, gold = equal_lists(scores, labels, fewest=1)
    order = np.argsort(-values, kind="stable")
    ordered, n_positive = values[order], gold.sum()
    matched = np.concatenate([[0.0], np.cumsum(gold[order])])  # of the first 0, 1, ... items
    counted = np.arange(len(ordered) + 1)
    separable = np.concatenate([[True], ordered[1:] < ordered[:-1], [True]])
    ends = np.concatenate([[np.inf], ordered])
    found = []
    for quality in (2 * matched - counted, f1(matched, counted, n_positive)):
        count = int(np.where(separable, quality, -np.inf).argmax())
        below = ordered[count] if count < len(ordered) else ends[count]
        middle = ordered[0] + 1 if count == 0 else (ends[count] + below) / 2
        found.append(float(middle if middle > below else ends[count]))
    return found[0], found[1]


def average_precision(scores: ArrayLike, labels: ArrayLike, weights: ArrayLike = 1.0) -> Floats:
    """Mean precision at the ranks of the positive items, (...), by weighted items, (..., n).

    Items with equal scores share the rank of the last of them. 0 if no item is positive.
    """
    values, gold = equal_lists(scores, labels, fewest=1)
    order = np.argsort(-values, kind="stable")
    counts = np.asarray(weights, dtype=np.float64) * np.ones(len(gold))
    counted = counts[..., order].cumsum(-1)
    matched = (counts * gold)[..., order].cumsum(-1)
    last = np.append(values[order][1:] < values[order][:-1], True)
    matched, counted = matched[..., last], counted[..., last]
    steps = np.diff(matched, axis=-1, prepend=0.0)
    return share((steps * share(matched, counted)).sum(-1), matched[..., -1])


Tags = Sequence[str]


@dataclass(frozen=True, slots=True)
class EntityScores:
    """Scores over the entities of some sentences."""

    matched: int  # number of predicted entities that are right
    predicted: int  # number of predicted entities
    gold: int  # number of entities in the gold tags

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

    If ``strict``, entities that break the scheme are ignored (see `tag_schemes.entities`).
    """
    counts = sentence_counts(gold, predicted, scheme, strict=strict).sum(axis=0)
    return EntityScores(*counts.astype(int).tolist())


def scores_by_type(
    gold: Sequence[Tags], predicted: Sequence[Tags], scheme: Scheme
) -> dict[str, EntityScores]:
    """Score the entities of each type, sorted by type."""
    pairs = _entity_sets(gold, predicted, scheme)
    kinds = sorted({entity.kind for pair in pairs for found in pair for entity in found})
    return {kind: EntityScores(*_counts(pairs, kind).sum(axis=0).tolist()) for kind in kinds}


def sentence_counts(
    gold: Sequence[Tags], predicted: Sequence[Tags], scheme: Scheme, *, strict: bool = False
) -> Floats:
    """Count matched, predicted and gold entities of each sentence, (sentences, 3)."""
    return _counts(_entity_sets(gold, predicted, scheme, strict)).astype(np.float64)


def _entity_sets(
    gold: Sequence[Tags], predicted: Sequence[Tags], scheme: Scheme, strict: bool = False
) -> list[tuple[set[Entity], set[Entity]]]:
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


Statistic = Callable[[Floats], Floats]
"""Maps sums over items, (..., sums), to values of a metric, (...)."""


def interval_of_sums(
    counts: ArrayLike, statistic: Statistic, *, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of a metric, by what each item adds to the sums, (n, sums)."""
    table, rng = np.asarray(counts, dtype=np.float64), np.random.default_rng(seed)
    values = [statistic(draw_counts(picks) @ table) for picks in resampled(rng, len(table), DRAWS)]
    return percentiles(np.concatenate(values))


def average_precision_interval(
    scores: ArrayLike, labels: ArrayLike, *, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the `average_precision` of scores, (n,)."""
    n, rng = len(np.asarray(scores)), np.random.default_rng(seed)
    blocks = (draw_counts(picks) for picks in resampled(rng, n, DRAWS))
    return percentiles(np.concatenate([average_precision(scores, labels, w) for w in blocks]))


def compare_sums(
    first: ArrayLike, second: ArrayLike, statistic: Statistic, *, draws: int = DRAWS, seed: int = 0
) -> Difference:
    """Compare a metric of two systems by what each item adds to their sums, (n, sums)."""
    a, b = (np.asarray(counts, dtype=np.float64) for counts in (first, second))
    if a.shape != b.shape:
        raise ValueError(f"Shapes {a.shape} and {b.shape} are not those of the same items.")
    rng, n = np.random.default_rng(seed), len(a)
    gains = []
    for picks in resampled(rng, n, draws):
        weights = draw_counts(picks)
        gains.append(statistic(weights @ b) - statistic(weights @ a))
    low, high = percentiles(np.concatenate(gains))
    null = []
    for swap in swaps(rng, n, draws):
        moved = swap @ (b - a)
        null.append(statistic(b.sum(0) - moved) - statistic(a.sum(0) + moved))
    value = float(statistic(b.sum(0)) - statistic(a.sum(0)))
    return Difference(value, low, high, two_sided(np.concatenate(null), value))


CLASSES = ("gold class", "predicted class")  # indices in the sorted class names
COUNTS = ("matched", "predicted", "gold")  # numbers of entities or labels of an item

_OF_CLASSES = {"Matthews": matthews_of, "macro F1": macro_f1_of}
_OF_COUNTS: Mapping[str, Statistic] = {
    "F1": lambda sums: f1(sums[..., 0], sums[..., 1], sums[..., 2]),
    "precision": lambda sums: share(sums[..., 0], sums[..., 1]),
    "recall": lambda sums: share(sums[..., 0], sums[..., 2]),
}

PerItem = Mapping[str, Mapping[str, float]]


def summed(
    metric: str, per_item: PerItem, n_classes: int | None = None
) -> tuple[Floats, Statistic] | None:
    """Return what each item adds to the sums, (n, sums), and a function from sums to the metric.

    None if the metric is not computed from sums, or if ``per_item`` lacks the values. ``n_classes``
    None: the largest class number plus one.
    """
    if metric in _OF_COUNTS and all(name in per_item for name in COUNTS):
        return np.array([[*per_item[name].values()] for name in COUNTS]).T, _OF_COUNTS[metric]
    if metric not in _OF_CLASSES or not all(name in per_item for name in CLASSES):
        return None
    gold, predicted = (np.array([*per_item[name].values()], dtype=np.int64) for name in CLASSES)
    n, rows = n_classes or class_count(per_item), np.arange(len(gold))
    cells = np.zeros((len(gold), 3, n))  # of each class: right, predicted, gold
    cells[rows, 0, gold] = gold == predicted
    cells[rows, 1, predicted] = cells[rows, 2, gold] = 1.0
    of_classes = _OF_CLASSES[metric]

    def value(sums: Floats) -> Floats:
        by_class = sums.reshape(*sums.shape[:-1], 3, n)
        return of_classes(by_class[..., 0, :], by_class[..., 1, :], by_class[..., 2, :])

    return cells.reshape(len(gold), -1), value


def class_count(*records: PerItem) -> int:
    """Return the number of classes in records: the largest class number plus one."""
    return 1 + int(max(max(record[name].values()) for record in records for name in CLASSES))
