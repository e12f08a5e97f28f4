"""Losses that are sums over tokens, given as (sum, count).

The caller divides by the count over the whole batch, so a batch in parts, or on several ranks, has
the loss of the batch in one piece however the terms fall.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cosine_similarity,
    cross_entropy,
    kl_div,
)

IGNORED = -100
"""The label of a position that is not scored."""


def token_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Score the true id of every labelled position; there may be none.

    Args:
        logits: Of every class, float (..., classes).
        labels: The true class, int64 (...); `IGNORED` where nothing is scored.

    Returns:
        Negative log-likelihood in nats summed over the scored positions, and how many they are.
    """
    flat, scores = labels.flatten(), logits.flatten(0, -2).float()
    total = cross_entropy(scores, flat, ignore_index=IGNORED, reduction="sum")
    return total, (flat != IGNORED).sum()


def replaced_token_loss(logits: Tensor, replaced: Tensor) -> tuple[Tensor, int]:
    """Score for every token how sure a discriminator is of whether it was replaced.

    Args:
        logits: Log-odds of a replaced token, float (n,).
        replaced: Whether it was, bool (n,).

    Returns:
        Binary cross-entropy in nats summed over the tokens, and how many they are.

    Source: Clark et al. 2020, ELECTRA, section 2 (arXiv:2003.10555).
    """
    loss = binary_cross_entropy_with_logits(logits.float(), replaced.float(), reduction="sum")
    return loss, len(replaced)


def soft_target_loss(student: Tensor, teacher: Tensor, temperature: float) -> tuple[Tensor, int]:
    """Compare the distribution of a student over a vocabulary with its teacher's.

    Args:
        student: Logits, float (n, vocab).
        teacher: Logits, float (n, vocab); no gradient flows into them.
        temperature: Divides both logits; the loss is scaled back by its square.

    Returns:
        Kullback-Leibler divergence in nats summed over the positions, and how many they are.

    Sources: Hinton et al. 2015 (arXiv:1503.02531) section 2; Sanh et al. 2019, DistilBERT, section
    3 (arXiv:1910.01108).
    """
    ours = (student.float() / temperature).log_softmax(-1)
    theirs = (teacher.detach().float() / temperature).log_softmax(-1)
    return kl_div(ours, theirs, reduction="sum", log_target=True) * temperature**2, len(student)


def cosine_loss(student: Tensor, teacher: Tensor) -> tuple[Tensor, int]:
    """Turn the hidden states of a student towards its teacher's.

    Args:
        student: Float (n, hidden).
        teacher: Float (n, hidden); no gradient flows into them.

    Returns:
        1 - cosine summed over the tokens, and how many they are.

    Source: Sanh et al. 2019, DistilBERT, section 3 (arXiv:1910.01108).
    """
    cosines = cosine_similarity(student.float(), teacher.detach().float(), dim=-1)
    return (1 - cosines).sum(), len(student)
