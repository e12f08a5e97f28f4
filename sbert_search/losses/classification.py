"""Losses of classifiers of texts; one value for each text.

The loss of a batch is the mean of these values. A value depends on one text only. So if a batch is
split into parts or over ranks, the sums of the parts add up to the sum of the batch.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss


def class_cross_entropy(logits: Tensor, classes: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of the true class of each text, times the weight of that class.

    Args:
        logits: Float (n, labels).
        classes: The true class of each text, int64 (n,).
        weights: Weight of each class, float (labels,); None: 1. The loss of a batch is divided by
            its number of texts. torch divides by the sum of their weights, and a batch could then
            not be split. If the mean weight of the training texts is 1, the two agree in
            expectation.

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
        weights: For each class, the weight of the texts that have this class in the loss of this
            class, float (labels,). Texts without the class have weight 1. None: all weights are 1.

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
        weights: Not used; numbers have no classes.

    Returns:
        Float (n,).
    """
    return mse_loss(logits.float().squeeze(-1), targets, reduction="none")
