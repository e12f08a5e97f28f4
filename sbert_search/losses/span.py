"""The loss of a model that marks the start and the end of the answer to a question in a text."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy


def span_cross_entropy(
    start_logits: Tensor, end_logits: Tensor, starts: Tensor, ends: Tensor
) -> Tensor:
    """Mean of the cross-entropies of the first and the last token of the answer.

    An input consists of the tokens of a question and of the text that may contain the answer.

    Args:
        start_logits: Logit of each token of each input as the first token of the answer, float
            (n, longest), -inf after the end of an input.
        end_logits: Logit of each token as the last token of the answer, in the same shape.
        starts: Position of the first token of the answer in the input, int64 (n,). If there is no
            answer, it is 0, the position of the first token of the input.
        ends: Position of the last token of the answer, int64 (n,); also 0 if there is no answer.

    Returns:
        The loss of each input, float32 (n,), in nats.

    Source: Devlin et al. 2019, BERT, sections 4.2 and 4.3 (arXiv:1810.04805).
    """
    first = cross_entropy(start_logits.float(), starts, reduction="none")
    last = cross_entropy(end_logits.float(), ends, reduction="none")
    return (first + last) / 2
