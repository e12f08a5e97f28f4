"""Self-attention over packed tokens: one function, two implementations.

`packed_attention` is the fast one: a variable-length kernel on CUDA in half precision, matrix
products on a CPU in bfloat16 and where it drops, fused attention elsewhere; off CUDA over runs of
equally long texts.
`explicit_attention` writes the scores out, for relative positions, which add to them, and for
whoever wants to see the probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.encoder.attention.cpu_dropout import dropped_attention
from sbert_search.encoder.attention.relative import RelativeHeads
from sbert_search.encoder.attention.selected_tokens import AskedRows, asked_attention
from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.dropout import dropout as drop
from sbert_search.encoder.linear import Linear, linear
from sbert_search.encoder.packed import PackedTokens, Run

_VECTOR = 32  # bfloat16 numbers in a vector of 512 bits
_SCORES = 2**20  # scores computed at a time: 2 MiB


class Heads(NamedTuple):
    """Queries, keys and values of every token, each (total, heads, head_dim)."""

    query: Tensor
    key: Tensor
    value: Tensor

    def by_run(self, runs: Sequence[Run]) -> Iterator[list[Tensor]]:
        """The three for each run, each (texts, heads, length, head_dim), without a copy.

        All are split off at once: of a slice, the gradient would be as large as the whole batch.
        """
        sizes = [run.texts * run.length for run in runs]
        for run, parts in zip(
            runs, zip(*(torch.split(p, sizes) for p in self), strict=True), strict=True
        ):
            shape = (run.texts, run.length, *self.query.shape[1:])
            yield [part.view(shape).transpose(1, 2) for part in parts]


def packed_attention(
    heads: Heads, tokens: PackedTokens, *, scale: float, dropout: float, causal: bool
) -> Tensor:
    """Attend within each text; probabilities are never stored.

    Args:
        heads: Queries, keys and values.
        tokens: The batch they belong to, texts of equal length side by side.
        scale: Factor on the scores.
        dropout: Share of the probabilities set to 0.
        causal: Whether a token sees only itself and what is left of it.

    Returns:
        Float (total, hidden).
    """
    if has_varlen_kernel(heads.query):
        return _varlen_attention(heads, tokens, scale=scale, dropout=dropout, causal=causal)
    if dropout and _can_drop(heads.query, causal=causal):
        return dropped_attention(*heads, tokens, scale=scale, share=dropout)
    as_products = _are_products_faster(heads.query) and not (causal or dropout)
    outputs = []
    for query, key, value in heads.by_run(tokens.runs):
        if as_products:
            mixed = _product_attention(query, key, value, scale)
        else:
            mixed = F.scaled_dot_product_attention(
                query, key, value, dropout_p=dropout, is_causal=causal, scale=scale
            )
        outputs.append(_join_heads(mixed))
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def _can_drop(query: Tensor, *, causal: bool) -> bool:
    """Whether dropout of heads like these needs no scores written out for autograd."""
    return has_varlen_kernel(query) or (query.device.type == "cpu" and not causal)


def _are_products_faster(query: Tensor) -> bool:
    is_training = torch.is_grad_enabled()  # which must not keep the scores
    return query.device.type == "cpu" and query.dtype == torch.bfloat16 and not is_training


def _product_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attend by plain products, over as many scores at a time as a core's cache holds.

    torch's fused kernel multiplies small blocks, at a quarter of the rate of one large product. Its
    softmax is slow over rows that do not fill its vectors, so keys are padded, and left out again.

    Args:
        query: Bfloat16 (texts, heads, length, head_dim), as are key and value.
        key: Of the same texts.
        value: Of the same texts.
        scale: Factor on the scores.
    """
    shape, length = query.shape, query.shape[2]
    padding = -length % _VECTOR
    bias = F.pad(query.new_zeros(length), (0, padding), value=float("-inf"))
    query = query.flatten(0, 1)  # (texts x heads, length, head_dim)
    key, value = (F.pad(part, (0, 0, 0, padding)).flatten(0, 1) for part in (key, value))
    mixed = torch.empty_like(query)
    step = max(1, _SCORES // (length * (length + padding)))
    parts = zip(*(torch.split(part, step) for part in (query, key, value, mixed)), strict=True)
    for some_query, some_key, some_value, some_mixed in parts:
        scores = torch.baddbmm(bias, some_query, some_key.mT, beta=bool(padding), alpha=scale)
        torch.bmm(scores.softmax(dim=-1), some_value, out=some_mixed)
    return mixed.view(shape)


def explicit_attention(
    heads: Heads,
    tokens: PackedTokens,
    *,
    scale: float,
    dropout: float,
    causal: bool,
    content: bool = True,
    positions: RelativeHeads | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Attend within each text and return the probabilities too.

    Args:
        heads: As for `packed_attention`.
        tokens: As for `packed_attention`.
        scale: As for `packed_attention`.
        dropout: As for `packed_attention`.
        causal: As for `packed_attention`.
        content: Whether scores have the content-to-content term.
        positions: Projected relative positions, whose terms are added to the scores.

    Returns:
        The mixed values, float (total, hidden), and for each text its probabilities before dropout,
        float (heads, length, length), row = query.
    """
    outputs: list[Tensor] = []
    probabilities: list[Tensor] = []
    for run, (query, key, value) in zip(tokens.runs, heads.by_run(tokens.runs), strict=True):
        query = query * scale
        scores = query @ key.transpose(-1, -2) if content else query.new_zeros(())
        if positions is not None:
            scores = scores + positions.scores(query, key * scale)
        if causal:
            future = torch.ones(run.length, run.length, dtype=torch.bool, device=query.device)
            scores = scores.masked_fill(future.triu(1), float("-inf"))
        probs = scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
        outputs.append(_join_heads(drop(probs, dropout, training=True) @ value))
        probabilities.extend(probs)
    return torch.cat(outputs), probabilities


def _join_heads(mixed: Tensor) -> Tensor:
    """(texts, heads, length, head_dim) to (texts x length, hidden)."""
    return mixed.transpose(1, 2).reshape(mixed.shape[0] * mixed.shape[2], -1)


def has_varlen_kernel(query: Tensor) -> bool:
    """Whether heads like these, (..., head_dim), attend by the variable-length kernel."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    return query.is_cuda and half and query.shape[-1] % 8 == 0 and query.shape[-1] <= 256


def _varlen_attention(
    heads: Heads, tokens: PackedTokens, *, scale: float, dropout: float, causal: bool
) -> Tensor:
    # torch.nn.attention.varlen wraps the same kernel, without dropout and only from torch 2.10.
    longest = max(tokens.lengths)
    mixed = torch.ops.aten._flash_attention_forward(
        *heads, tokens.starts, tokens.starts, longest, longest, dropout, causal, False, scale=scale
    )[0]
    return cast(Tensor, mixed.flatten(1))


class Attention(nn.Module):
    """Projections, multi-head attention and the output projection of one block."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.qkv = Linear(hidden, 3 * hidden, bias=config.key_bias)
        if not config.key_bias:
            self.query_bias = nn.Parameter(torch.zeros(hidden))
            self.value_bias = nn.Parameter(torch.zeros(hidden))
        if "c2p" in config.attention_terms:
            self.position_key = nn.Linear(hidden, hidden, bias=False)
        if "p2c" in config.attention_terms:
            self.position_query = nn.Linear(hidden, hidden)
        self.output = Linear(hidden, hidden)

    def forward(
        self,
        states: Tensor,
        tokens: PackedTokens,
        *,
        queries: Tensor | None = None,
        distances: Tensor | None = None,
        want_probs: bool = False,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Mix the states of each text.

        Args:
            states: Input, float (total, hidden).
            tokens: The batch, texts of equal length side by side.
            queries: States to make the queries from, (total, hidden), when not `states`: DeBERTa's
                mask decoder asks with absolute positions.
            distances: Embeddings of relative positions, (2 x reach, hidden).
            want_probs: Whether to return the probabilities.

        Returns:
            Float (total, hidden), and for each text its probabilities (heads, length, length) when
            they are wanted.
        """
        config = self.config
        scale = (config.head_dim * len(config.attention_terms)) ** -0.5
        dropout = config.attention_dropout if self.training else 0.0
        heads = self.project(states, queries)
        positions = None if distances is None else self._project_distances(distances)
        content = "c2c" in config.attention_terms
        probabilities: Sequence[Tensor] = ()
        unfused = dropout > 0 and not _can_drop(heads.query, causal=config.causal)
        if want_probs or positions is not None or not content or unfused:
            mixed, probabilities = explicit_attention(
                heads,
                tokens,
                scale=scale,
                dropout=dropout,
                causal=config.causal,
                content=content,
                positions=positions,
            )
        else:
            mixed = packed_attention(
                heads, tokens, scale=scale, dropout=dropout, causal=config.causal
            )
        return self.output(mixed), probabilities

    def ask(self, states: Tensor, tokens: PackedTokens, asked: AskedRows) -> Tensor:
        """Mix the states of each text for some rows alone: as `forward` with content only.

        Returns:
            Float (n, hidden), of the rows asked for.
        """
        config, weight, bias = self.config, self.qkv.weight, self.qkv.bias
        hidden, shape = config.hidden_size, (-1, config.heads, config.head_dim)
        query = linear(states[asked.rows], weight[:hidden], bias[:hidden]).view(shape)
        both = linear(states, weight[hidden:], bias[hidden:])
        key, value = both.view(-1, 2, *shape[1:]).unbind(1)
        mixed = asked_attention(
            query,
            key,
            value,
            tokens,
            asked,
            scale=config.head_dim**-0.5,
            share=config.attention_dropout if self.training else 0.0,
            varlen=has_varlen_kernel(query),
        )
        out: Tensor = self.output(mixed)
        return out

    def project(self, states: Tensor, queries: Tensor | None = None) -> Heads:
        """Split projected states (..., hidden) into heads; queries may have states of their own."""
        config = self.config
        shape = (-1, 3, config.heads, config.head_dim)
        query, key, value = self.qkv(states).view(shape).unbind(1)
        if queries is not None:
            query = self.qkv(queries).view(shape)[:, 0]
        if not config.key_bias:
            query = query + self.query_bias.view(config.heads, -1)
            value = value + self.value_bias.view(config.heads, -1)
        return Heads(query, key, value)

    def _project_distances(self, distances: Tensor) -> RelativeHeads:
        config = self.config
        distances = drop(distances, config.hidden_dropout, self.training)
        shape = (-1, config.heads, config.head_dim)
        return RelativeHeads(
            self.position_key(distances).view(shape) if "c2p" in config.attention_terms else None,
            self.position_query(distances).view(shape) if "p2c" in config.attention_terms else None,
        )
