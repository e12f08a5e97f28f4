"""One post-norm Transformer block: attention, then a feed-forward layer, each added and normed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.encoder.attention.selected_tokens import AskedRows
from sbert_search.encoder.attention.self_attention import Attention
from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.dropout import dropout
from sbert_search.encoder.linear import Linear
from sbert_search.encoder.packed import PackedTokens

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class Block(nn.Module):
    """Attention and feed-forward layer with residuals, normed after each sum.

    Source: Vaswani et al. 2017, section 3.1 (arXiv:1706.03762).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.layer_norm_eps
        self.dropout = config.hidden_dropout
        self.activation = ACTIVATIONS[config.activation]
        self.attention = Attention(config)
        self.attention_norm = nn.LayerNorm(hidden, eps=eps)
        self.up = Linear(hidden, config.intermediate_size)
        self.down = Linear(config.intermediate_size, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=eps)

    def forward(
        self,
        states: Tensor,
        tokens: PackedTokens,
        *,
        queries: Tensor | None = None,
        distances: Tensor | None = None,
        want_probs: bool = False,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Transform the states of each text; arguments and result are those of `Attention`."""
        mixed, probs = self.attention(
            states, tokens, queries=queries, distances=distances, want_probs=want_probs
        )
        return self._finish(mixed, states if queries is None else queries), probs

    def ask(self, states: Tensor, tokens: PackedTokens, asked: AskedRows) -> Tensor:
        """Transform the states of some rows alone; arguments are those of `Attention.ask`."""
        return self._finish(self.attention.ask(states, tokens, asked), states[asked.rows])

    def _finish(self, mixed: Tensor, states: Tensor) -> Tensor:
        """Add what attention gave to the states that asked, and feed the sum forward."""
        states = self.attention_norm(self._sum(mixed, states))
        fed = self.down(self.activation(self.up(states)))
        out: Tensor = self.output_norm(self._sum(fed, states))
        return out

    def _sum(self, mixed: Tensor, states: Tensor) -> Tensor:
        """Drop and add, in the type of the states: of two types a CPU adds one by one."""
        return dropout(mixed, self.dropout, self.training).to(states.dtype) + states
