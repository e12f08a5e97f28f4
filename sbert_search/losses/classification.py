"""Losses of classifiers of texts, or of tokens; each returns one value for each text or token.

The loss of a batch is the mean of these values. Each value depends on one text or token only. If a
batch is split into parts, or over the processes of distributed training, the sums of the values of
the parts therefore add up to the sum of the values of the batch.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss


def class_cross_entropy(logits: Tensor, classes: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of the true class of each text, times the weight of that class.

    Args:
        logits: Float (n, labels).
        classes: The true class of each text, int64 (n,).
        weights: Weight of each class, float (labels,); None: all weights are 1. To average over a
            batch, divide by the number of its texts. The mean that torch computes is divided by the
            sum of the weights of the texts, so the means of two halves of a batch would not average
            to the mean of the batch. The two divisors are equal in expectation if the mean weight
            of the training texts is 1.

    Returns:
        Float (n,), in nats.
    """
    losses = cross_entropy(logits.float(), classes, reduction="none")
    return losses if weights is None else losses * weights[classes]


def several_classes_cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Binary cross-entropy of each class of each text, averaged over the classes.

    Args:
        logits: Float (n, labels).
        targets: 1 for the classes that a text has, otherwise 0, float (n, labels).
        weights: Weight of each class, float (labels,). In the cross-entropy of a class, texts that
            have the class get its weight, and the other texts get weight 1. None: all weights are
            1.

    Returns:
        Float (n,), in nats.
    """
    losses = binary_cross_entropy_with_logits(
        logits.float(), targets, pos_weight=weights, reduction="none"
    )
    return losses.mean(dim=1)


def squared_error(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Squared difference between the number predicted for each text and the true one.

    Args:
        logits: Float (n, 1).
        targets: Float (n,).
        weights: Not used, since numbers have no classes; all losses of this module have the same
            parameters.

    Returns:
        Float (n,).
    """
    return mse_loss(logits.float().squeeze(-1), targets, reduction="none")
