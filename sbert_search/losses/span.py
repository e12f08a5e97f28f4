"""The loss of a model that marks the start and the end of an answer; one value for each text."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy


def span_cross_entropy(
    start_logits: Tensor, end_logits: Tensor, starts: Tensor, ends: Tensor
) -> Tensor:
    """Mean of the cross-entropies of the first and the last token of the answer.

    Args:
        start_logits: Logit of each token as the first of the answer, float (n, longest), -inf after
            the end of a text.
        end_logits: The same for the last token.
        starts: Position of the first token of the answer, int64 (n,); 0, the first token of the
            text, if there is no answer.
        ends: Position of its last token, int64 (n,).

    Returns:
        Float32 (n,), in nats.

    Source: Devlin et al. 2019, BERT, sections 4.2 and 4.3 (arXiv:1810.04805).
    """
    first = cross_entropy(start_logits.float(), starts, reduction="none")
    last = cross_entropy(end_logits.float(), ends, reduction="none")
    return (first + last) / 2
