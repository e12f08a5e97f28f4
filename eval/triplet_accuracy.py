"""How often a sentence is nearer to one of its own section than to one of another section."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from sbert_search.embedding.embedder import Embedder
from sbert_search.training.data.examples import DataConfig, read_examples


def accuracy_by_article(path: Path, embedder: Embedder, *, per_document: int = 4) -> list[float]:
    """Measure triplets of the sections of documents by Euclidean distance.

    Returns:
        Share of each document's triplets that are right; triplets of one document depend on each
        other, so intervals are to be made over documents.
    """
    data = DataConfig(train=path, form="sections", per_document=per_document)
    examples = read_examples(path, data, "nothing")
    vectors = embedder.encode([text for example in examples for text in example.texts])
    anchor, positive, negative = vectors.reshape(len(examples), 3, -1).transpose(1, 0, 2)
    right = np.linalg.norm(anchor - positive, axis=1) < np.linalg.norm(anchor - negative, axis=1)
    of_document = defaultdict(list)
    for example, is_right in zip(examples, right.tolist(), strict=True):
        of_document[example.source].append(is_right)
    return [float(np.mean(found)) for found in of_document.values()]
