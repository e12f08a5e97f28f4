"""The encoder, its embeddings and its blocks: packed tokens in, one hidden state per token out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.errors import ModelError
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.selected_tokens import SelectedTokens
from sbert_search.models.encoder.self_attention import (
    NO_POSITIONS,
    Attention,
    RelativePositions,
    Rotation,
    bucket_biases,
    has_varlen_kernel,
)
from sbert_search.models.encoder.training_layers import Linear, dropout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


def norm_of(config: EncoderConfig, width: int) -> nn.LayerNorm:
    """Make a layer norm of an encoder or of its heads."""
    return nn.LayerNorm(width, eps=config.layer_norm_eps, bias=config.has_biases)


def gated(activation: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    """Multiply the activation of the first half of each state by the second half.

    Source: Shazeer 2020, GLU Variants Improve Transformer, equation 6 (arXiv:2002.05202).
    """
    value, gate = states.chunk(2, dim=-1)
    return activation(value) * gate


class Block(nn.Module):
    """Attention and feed-forward layer with residual connections and layer norms.

    Each sum is normalised, or, with ``pre_norm``, the input of each of the two: ``output_norm`` is
    then the norm before the feed-forward layer.

    Source: Vaswani et al. 2017, section 3.1 (arXiv:1706.03762); pre-norm: Xiong et al. 2020, figure
    1 (arXiv:2002.04745).
    """

    def __init__(self, config: EncoderConfig, layer: int = 0) -> None:
        super().__init__()
        hidden, biased = config.hidden_size, config.has_biases
        self.dropout, self.pre_norm = config.hidden_dropout, config.pre_norm
        self.activation = ACTIVATIONS[config.activation]
        if config.gated:
            self.activation = partial(gated, self.activation)
        self.attention = Attention(config, layer)
        normalised = config.pre_norm and layer == 0
        self.attention_norm = nn.Identity() if normalised else norm_of(config, hidden)
        self.up = Linear(hidden, config.up_size, bias=biased)
        self.down = Linear(config.intermediate_size, hidden, bias=biased)
        self.output_norm = norm_of(config, hidden)

    def forward(
        self,
        states: Tensor,
        tokens: PackedTokens,
        *,
        queries: Tensor | None = None,
        relative: RelativePositions = NO_POSITIONS,
        output_probs: bool = False,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Transform the states of each text; arguments and result are those of `Attention`."""
        context, probs = self.attention(
            self.attention_input(states),
            tokens,
            queries=queries,
            relative=relative,
            output_probs=output_probs,
        )
        states = self.add_attention(context, states if queries is None else queries)
        del context  # the feed-forward layer needs the most memory
        return self.feed_forward(states), probs

    def forward_selected(
        self, states: Tensor, tokens: PackedTokens, selected: SelectedTokens
    ) -> Tensor:
        """Compute the output of `forward` for selected tokens only; float (n, hidden)."""
        context = self.attention.forward_selected(states, tokens, selected)
        return self.feed_forward(self.add_attention(context, states[selected.rows]))

    def add_attention(self, context: Tensor, states: Tensor) -> Tensor:
        """Add the input to the output of attention; normalise the sum unless ``pre_norm``."""
        added = self._add(context, states)
        return added if self.pre_norm else self.attention_norm(added)

    def feed_forward(self, states: Tensor) -> Tensor:
        """Return the output of a block for the result of `add_attention`."""
        if self.pre_norm:
            return self._add(self.down(self.activation(self.up(self.output_norm(states)))), states)
        output = self.down(self.activation(self.up(states)))
        out: Tensor = self.output_norm(self._add(output, states))
        return out

    def attention_input(self, states: Tensor) -> Tensor:
        """Return the input of attention for the input of the block."""
        inputs: Tensor = self.attention_norm(states) if self.pre_norm else states
        return inputs

    def _add(self, output: Tensor, states: Tensor) -> Tensor:
        # On a CPU, torch adds tensors of two types without vector instructions. The output is
        # therefore converted first.
        if self.training:
            output = dropout(output, self.dropout)
        output = output.to(states.dtype)
        return output + states if torch.is_grad_enabled() else output.add_(states)


class EmbeddableTokens(Protocol):
    """The attributes of a batch that `Embeddings` reads.

    The tensors of a packed batch are (total,). Those of a padded batch are (batch, seq_len), but
    its positions are (seq_len,).
    """

    @property
    def input_ids(self) -> Tensor:
        """Token ids, int64."""

    @property
    def positions(self) -> Tensor:
        """Position of each token in its text, from 0, int64."""

    @property
    def token_type_ids(self) -> Tensor | None:
        """Segment of each token, int64; None: all 0."""


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, layer-normalised.

    If ``embedding_size`` is set, the sum is then projected to ``hidden_size``.

    Source: Devlin et al. 2019, section 3 (arXiv:1810.04805); projection: Lan et al. 2020, section
    3.1 (arXiv:1909.11942).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.table_size
        self.word = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_id)
        if config.position_embeddings:
            self.position = nn.Embedding(config.max_positions + config.position_offset, width)
        if config.token_type_vocab:
            self.token_type = nn.Embedding(config.token_type_vocab, width)
        self.norm = norm_of(config, width)
        if config.embedding_size is not None:
            self.project = nn.Linear(width, config.hidden_size)

    def forward(self, tokens: EmbeddableTokens) -> Tensor:
        """Embed a batch; float (..., hidden)."""
        config = self.config
        states: Tensor = self.word(tokens.input_ids)
        if config.position_embeddings:
            rows = self._offset_rows(tokens) if config.position_offset else tokens.positions
            states = states + self.position(rows)
        if config.token_type_vocab:  # otherwise segment ids are ignored
            types, table = tokens.token_type_ids, self.token_type.weight
            states = states + (table[0] if types is None else F.embedding(types, table))
        states = self.norm(states)
        if self.training:
            states = dropout(states, config.hidden_dropout)
        return self.project(states) if config.embedding_size is not None else states

    def _offset_rows(self, tokens: EmbeddableTokens) -> Tensor:
        """Row of each token in a position table whose first rows belong to no position."""
        offset = self.config.position_offset
        # A text may contain the padding token, for instance if a user typed "<pad>". RoBERTa gives
        # this token row number `offset - 1` and does not count it in the positions of later tokens.
        pads = tokens.input_ids == self.config.pad_id
        before = pads.cumsum(-1) - pads.long()
        starts = torch.arange(pads.shape[-1], device=pads.device) - tokens.positions
        positions = tokens.positions - before + before[..., starts] + offset
        return positions.masked_fill(pads, offset - 1)


@dataclass(frozen=True, eq=False)
class EncoderOutput:
    """The output of an encoder for a batch; fields that were not requested are empty."""

    hidden_states: Tensor  # float (total, hidden) in the order of the batch, or of the rows wanted
    layer_states: tuple[Tensor, ...] = ()  # the embeddings, then the states after each block
    # For each application of a block, the attention probabilities of each text, float (heads,
    # length, length).
    attentions: tuple[tuple[Tensor, ...], ...] = ()


class Encoder(nn.Module):
    """A bidirectional Transformer over packed tokens. Its initial weights are random."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.frozen = False  # whether layers were replaced by layers that cannot be saved
        self._block_order = config.block_order
        self.embeddings = Embeddings(config)
        if config.relative_positions:
            self.distances = nn.Embedding(2 * config.relative_positions, config.hidden_size)
        if config.position_buckets:
            self.position_biases = nn.Embedding(config.position_buckets, config.heads)
        self.blocks = nn.ModuleList(Block(config, number) for number in range(config.n_blocks))
        self.final_norm = norm_of(config, config.hidden_size) if config.pre_norm else nn.Identity()
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if config.pooler else None
        self.apply(self._initialise)

    def forward(
        self,
        tokens: PackedTokens,
        *,
        rows: Tensor | None = None,
        output_layers: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encode a batch on the encoder's device; its texts may be in any order.

        ``rows`` are the rows whose last-layer states are returned, int64 (n,), in any order; None:
        all rows. If the configuration allows, the last block computes only these rows. A text with
        more tokens than positions is refused; a token id outside the vocabulary on a CPU only.
        """
        self._check(tokens)
        ordered = tokens.by_length()
        states, relative = self.embeddings(ordered.tokens), self.relative_positions(ordered.tokens)
        layers = [states] if output_layers else []
        attentions: list[tuple[Tensor, ...]] = []
        outputs_all = output_layers or output_attentions
        selects = rows is not None and not outputs_all and self._can_select
        for index in self._block_order[:-1] if selects else self._block_order:
            states, probs = self.blocks[index](
                states, ordered.tokens, relative=relative, output_probs=output_attentions
            )
            if output_layers:
                layers.append(states)
            if output_attentions:
                attentions.append(ordered.restore_texts(probs))
        if rows is not None:
            rows = ordered.ordered_rows(rows)
            if selects:
                last = cast(Block, self.blocks[self._block_order[-1]])
                states = _forward_selected(last, states, ordered.tokens, rows)
            else:
                states = states[rows]
        states = self.final_norm(states)
        if output_layers and self.config.pre_norm:
            layers[-1] = self.final_norm(layers[-1])  # as in transformers
        return EncoderOutput(
            ordered.restore(states) if rows is None else states,
            tuple(map(ordered.restore, layers)),
            tuple(attentions),
        )

    @property
    def _can_select(self) -> bool:
        config = self.config
        plain = config.has_plain_scores and config.key_bias and not config.causal
        return plain and not self.frozen

    @property
    def needs_only_starts(self) -> bool:
        """Whether the encoder finds the texts of a batch only by the tensor `PackedTokens.starts`.

        If false, the encoder reads ``PackedTokens.lengths``. If true, the tensor ``starts`` can be
        overwritten, and a CUDA graph of the encoder then computes other texts. A batch may also end
        in padding rows. They belong to no text, and their states are undefined.
        """
        config, weight = self.config, self.embeddings.word.weight
        heads = weight.new_empty(0, config.head_dim)
        return has_varlen_kernel(heads) and config.has_plain_scores

    def first_states(self, tokens: PackedTokens) -> Tensor:
        """Last-layer states of the first token of each text, float (batch, hidden)."""
        # Without gradients, the last block computes all rows, since a CUDA graph may record the
        # computation and replay it for texts of other lengths. A replay reads the new
        # `tokens.starts`, but the old `tokens.lengths`, on which a selection of rows depends.
        if torch.is_grad_enabled():
            output: EncoderOutput = self(tokens, rows=tokens.first_rows.long())
            return output.hidden_states
        output = self(tokens)
        return output.hidden_states[tokens.first_rows]

    def pool_first(self, first_states: Tensor) -> Tensor:
        """Pass the states of first tokens through the pooler; float (batch, hidden)."""
        if self.pooler is None:
            raise ModelError("This encoder has no pooler; it was made or saved without one.")
        # states pooled by `pool` are float32 also if the encoder is in another precision
        return torch.tanh(self.pooler(first_states.to(self.pooler.weight.dtype)))

    def relative_positions(self, tokens: PackedTokens) -> RelativePositions:
        """What attention reads of the relative positions in a batch.

        ``reach`` of the distances is the length of the longest text, but at most
        ``relative_positions`` of the configuration.
        """
        distances, biases = None, None
        all_reach, longest = self.config.relative_positions, max(tokens.lengths)
        if all_reach and self.config.attention_terms != ("c2c",):
            reach = min(all_reach, longest)
            distances = self.distances.weight[all_reach - reach : all_reach + reach]
        if self.config.position_buckets:
            table = self.position_biases.weight
            biases = bucket_biases(table, torch.arange(longest, device=table.device))
        return RelativePositions(distances, biases, self.rotations(tokens.positions))

    def rotations(self, positions: Tensor) -> dict[float, Rotation]:
        """Make the rotations of positions, int64 (positions,), by their base."""
        config = self.config
        bases = {config.rotary_base_of(layer) for layer in range(config.layers)} - {None}
        return {base: Rotation.of(positions, base, config.head_dim) for base in bases if base}

    def _check(self, tokens: PackedTokens) -> None:
        longest, vocab = max(tokens.lengths), self.config.vocab_size
        if self.config.position_embeddings and longest > self.config.max_positions:
            raise ValueError(
                f"Text {tokens.lengths.index(longest)} of the batch has {longest:,} tokens; the "
                f"encoder takes {self.config.max_positions:,}. Truncate it or split it into chunks."
            )
        if tokens.input_ids.device.type != "cpu":
            return  # to read the ids, the CPU would have to wait for the device
        low, high = map(int, tokens.input_ids.aminmax())
        if low < 0 or high >= vocab:
            raise ModelError(
                f"A token id is {low if low < 0 else high}; the encoder's vocabulary has ids 0 to "
                f"{vocab - 1}. The tokenizer belongs to another model."
            )

    @torch.no_grad()
    def _initialise(self, module: nn.Module) -> None:
        """Draw matrices from a normal distribution and set biases to 0 (Devlin et al. 2019)."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.normal_(0.0, self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx].zero_()


def _forward_selected(block: Block, states: Tensor, tokens: PackedTokens, rows: Tensor) -> Tensor:
    """Apply a block to some rows of a batch; float (n, hidden), in the order of ``rows``."""
    ascending, order = rows.sort()
    outputs = block.forward_selected(states, tokens, SelectedTokens.of(ascending, tokens))
    return outputs[order.argsort()]
