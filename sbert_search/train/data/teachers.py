"""Targets from a teacher model: a bi-encoder's embeddings or a cross-encoder's scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sbert_search.embed.embedder import Embedder
from sbert_search.errors import ConfigError, TrainingError
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.search.rerankers import Reranker
from sbert_search.train.data.text_dataset import TextRows


def embed_by_teacher(rows: TextRows, teacher: str, dim: int, *, device: str) -> TextRows:
    """Set the targets to the teacher's embedding of the first text of each row, float32 (n, dim).

    Raises:
        TrainingError: Rows have different numbers of texts.
        ConfigError: The teacher's embeddings have another dimension.
        ModelError: The teacher cannot be loaded.
    """
    _check_widths(rows)
    embedder = Embedder(resolve_model(teacher).path, device=device)
    if embedder.dim != dim:
        raise ConfigError(
            f"The embeddings of the teacher {teacher} have {embedder.dim} dimensions, those of the "
            f"model {dim}. Use a teacher or a model of the other's dimensions; or, for triplets, "
            "loss.name=margin_mse, whose teacher is a cross-encoder."
        )
    anchors, row_of = np.unique(rows.text_ids[:, 0], return_inverse=True)
    vectors = embedder.encode([rows.texts[text] for text in anchors], show_progress_bar=True)
    return replace(rows, targets=vectors[row_of])


def score_by_teacher(rows: TextRows, teacher: str, *, device: str) -> TextRows:
    """Set the targets to the teacher's logits of the pairs of each row.

    The first text of a row is paired with each other text; targets are float32 (n, pairs of a row).
    No sigmoid is applied: it would map most large differences of two logits to almost 1.

    Raises:
        TrainingError: Rows have different numbers of candidates.
        ConfigError: The teacher has several labels, and so no single score of a pair.
        ModelError: The teacher cannot be loaded.
    """
    _check_widths(rows)
    reranker = Reranker(resolve_model(teacher).path, device=device)
    reranker.opened.engine.use_logits()
    if reranker.num_labels != 1:
        raise ConfigError(
            f"The teacher {teacher} has {reranker.num_labels} labels and so no single score of a "
            "pair; use a cross-encoder with one label."
        )
    texts = [rows.row_texts(row) for row in range(len(rows.text_ids))]
    pairs = [(anchor, candidate) for anchor, *others in texts for candidate in others]
    scores = reranker.predict(pairs, show_progress_bar=True)
    return replace(rows, targets=scores.reshape(len(rows.text_ids), -1).astype(np.float32))


def _check_widths(rows: TextRows) -> None:
    if len(sizes := np.unique(rows.sizes)) > 1:
        raise TrainingError(
            f"Some rows have {sizes.min()} texts and some have {sizes.max()}; a loss that learns "
            "from a teacher needs the same number of texts in every row. Give each row the same "
            "number of negatives."
        )
