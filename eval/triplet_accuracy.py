"""Triplet accuracy: how often a sentence is nearer to its own section than to another section."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from sbert_search.embed.embedder import Embedder
from sbert_search.train.data.examples import DataConfig, read_examples


def accuracy_by_article(path: Path, embedder: Embedder, *, per_document: int = 4) -> list[float]:
    """Measure how often a sentence is nearer to one of the same section than to one of another.

    Sentences are compared by the Euclidean distance of their embeddings. The two sections belong to
    the same document.

    Returns:
        Accuracy of each document. Triplets of one document depend on each other, so confidence
        intervals must be computed over documents.
    """
    data = DataConfig(train=path, form="sections", per_document=per_document)
    examples = read_examples(path, data, "nothing")
    vectors = embedder.encode([text for example in examples for text in example.texts])
    anchor, positive, negative = vectors.reshape(len(examples), 3, -1).transpose(1, 0, 2)
    correct = np.linalg.norm(anchor - positive, axis=1) < np.linalg.norm(anchor - negative, axis=1)
    by_document = defaultdict(list)
    for example, is_correct in zip(examples, correct.tolist(), strict=True):
        by_document[example.source].append(is_correct)
    return [float(np.mean(correct)) for correct in by_document.values()]
