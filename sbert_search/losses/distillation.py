"""Losses that compare a student model with a teacher model.

A row of a batch is one training example. Each loss returns one value for each row, and the loss of
a batch is the mean of these values.
"""

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
    """Margin MSE: mean squared difference between the score margins of student and teacher.

    A margin is the score of the positive minus the score of a negative.

    Args:
        scores: The student's scores of the positive, then of its negatives, float
            (batch, 1 + negatives).
        teacher: The teacher's scores, such as a cross-encoder's logits, of the same shape.

    Returns:
        Float (batch,).

    Source: Hofstätter et al. 2020, Cross-Architecture Knowledge Distillation, section 3
    (arXiv:2010.02666).
    """
    margins, teacher_margins = (x[:, :1] - x[:, 1:] for x in (scores, teacher))
    return (margins - teacher_margins).square().mean(dim=1)


def kl_divergence(scores: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """KL divergence between the distributions of teacher and student over each row's candidates.

    Args:
        scores: The student's scores, float (batch, candidates).
        teacher: The teacher's scores, of the same shape.
        temperature: Divides the scores of both models.

    Returns:
        KL(teacher || student) in nats, times the squared temperature, float (batch,).

    Source: Hinton, Vinyals & Dean 2015, section 2 (arXiv:1503.02531).
    """
    student = (scores / temperature).log_softmax(dim=1)
    target = (teacher / temperature).log_softmax(dim=1)
    return (target.exp() * (target - student)).sum(dim=1) * temperature**2


def embedding_mse(embeddings: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference between the student's embeddings and the teacher's.

    Args:
        embeddings: The student's embeddings of the texts of each row, float (batch, texts, dim).
        teacher: The target for all texts of each row: the teacher's embedding of the first text,
            of which the other texts (if any) are translations or paraphrases, float (batch, dim).

    Returns:
        Float (batch,).

    Source: Reimers & Gurevych 2020, Making Monolingual Sentence Embeddings Multilingual, section 2
    (arXiv:2004.09813).
    """
    return (embeddings - teacher.unsqueeze(1)).square().mean(dim=(1, 2))
