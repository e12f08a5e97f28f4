"""Evaluate an embedder on triplets: is each anchor nearer to its positive than to its negatives?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sbert_search.embed.protocol import TextEmbedder
from sbert_search.evaluation.manifest import Evaluation, Stopwatch, make_manifest
from sbert_search.evaluation.tasks import EvalTask, check_files
from sbert_search.evaluation.vectors import encode_finite
from sbert_search.metrics.isotropy import unit_rows
from sbert_search.text.labelled.pairs import read_triplets


def evaluate_triplets(
    task: EvalTask, embedder: TextEmbedder, *, data: Path, seed: int = 0
) -> Evaluation:
    """Count the triplets whose anchor is nearer to its positive than to every negative.

    Args:
        task: A task whose path is a file of triplets.
        embedder: The embedder to evaluate.
        data: Folder that the task's path is relative to.
        seed: Seed of the interval of the main metric; the scores have no random part.

    Returns:
        ``accuracy`` by Euclidean distance, as in Reimers & Gurevych 2019, section 4.4, and
        ``cosine accuracy``. Equal distances count as wrong.

    Raises:
        CorpusError: The triplets cannot be read.
        EvaluationError: The file is absent, its hash is not the one in the task, or a vector is not
            finite.
    """
    clock = Stopwatch()
    file, names = data / task.path, task.columns
    hashes = check_files(task, data, [file])
    triplets = read_triplets(file, anchor=names.text1, positive=names.text2)
    row: dict[str, int] = {}
    for triplet in triplets:
        for text in (triplet.anchor, triplet.positive, *triplet.negatives):
            row.setdefault(text, len(row))
    tokens = embedder.tokenize(list(row))
    vectors = encode_finite(embedder, tokens).astype(np.float64)
    clock.lap("embed")
    correct: dict[str, dict[str, float]] = {}
    for name, space in (("accuracy", vectors), ("cosine accuracy", unit_rows(vectors))):
        correct[name] = {}
        for number, triplet in enumerate(triplets):
            others = space[[row[text] for text in (triplet.positive, *triplet.negatives)]]
            distances = np.linalg.norm(others - space[row[triplet.anchor]], axis=1)
            correct[name][str(number)] = float(distances[0] < distances[1:].min())
    return Evaluation(
        task=task,
        scores={name: float(np.mean([*values.values()])) for name, values in correct.items()},
        per_item=correct,
        counts={"triplets": len(triplets), "texts truncated": int(np.count_nonzero(tokens.lost))},
        manifest=make_manifest(
            data=hashes, model=embedder.identity, settings={}, seed=seed, clock=clock
        ),
    )
