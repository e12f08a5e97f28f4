"""Losses against a teacher: one number a row, whose mean is the batch's."""

from __future__ import annotations

from torch import Tensor


def candidate_scores(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Score the candidates of each anchor by dot product.

    Args:
        anchors: Float (batch, dim).
        candidates: Float (batch, n, dim).

    Returns:
        Float (batch, n).
    """
    return (anchors.unsqueeze(1) * candidates).sum(dim=-1)


def margin_mse(scores: Tensor, teacher: Tensor) -> Tensor:
    """Match how far the positive is ahead of each negative.

    Args:
        scores: Of the positive, then of its negatives, float (batch, 1 + negatives).
        teacher: The same of the teacher, such as a cross-encoder's logits.

    Returns:
        Float (batch,).

    Source: Hofstätter et al. 2020, Cross-Architecture Knowledge Distillation, section 3
    (arXiv:2010.02666).
    """
    ahead, teachers = (x[:, :1] - x[:, 1:] for x in (scores, teacher))
    return (ahead - teachers).square().mean(dim=1)


def score_divergence(scores: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Match the teacher's distribution over the candidates of each anchor.

    Args:
        scores: Float (batch, candidates).
        teacher: The teacher's, of the same shape.
        temperature: Divides the scores of both.

    Returns:
        Kullback-Leibler divergence in nats, times the temperature squared, float (batch,).

    Source: Hinton, Vinyals & Dean 2015, section 2 (arXiv:1503.02531).
    """
    ours = (scores / temperature).log_softmax(dim=1)
    theirs = (teacher / temperature).log_softmax(dim=1)
    return (theirs.exp() * (theirs - ours)).sum(dim=1) * temperature**2


def embedding_mse(embeddings: Tensor, teacher: Tensor) -> Tensor:
    """Match the teacher's embeddings.

    Args:
        embeddings: Of the texts of each row, float (batch, texts, dim).
        teacher: What all texts of a row should become, (batch, dim): that of the first text, when
            the others are its translations or paraphrases.

    Returns:
        Mean squared difference, float (batch,).

    Source: Reimers & Gurevych 2020, Making Monolingual Sentence Embeddings Multilingual, section 2
    (arXiv:2004.09813).
    """
    return (embeddings - teacher.unsqueeze(1)).square().mean(dim=(1, 2))
