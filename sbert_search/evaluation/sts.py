"""Semantic textual similarity: does the cosine of two texts order pairs as people do?

The "all" setting: one correlation over the pooled pairs of a set, subsets included, as in the
tables of SimCSE and MTEB. The mean over subsets, which older papers print, gives other numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.config import to_mapping
from sbert_search.corpus.pairs import read_pairs
from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.errors import EvaluationError
from sbert_search.evaluation.manifest import Evaluation, Stopwatch, make_manifest
from sbert_search.evaluation.tasks import EvalTask, check_files
from sbert_search.metrics.correlation import pearson, spearman
from sbert_search.records import TextPair

SETTING = "all"


def evaluate_sts(
    task: EvalTask,
    embedder: TextEmbedder,
    *,
    data: Path,
    trained_on: Iterable[TextPair] = (),
    seed: int = 0,
) -> Evaluation:
    """Correlate the cosines of a set's pairs with its gold scores.

    Args:
        task: A set of scored pairs.
        embedder: What is evaluated.
        data: Folder that the task's path is relative to.
        trained_on: Pairs the model has seen; those of the task, in either order, are left out.
        seed: Recorded; nothing here is random.

    Raises:
        CorpusError: The pairs cannot be read.
        EvaluationError: The file is another revision, a pair has no score, fewer than two pairs
            are left, or a correlation is not defined.
    """
    clock = Stopwatch()
    file = data / task.path
    hashes = check_files(task, data, [file])
    pairs = read_pairs(file, **to_mapping(task.columns))
    seen = {_unordered(pair) for pair in trained_on}
    places = [place for place, pair in enumerate(pairs) if _unordered(pair) not in seen]
    kept = [pairs[place] for place in places]
    if len(kept) < 2:
        raise EvaluationError(f"{task.name}: {len(kept)} of {len(pairs)} pairs are left; too few.")
    gold = _gold_scores(task, kept)
    cosines, n_truncated = pair_cosines(kept, embedder)
    clock.lap("embed")
    return Evaluation(
        task=task,
        scores={"spearman": spearman(cosines, gold), "pearson": pearson(cosines, gold)},
        per_item={
            "cosine": {str(place): float(c) for place, c in zip(places, cosines, strict=True)},
            "gold": {str(place): score for place, score in zip(places, gold, strict=True)},
        },
        counts={
            "pairs": len(kept),
            "pairs left out (trained on)": len(pairs) - len(kept),
            "texts truncated": n_truncated,
        },
        manifest=make_manifest(
            data=hashes,
            model=embedder.identity,
            settings={"correlation": SETTING, "similarity": "cosine"},
            seed=seed,
            clock=clock,
        ),
    )


def pair_cosines(
    pairs: Sequence[TextPair], embedder: TextEmbedder
) -> tuple[NDArray[np.float32], int]:
    """Embed every distinct text once and compare the two of each pair.

    Returns:
        Cosines, float32 (n,), and the number of distinct texts that the model cut off. Computed in
        64 bits and rounded, so that all pairs of two equal texts tie at 1.
    """
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.text1, pair.text2)))
    tokens = embedder.tokenize(texts)
    vectors = embedder.encode_tokens(tokens).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    row = {text: n for n, text in enumerate(texts)}
    left = vectors[[row[pair.text1] for pair in pairs]]
    right = vectors[[row[pair.text2] for pair in pairs]]
    cosines = np.einsum("ij,ij->i", left, right).astype(np.float32)
    return cosines, int(np.count_nonzero(tokens.lost))


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
    return frozenset(" ".join(text.lower().split()) for text in (pair.text1, pair.text2))
