"""One post-norm Transformer block: attention and a feed-forward layer, each with a residual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.encoder.attention.selected_tokens import SelectedTokens
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
    """Attention and feed-forward layer with residual connections; each sum is layer-normalised.

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
        output_probs: bool = False,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Transform the states of each text; arguments and result are those of `Attention`."""
        context, probs = self.attention(
            states, tokens, queries=queries, distances=distances, output_probs=output_probs
        )
        return self.finish(context, states if queries is None else queries), probs

    def forward_selected(
        self, states: Tensor, tokens: PackedTokens, selected: SelectedTokens
    ) -> Tensor:
        """Compute the output of `forward` for selected tokens only; float (n, hidden)."""
        context = self.attention.forward_selected(states, tokens, selected)
        return self.finish(context, states[selected.rows])

    def finish(self, context: Tensor, states: Tensor) -> Tensor:
        """Add the output of attention to the query states, then apply the feed-forward layer.

        Args:
            context: Output of attention.
            states: Query states, from which the queries were computed.
        """
        states = self.attention_norm(self._add(context, states))
        output = self.down(self.activation(self.up(states)))
        out: Tensor = self.output_norm(self._add(output, states))
        return out

    def _add(self, output: Tensor, states: Tensor) -> Tensor:
        """Apply dropout to the output of a layer and add the residual."""
        # On a CPU, torch adds tensors of two types without vector instructions. The output is
        # therefore converted first.
        return dropout(output, self.dropout, self.training).to(states.dtype) + states
