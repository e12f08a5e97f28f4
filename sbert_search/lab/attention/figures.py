"""Figures of attention heads: entropy, distance, and shares on certain tokens.

Source: Clark et al. 2019, What Does BERT Look At?, section 3 (arXiv:1906.04341).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sbert_search.text.tokens.tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadFigures:
    """Figures of one head: means over the tokens of texts.

    Special tokens around a text, such as [CLS], are left out; unknown words ([UNK]) are not.

    Attributes:
        layer: Number of the layer, from 1.
        head: Number of the head in its layer, from 1.
        entropy: Entropy of the attention distribution of a token, in nats.
        distance: Mean distance, in positions, between a token and the tokens that it attends to,
            weighted by attention. Neighbours have the distance 1.
        first: Share of attention on the special token before the text, such as [CLS].
        separator: Share of attention on special tokens after a text, such as [SEP].
        diagonal: Share of attention of a token on itself.
        previous: Share of attention on the token to the left.
        next: Share of attention on the token to the right.
    """

    layer: int
    head: int
    entropy: float
    distance: float
    first: float
    separator: float
    diagonal: float
    previous: float
    next: float


NAMES = ("entropy", "distance", "first", "separator", "diagonal", "previous", "next")


class Roles(NamedTuple):
    """The roles of the tokens of a text or pair.

    Attributes:
        first: For each token, whether it is a special token before the text.
        separator: For each token, whether it is another special token around a text.
    """

    first: tuple[bool, ...]
    separator: tuple[bool, ...]

    @classmethod
    def of(cls, ids: Sequence[int], tokenizer: TextTokenizer, framing: set[int]) -> Roles:
        """Find the roles of token ids; ``framing`` are the ids of special tokens around texts."""
        before = len(tokenizer.single.before)
        return cls(
            tuple(place < before for place in range(len(ids))),
            tuple(place >= before and token in framing for place, token in enumerate(ids)),
        )

    @property
    def special(self) -> tuple[bool, ...]:
        """For each token, whether it is a special token around a text."""
        return tuple(a or b for a, b in zip(self.first, self.separator, strict=True))


def sum_text(probabilities: Tensor, roles: Roles) -> Tensor:
    """Sum the figures over the tokens of a text that are not special.

    Args:
        probabilities: Attention of one layer, float (heads, length, length); each row adds up to 1.
        roles: The roles of the tokens.

    Returns:
        Float64 (heads, 7), in the order of `NAMES`.
    """
    device, length = probabilities.device, probabilities.shape[-1]
    exact = probabilities.double()
    places = torch.arange(length, device=device)
    far = (places[:, None] - places).abs().double()
    kinds = [torch.tensor(kind, dtype=torch.float64, device=device) for kind in roles]
    by_token = torch.stack(
        [
            -torch.xlogy(exact, exact).sum(-1),
            (exact * far).sum(-1),
            exact @ kinds[0],
            exact @ kinds[1],
            exact.diagonal(dim1=-2, dim2=-1),
            torch.nn.functional.pad(exact.diagonal(-1, -2, -1), (1, 0)),
            torch.nn.functional.pad(exact.diagonal(1, -2, -1), (0, 1)),
        ],
        dim=-1,
    )  # (heads, length, 7)
    words = ~torch.tensor(roles.special, device=device)
    return by_token[:, words].sum(1)


def head_figures(sums: Tensor, tokens: int) -> tuple[HeadFigures, ...]:
    """Divide sums, float (layers, heads, 7), by the number of tokens to get the figures."""
    means = (sums / max(tokens, 1)).tolist()
    return tuple(
        HeadFigures(layer=layer, head=head, **dict(zip(NAMES, values, strict=True)))
        for layer, heads in enumerate(means, 1)
        for head, values in enumerate(heads, 1)
    )
