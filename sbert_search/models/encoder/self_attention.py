"""Self-attention over packed tokens, also with relative positions.

`packed_attention` is the fast function. It computes attention in one of these ways:

- On CUDA in half precision, a kernel computes all texts at once, whatever their lengths.
- For training with dropout on a CPU, if attention is not causal, `dropout_attention` computes one
  window after the other. A window is a group of adjacent texts of similar length.
- In all other cases, one run is computed after the other. A run is a group of adjacent texts of
  equal length. For inference in bfloat16 on a CPU, if attention is not causal, runs of at least 192
  tokens are computed by matrix products. Torch's fused attention computes all other runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.packed import PackedTokens, Run
from sbert_search.models.encoder.selected_tokens import (
    SelectedTokens,
    selected_attention,
)
from sbert_search.models.encoder.training_layers import Linear, dropout_attention, linear
from sbert_search.models.encoder.training_layers import dropout as drop


class Rotation(NamedTuple):
    """Rotates queries and keys by angles that grow with the position of their token.

    Cosines and sines are float32 (positions, 1, head_dim / 2).

    Source: Su et al. 2021, RoFormer, section 3.2 (arXiv:2104.09864). As in GPT-NeoX and in
    ModernBERT, an angle turns two numbers that are half a head apart.
    """

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, positions: Tensor, base: float, head_dim: int) -> Rotation:
        """Make the rotations of positions, int64 (positions,)."""
        exponents = torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
        angles = positions[:, None, None].float() * (1.0 / base**exponents)
        return cls(angles.cos(), angles.sin())

    def apply(self, heads: Tensor) -> Tensor:
        """Rotate queries or keys (..., positions, heads, head_dim)."""
        first, second = heads.float().chunk(2, dim=-1)
        rotated = first * self.cos - second * self.sin, second * self.cos + first * self.sin
        return torch.cat(rotated, dim=-1).to(heads.dtype)


class RelativePositions(NamedTuple):
    """What attention reads of the relative positions in a batch; None: the model has no such part.

    ``distances`` are embeddings (2 x reach, hidden) of the distances from -reach to reach - 1, as
    in `RelativeHeads`. ``biases``, (heads, longest, longest), are added to the scores.
    ``rotations`` are those of each base, in float32.
    """

    distances: Tensor | None = None
    biases: Tensor | None = None
    rotations: Mapping[float, Rotation] = MappingProxyType({})

    def to(self, dtype: torch.dtype) -> RelativePositions:
        """Convert the parts that have the type of the weights, without gradients."""
        first, second = (
            part if part is None else part.detach().to(dtype)
            for part in (self.distances, self.biases)
        )
        return RelativePositions(first, second, self.rotations)


NO_POSITIONS = RelativePositions()
_MOST_DISTANCE = 128  # all distances from here on are in one bucket


def bucket_biases(table: Tensor, positions: Tensor) -> Tensor:
    """Return the biases of scores between ``positions`` 0 to n - 1, (heads, n, n).

    ``table``, (buckets, heads), has half of its rows for keys before the query and half for keys
    after it. The first half of these are for one distance each, the others for ranges whose ends
    grow as powers.

    Source: Raffel et al. 2020, T5, section 2.1 (arXiv:1910.10683); Song et al. 2020, MPNet,
    section 2.4 (arXiv:2004.09297).
    """
    half = len(table) // 2
    exact = half // 2
    after = positions[None, :] - positions[:, None]  # key - query
    distance = after.abs()
    power = torch.log(distance.float() / exact) / math.log(_MOST_DISTANCE / exact)
    ranged = (exact + (power * (half - exact)).long()).clamp(max=half - 1)
    buckets = torch.where(distance < exact, distance, ranged) + half * (after > 0)
    return F.embedding(buckets, table).permute(2, 0, 1).contiguous()


class RelativeHeads(NamedTuple):
    """Embeddings of relative positions, projected to keys and queries.

    Each field is a tensor (2 x reach, heads, head_dim), or None if its term is not used. Row
    ``reach + d`` belongs to the distance ``d`` = query position - key position, for
    -reach <= d < reach. Distances above this range use the last row, distances below it the first.
    """

    key: Tensor | None
    query: Tensor | None

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Sum of content-to-position and position-to-content scores, (texts, heads, len, len).

        Query and key are scaled, (texts, heads, length, head_dim).

        Source: He et al. 2021, DeBERTa, section 3.1, equation 4 (arXiv:2006.03654). There, the
        position-to-content term uses the distance j - i. The published code and models use i - j,
        and so does this method.
        """
        length = query.shape[2]
        total = query.new_zeros(())
        if self.key is not None:  # row i: query i times the key of distance i - j, j ascending
            descending = _rows_by_distance(self.key, length).flip(0)
            total = total + _shift(query @ descending.permute(1, 2, 0))
        if self.query is not None:  # row j: key j times the query of distance i - j, i ascending
            ascending = _rows_by_distance(self.query, length)
            total = total + _shift(key @ ascending.permute(1, 2, 0)).transpose(-1, -2)
        return total


def _rows_by_distance(table: Tensor, length: int) -> Tensor:
    """Return the rows for the distances 1 - length to length - 1 between two tokens of a text."""
    reach = table.shape[0] // 2
    distances = torch.arange(1 - length, length, device=table.device)
    return table[(distances + reach).clamp(0, 2 * reach - 1)]


def _shift(scores: Tensor) -> Tensor:
    """Take column ``length - 1 - i + j`` of row i as entry (i, j), by a view instead of a gather.

    The input is (..., length, 2 x length - 1), the result (..., length, length). Each row is padded
    by one column, and the memory is viewed with rows one element shorter. Row i of the view
    therefore begins at column ``length - 1 - i`` of input row i (Dai et al. 2019, Transformer-XL,
    appendix B, arXiv:1901.02860). A gather is avoided because its gradient is a scatter.
    """
    length = scores.shape[-2]
    width = 2 * length - 1
    flat = F.pad(scores, (0, 1)).flatten(-2)[..., length - 1 : length - 1 + length * width]
    return flat.view(*scores.shape[:-1], width)[..., :length]


_VECTOR = 32  # bfloat16 elements in a vector register of 512 bits
_SCORES = 2**20  # scores computed at a time: 2 MiB in bfloat16
# Fewest tokens of a run that is computed by matrix products. On fewer tokens, calling several
# operators costs more than it saves.
_FEWEST_TOKENS = 192


class Heads(NamedTuple):
    """Queries, keys and values of every token, each (total, heads, head_dim)."""

    query: Tensor
    key: Tensor
    value: Tensor

    def by_run(self, tokens: PackedTokens) -> Iterator[tuple[Run, Tensor, Tensor, Tensor]]:
        """Yield each run and its queries, keys and values, (texts, heads, length, head_dim)."""
        queries = torch.split(self.query, tokens.run_sizes)
        keys = torch.split(self.key, tokens.run_sizes)
        values = torch.split(self.value, tokens.run_sizes)
        for run, query, key, value in zip(tokens.runs, queries, keys, values, strict=True):
            shape = (run.texts, run.length, *query.shape[1:])
            query, key, value = query.view(shape), key.view(shape), value.view(shape)
            yield run, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def has_varlen_kernel(query: Tensor) -> bool:
    """Whether `varlen_attention` supports a query's device, type and shape (..., head_dim)."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    fits = query.is_cuda and half and query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    return fits and _capability(query.device) >= (8, 0)  # Ampere


_capability = cache(torch.cuda.get_device_capability)


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_starts: Tensor,
    key_starts: Tensor,
    longest: int,
    scale: float,
    p: float,
    causal: bool = False,
    reach: int | None = None,
) -> Tensor:
    """Compute attention within each text of a packed batch; float (n_queries, hidden).

    The query is float (n_queries, heads, head_dim), key and value are float (total, heads,
    head_dim). ``query_starts`` and ``key_starts``, int32 (batch + 1,), have the index of the first
    query or key of each text, then their number. ``longest`` is an upper bound of the queries, and
    of the keys, in one text. A token attends to tokens at most ``reach`` away; None: to all.

    Source: Dao 2023, FlashAttention-2 (arXiv:2307.08691).
    """
    # The private operator takes dropout; its public wrapper, torch.nn.attention.varlen, does not.
    context = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        query_starts,
        key_starts,
        longest,
        longest,
        p,
        causal,
        False,  # do not return the dropout mask
        scale=scale,
        window_size_left=reach,
        window_size_right=reach,
    )[0]
    return cast(Tensor, context.flatten(1))


def packed_attention(
    heads: Heads,
    tokens: PackedTokens,
    *,
    scale: float,
    dropout: float,
    causal: bool,
    biases: Tensor | None = None,
    reach: int | None = None,
) -> Tensor:
    """Compute attention within each text, float (total, hidden), without its probabilities.

    ``biases`` are those of `RelativePositions`; with biases there are no dropout and no gradients.
    A token attends to tokens at most ``reach`` away; None: to the whole text. With a reach, there
    is dropout only if `has_varlen_kernel`.
    """
    if has_varlen_kernel(heads.query) and biases is None:
        return varlen_attention(
            *heads,
            query_starts=tokens.starts,
            key_starts=tokens.starts,
            longest=max(tokens.lengths),
            scale=scale,
            p=dropout,
            causal=causal,
            reach=reach,
        )
    if dropout and _supports_dropout(heads.query, causal=causal):
        return dropout_attention(*heads, tokens, scale=scale, p=dropout)
    bf16_on_cpu = heads.query.device.type == "cpu" and heads.query.dtype == torch.bfloat16
    # With gradients, autograd would keep all scores of the products in memory.
    as_products = bf16_on_cpu and biases is None
    as_products &= not (causal or dropout or torch.is_grad_enabled())
    outputs = []
    for run, query, key, value in heads.by_run(tokens):
        if reach is not None and run.length > reach + 1:
            context = local_attention(query, key, value, scale=scale, reach=reach)
        elif as_products and run.texts * run.length >= _FEWEST_TOKENS:
            context = _product_attention(query, key, value, scale)
        else:
            mask = None if biases is None else biases[None, :, : run.length, : run.length]
            context = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale
            )
        outputs.append(context.transpose(1, 2).flatten(2).flatten(0, 1))
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


_LOCAL_BLOCK = 32  # queries of a text whose local attention is computed at a time


def local_attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, reach: int
) -> Tensor:
    """Compute attention to tokens at most ``reach`` away, without the scores of most others.

    Arguments and result are float (texts, heads, length, head_dim). Blocks of queries attend to
    the keys from ``reach`` before the first to ``reach`` after the last query; a mask excludes
    keys that are too far from the single query.
    """
    length, outputs = query.shape[2], []
    offsets = torch.arange(_LOCAL_BLOCK + 2 * reach, device=query.device) - reach
    distances = offsets - torch.arange(_LOCAL_BLOCK, device=query.device)[:, None]
    mask = query.new_zeros(distances.shape).masked_fill(distances.abs() > reach, float("-inf"))
    for start in range(0, length, _LOCAL_BLOCK):
        end = min(start + _LOCAL_BLOCK, length)
        low, high = max(0, start - reach), min(length, end + reach)
        first = low - (start - reach)
        outputs.append(
            F.scaled_dot_product_attention(
                query[:, :, start:end],
                key[:, :, low:high],
                value[:, :, low:high],
                attn_mask=mask[: end - start, first : first + high - low],
                scale=scale,
            )
        )
    return torch.cat(outputs, dim=2)


def _supports_dropout(query: Tensor, *, causal: bool) -> bool:
    """Whether the CUDA kernel or `dropout_attention` computes dropout for these queries.

    ``causal`` is whether a token attends to a part of its text only.
    """
    return has_varlen_kernel(query) or (query.device.type == "cpu" and not causal)


def _product_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Compute attention by two plain matrix products of bfloat16 (texts, heads, length, head_dim).

    torch's fused kernel multiplies small blocks, at a quarter of the speed of large products. The
    products here have as many scores as fit into the cache of a core. torch's softmax is slow over
    rows that do not fill its vector registers. Keys are therefore padded to a multiple of 32, and
    the scores of the padding are set to -inf. docs/decisions.md: "bf16 attention on a CPU as plain
    products".
    """
    shape, length = query.shape, query.shape[2]
    padding = -length % _VECTOR
    bias = F.pad(query.new_zeros(length), (0, padding), value=float("-inf"))
    query = query.flatten(0, 1)  # (texts x heads, length, head_dim)
    key, value = (F.pad(part, (0, 0, 0, padding)).flatten(0, 1) for part in (key, value))
    context = torch.empty_like(query)
    step = max(1, _SCORES // (length * (length + padding)))
    parts = zip(*(torch.split(part, step) for part in (query, key, value, context)), strict=True)
    for some_query, some_key, some_value, some_context in parts:
        scores = torch.baddbmm(bias, some_query, some_key.mT, beta=bool(padding), alpha=scale)
        torch.bmm(scores.softmax(dim=-1), some_value, out=some_context)
    return context.view(shape)


def explicit_attention(
    heads: Heads,
    tokens: PackedTokens,
    *,
    scale: float,
    dropout: float,
    causal: bool,
    content: bool = True,
    positions: RelativeHeads | None = None,
    biases: Tensor | None = None,
    reach: int | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Compute attention within each text, and return its probabilities too.

    ``content`` is whether the scores include the content-to-content term; the terms of
    ``positions``, and the ``biases`` of `RelativePositions`, are added. A token attends to tokens
    at most ``reach`` away; None: to all. The result is float (total, hidden), and for each text
    the probabilities before dropout, float (heads, queries, keys).
    """
    outputs: list[Tensor] = []
    probabilities: list[Tensor] = []
    for run, query, key, value in heads.by_run(tokens):
        # Products read those of one text and of several texts from the same layout in memory. With
        # another one, the last bits of a text would depend on the texts beside it.
        query, key, value = (query * scale).contiguous(), key.contiguous(), value.contiguous()
        scores = query @ key.transpose(-1, -2) if content else query.new_zeros(())
        if positions is not None:
            scores = scores + positions.scores(query, key * scale)
        if biases is not None:
            scores = scores + biases[:, : run.length, : run.length]
        if reach is not None:
            positions_of = torch.arange(run.length, device=query.device)
            far = (positions_of - positions_of[:, None]).abs() > reach
            scores = scores.masked_fill(far, float("-inf"))
        if causal:
            future = torch.ones(run.length, run.length, dtype=torch.bool, device=query.device)
            scores = scores.masked_fill(future.triu(1), float("-inf"))
        probs = scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
        context = drop(probs, dropout) @ value
        outputs.append(context.transpose(1, 2).flatten(2).flatten(0, 1))
        probabilities.extend(probs)
    return torch.cat(outputs), probabilities


class Attention(nn.Module):
    """Multi-head attention of one block, with the projections before and after it."""

    def __init__(self, config: EncoderConfig, layer: int = 0) -> None:
        super().__init__()
        self.config = config
        self.reach, self.rotary_base = config.reach_of(layer), config.rotary_base_of(layer)
        hidden, self._head_shape = config.hidden_size, (config.heads, config.head_dim)
        self._scale = (config.head_dim * len(config.attention_terms)) ** -0.5
        self.qkv = Linear(hidden, 3 * hidden, bias=config.key_bias and config.has_biases)
        if not config.key_bias:
            self.query_bias = nn.Parameter(torch.zeros(hidden))
            self.value_bias = nn.Parameter(torch.zeros(hidden))
        if "c2p" in config.attention_terms:
            self.position_key = nn.Linear(hidden, hidden, bias=False)
        if "p2c" in config.attention_terms:
            self.position_query = nn.Linear(hidden, hidden)
        self.output = Linear(hidden, hidden, bias=config.has_biases)

    def forward(
        self,
        states: Tensor,
        tokens: PackedTokens,
        *,
        queries: Tensor | None = None,
        relative: RelativePositions = NO_POSITIONS,
        output_probs: bool = False,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Compute attention within each text, float (total, hidden), from states of that shape.

        Queries are computed from ``queries``, if given: DeBERTa's mask decoder passes states with
        absolute positions added. The probabilities of each text, (heads, length, length), may be
        empty if not asked for.
        """
        config = self.config
        dropout = config.attention_dropout if self.training else 0.0
        heads = self.project(states, queries)
        distances, biases, rotations = relative
        if self.rotary_base is not None:
            rotate = rotations[self.rotary_base].apply
            heads = Heads(rotate(heads.query), rotate(heads.key), heads.value)
        positions = None if distances is None else self._project_distances(distances)
        biases = None if biases is None else biases.to(heads.query.dtype)
        content = "c2c" in config.attention_terms
        probabilities: Sequence[Tensor] = ()
        causal = config.causal or self.reach is not None
        supported = not dropout or _supports_dropout(heads.query, causal=causal)
        if biases is not None:  # the fused kernels have no gradient of a bias
            supported = not (dropout or torch.is_grad_enabled())
        if output_probs or positions is not None or not content or not supported:
            context, probabilities = explicit_attention(
                heads,
                tokens,
                scale=self._scale,
                dropout=dropout,
                causal=config.causal,
                content=content,
                positions=positions,
                biases=biases,
                reach=self.reach,
            )
        else:
            context = packed_attention(
                heads,
                tokens,
                scale=self._scale,
                dropout=dropout,
                causal=config.causal,
                biases=biases,
                reach=self.reach,
            )
        del heads  # the next product uses their memory
        return self.output(context), probabilities

    def forward_selected(
        self, states: Tensor, tokens: PackedTokens, selected: SelectedTokens
    ) -> Tensor:
        """Compute `forward` for selected tokens only, (n, hidden), without relative positions."""
        config, weight, bias = self.config, self.qkv.weight, self.qkv.bias
        hidden, shape = config.hidden_size, (-1, *self._head_shape)
        query = linear(states[selected.rows], weight[:hidden], bias[:hidden]).view(shape)
        keys_and_values = linear(states, weight[hidden:], bias[hidden:])
        key, value = keys_and_values.view(-1, 2, *shape[1:]).unbind(1)
        scale, p = self._scale, config.attention_dropout if self.training else 0.0
        if has_varlen_kernel(query):
            context = varlen_attention(
                query,
                key,
                value,
                query_starts=selected.starts,
                key_starts=tokens.starts,
                longest=max(tokens.lengths),
                scale=scale,
                p=p,
            )
        else:
            context = selected_attention(query, key, value, tokens, selected, scale=scale, p=p)
        out: Tensor = self.output(context)
        return out

    def project(self, states: Tensor, queries: Tensor | None = None) -> Heads:
        """Project states (..., hidden) to heads; ``queries`` is that of `forward`."""
        config = self.config
        shape = (-1, 3, *self._head_shape)
        query, key, value = self.qkv(states).view(shape).unbind(1)
        if queries is not None:
            query = self.qkv(queries).view(shape)[:, 0]
        if not config.key_bias:
            query = query + self.query_bias.view(config.heads, -1)
            value = value + self.value_bias.view(config.heads, -1)
        return Heads(query, key, value)

    def _project_distances(self, distances: Tensor) -> RelativeHeads:
        config = self.config
        if self.training:
            distances = drop(distances, config.hidden_dropout)
        shape = (-1, *self._head_shape)
        return RelativeHeads(
            self.position_key(distances).view(shape) if "c2p" in config.attention_terms else None,
            self.position_query(distances).view(shape) if "p2c" in config.attention_terms else None,
        )
