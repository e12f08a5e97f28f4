"""Evaluate a model on semantic textual similarity (STS), or on triplets of texts.

The correlation on STS is computed in the "all" setting: over the pairs of all subsets together, as
in the tables of SimCSE and MTEB. Older papers report the mean of the correlations of the subsets,
which is another number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sbert_search.embed.protocol import TextEmbedder, TokenizedTexts, Vectors
from sbert_search.errors import EvaluationError
from sbert_search.evaluate.manifest import Evaluation, EvaluationTracker
from sbert_search.evaluate.metrics.classification import (
    COUNTS,
    average_precision,
    best_thresholds,
    f1,
    share,
)
from sbert_search.evaluate.metrics.correlation import pearson, spearman
from sbert_search.evaluate.metrics.isotropy import alignment, uniformity, unit_rows
from sbert_search.evaluate.tasks import EvalTask
from sbert_search.search.rerankers import Reranker
from sbert_search.text.labelled.pairs import dissimilar_first, read_pairs, read_triplets
from sbert_search.text.labelled.records import TextPair
from sbert_search.text.labelled.retrieval import fold_case_and_space


def encode_finite(embedder: TextEmbedder, tokens: TokenizedTexts) -> Vectors:
    """Return the vectors of tokenised texts, float32 (n, dim); refuse one that is not finite."""
    vectors = embedder.encode_tokens(tokens)
    require_finite(vectors, "vector", "texts", [repr(text[:80]) for text in tokens.texts])
    return vectors


def require_finite(values: Vectors, what: str, items: str, names: Sequence[str]) -> None:
    """Refuse values, (n, dim), that are not finite; ``names`` are those of the n items."""
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise EvaluationError(
            f"The model has no finite {what} for {int((~finite).sum()):,} of {len(values):,} "
            f"{items}, the first is {names[int(finite.argmin())]}; check the model, or use "
            "--precision fp32."
        )


SETTING = "all"
ALIKE = 4.0  # minimum gold score of a positive pair for `alignment`


def evaluate_sts(
    task: EvalTask,
    model: TextEmbedder | Reranker,
    *,
    data: Path,
    trained_on: Iterable[TextPair] = (),
    seed: int = 0,
) -> Evaluation:
    """Correlate the predicted similarities of a model with the gold scores.

    An embedder predicts the cosine of the two vectors, a cross-encoder one score for a pair. Pairs
    of ``trained_on`` are skipped (see `unseen_pairs`). ``seed`` has no effect, since no interval is
    computed for STS.
    """
    tracker = EvaluationTracker(task, data, seed=seed)
    ids, kept, n_seen = unseen_pairs(task, data, trained_on)
    gold = _gold_scores(task, kept)
    by_pair = isinstance(model, Reranker)
    predictions = (
        _predict_by_score(kept, model)
        if isinstance(model, Reranker)
        else _predict_by_cosine(kept, gold, model)
    )
    tracker.lap("embed")
    return tracker.finish(
        model.identity,
        scores={
            "spearman": spearman(predictions.predicted, gold),
            "pearson": pearson(predictions.predicted, gold),
            **predictions.geometry,
        },
        per_item={
            "predicted": dict(zip(ids, predictions.predicted.tolist(), strict=True)),
            "gold": dict(zip(ids, gold, strict=True)),
        },
        counts={
            "pairs": len(kept),
            "pairs left out (trained on)": n_seen,
            "pairs truncated" if by_pair else "texts truncated": predictions.n_truncated,
        },
        settings={"correlation": SETTING, "similarity": "score" if by_pair else "cosine"},
    )


def evaluate_binary(
    task: EvalTask, model: TextEmbedder | Reranker, *, data: Path, seed: int = 0
) -> Evaluation:
    """Tell pairs with the label 1 from those with 0 by the similarity that a model predicts.

    Other two labels do if one of them says that the texts are no pair, such as ``not_duplicate``.

    F1, precision and recall are those at the threshold with the highest F1, accuracy is that at its
    own best threshold, and AP, the average precision, needs none. Thresholds that were chosen on
    the same pairs flatter a model a little; use them on other pairs.
    """
    tracker, names = EvaluationTracker(task, data, seed=seed), task.columns
    pairs = read_pairs(
        data / task.path, text1=names.text1, text2=names.text2, label=names.label, need=["label"]
    )
    classes = dissimilar_first(str(pair.label) for pair in pairs) or ("0", "1")
    gold = np.array([_zero_or_one(pair, classes) for pair in pairs])
    if gold.min() == gold.max():
        raise EvaluationError(
            f"{task.name}: all pairs have the label {gold[0]:g}; pairs of both classes are needed."
        )
    if isinstance(model, Reranker):
        predictions = _predict_by_score(pairs, model)
    else:
        predictions = _predict_by_cosine(pairs, 5 * gold, model)
    scores = predictions.predicted.astype(np.float64)
    tracker.lap("embed")
    by_accuracy, by_f1 = best_thresholds(scores, gold)
    right, called = (scores >= by_accuracy) == gold, (scores >= by_f1).astype(float)
    per_item = {
        "accuracy": right.astype(float),
        **dict(zip(COUNTS, (called * gold, called, gold), strict=True)),
        "predicted score": scores,
    }
    matched, predicted, positive = (per_item[name].sum() for name in COUNTS)
    return tracker.finish(
        model.identity,
        scores={
            "F1": float(f1(matched, predicted, positive)),
            "precision": float(share(matched, predicted)),
            "recall": float(share(matched, positive)),
            "F1 threshold": by_f1,
            "accuracy": float(right.mean()),
            "accuracy threshold": by_accuracy,
            "AP": float(average_precision(scores, gold)),
        },
        per_item={
            name: dict(zip(map(str, range(len(pairs))), values.tolist(), strict=True))
            for name, values in per_item.items()
        },
        counts={"pairs": len(pairs), "pairs with the label 1": int(gold.sum())},
        settings={"similarity": "score" if isinstance(model, Reranker) else "cosine"},
    )


def _zero_or_one(pair: TextPair, classes: tuple[str, ...]) -> float:
    if pair.label not in classes:
        raise EvaluationError(
            f"{pair.source}: the label {pair.label!r} is neither 0 nor 1. Give the pairs that "
            "belong together the label 1 and the others 0; eval nli measures other classes."
        )
    return float(classes.index(pair.label))


@dataclass(frozen=True, slots=True)
class Predictions:
    """The predictions of a model for pairs.

    ``geometry`` has alignment and uniformity of the embeddings that are not zero; alignment is
    absent if no pair of them is positive, uniformity if there are fewer than two.
    """

    predicted: NDArray[np.float32]  # similarity of each pair, (n,)
    n_truncated: int  # texts; for a cross-encoder, pairs
    geometry: Mapping[str, float] = field(default_factory=dict)  # empty for a cross-encoder


def _predict_by_score(pairs: Sequence[TextPair], model: Reranker) -> Predictions:
    if model.num_labels != 1:
        raise EvaluationError(
            f"The model has {model.num_labels} labels; a correlation needs one score for a pair."
        )
    texts = [(pair.text1, pair.text2) for pair in pairs]
    lost = model.tokenizer.encode_pairs(texts).lost
    return Predictions(model.predict(texts), int(np.count_nonzero(lost)))


def _predict_by_cosine(
    pairs: Sequence[TextPair], gold: ArrayLike, embedder: TextEmbedder
) -> Predictions:
    """Embed every distinct text once and compute the cosine of each pair.

    Cosines are computed in float64 and rounded to float32, so that the cosine of equal texts is
    exactly 1. Those of a zero vector are 0; a static model gives it for a text without a known
    token. Pairs with a gold score of at least `ALIKE` are the positive pairs of the alignment.
    """
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.text1, pair.text2)))
    tokens = embedder.tokenize(texts)
    vectors = unit_rows(encode_finite(embedder, tokens))
    row = {text: n for n, text in enumerate(texts)}
    left = vectors[[row[pair.text1] for pair in pairs]]
    right = vectors[[row[pair.text2] for pair in pairs]]
    alike = np.asarray(gold) >= ALIKE
    units = vectors[vectors.any(axis=1)]
    geometry = {"uniformity": uniformity(units)} if len(units) > 1 else {}
    alike &= left.any(axis=1) & right.any(axis=1)
    if alike.any():
        geometry = {"alignment": alignment(left[alike], right[alike]), **geometry}
    cosines = np.einsum("ij,ij->i", left, right).astype(np.float32)
    return Predictions(cosines, int(np.count_nonzero(tokens.lost)), geometry)


def unseen_pairs(
    task: EvalTask, data: Path, trained_on: Iterable[TextPair]
) -> tuple[list[str], list[TextPair], int]:
    """Read the pairs of a task and skip those that the model was trained on.

    A pair is skipped if a training pair has the same two texts, in either order; differences in
    case and white space are ignored. The result is the indices in the file of the pairs kept, as
    strings; these pairs; and the number of skipped pairs.
    """
    names = task.columns
    pairs = read_pairs(data / task.path, text1=names.text1, text2=names.text2, score=names.score)
    seen = {_unordered(pair) for pair in trained_on}
    kept = {str(n): pair for n, pair in enumerate(pairs) if _unordered(pair) not in seen}
    if len(kept) < 2:
        raise EvaluationError(
            f"{task.name}: {len(kept)} of {len(pairs)} pairs are left, and a correlation needs 2."
        )
    return list(kept), list(kept.values()), len(pairs) - len(kept)


def _gold_scores(task: EvalTask, pairs: Sequence[TextPair]) -> list[float]:
    scores = [pair.score for pair in pairs if pair.score is not None]
    if len(scores) < len(pairs):
        bad = next(pair for pair in pairs if pair.score is None)
        raise EvaluationError(
            f"{task.name}: {len(pairs) - len(scores)} pairs have no score, the first at "
            f"{bad.source}; name the column with [columns] score = ... in the task file."
        )
    return scores


def _unordered(pair: TextPair) -> frozenset[str]:
    return frozenset(map(fold_case_and_space, (pair.text1, pair.text2)))


def evaluate_triplets(
    task: EvalTask, embedder: TextEmbedder, *, data: Path, seed: int = 0
) -> Evaluation:
    """Count the triplets whose anchor is nearer to its positive than to every negative.

    ``accuracy`` is by Euclidean distance, as in Reimers & Gurevych 2019, section 4.4; ``cosine
    accuracy`` by cosine. Equal distances count as wrong.
    """
    tracker, names = EvaluationTracker(task, data, seed=seed), task.columns
    triplets = read_triplets(data / task.path, anchor=names.text1, positive=names.text2)
    row: dict[str, int] = {}
    for triplet in triplets:
        for text in (triplet.anchor, triplet.positive, *triplet.negatives):
            row.setdefault(text, len(row))
    tokens = embedder.tokenize(list(row))
    vectors = encode_finite(embedder, tokens).astype(np.float64)
    tracker.lap("embed")
    correct: dict[str, dict[str, float]] = {}
    for name, space in (("accuracy", vectors), ("cosine accuracy", unit_rows(vectors))):
        correct[name] = {}
        for number, triplet in enumerate(triplets):
            others = space[[row[text] for text in (triplet.positive, *triplet.negatives)]]
            distances = np.linalg.norm(others - space[row[triplet.anchor]], axis=1)
            correct[name][str(number)] = float(distances[0] < distances[1:].min())
    return tracker.finish(
        embedder.identity,
        scores={name: float(np.mean([*values.values()])) for name, values in correct.items()},
        per_item=correct,
        counts={"triplets": len(triplets), "texts truncated": int(np.count_nonzero(tokens.lost))},
    )
