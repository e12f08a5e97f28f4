"""The settings of an encoder, those of published models by name, and their cost.

The small generator of ELECTRA has the sizes of the model that google-research/electra published: it
is as wide as the small discriminator. In the paper, it has a quarter of this width.

Sources: google-research/bert (tiny to large), Wang et al. 2020 (MiniLM, arXiv:2002.10957),
Liu et al. 2019 (RoBERTa, table 9), google-research/albert (version 2), Sanh et al. 2019
(DistilBERT, arXiv:1910.01108), google-research/electra, He et al. 2021 (DeBERTa, table 8), Conneau
et al. 2020 (XLM-R, arXiv:1911.02116), Song et al. 2020 (MPNet, arXiv:2004.09297).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from sbert_search.config import unknown_name
from sbert_search.errors import ConfigError

AttentionTerm = Literal["c2c", "c2p", "p2c"]
MOST_LAYERS = 1_000
"""Maximum of ``layers`` x ``inner_layers``, far more than any model has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """One bidirectional Transformer encoder: blocks over learned embeddings.

    A block is one attention layer and one feed-forward layer. The defaults are BERT-base.

    Raises:
        ConfigError: A value, or a combination of values, is invalid.

    Sources: Devlin et al. 2019 (arXiv:1810.04805), Liu et al. 2019 (arXiv:1907.11692), Lan et al.
    2020 (arXiv:1909.11942), He et al. 2021 (arXiv:2006.03654), Song et al. 2020 (arXiv:2004.09297),
    Warner et al. 2024, ModernBERT (arXiv:2412.13663).
    """

    layout: str = "bert"  # published file format of a model family, for reading and saving
    vocab_size: int = 30522  # number of tokens that the model knows
    pad_id: int = 0  # padding token; its embedding gets no gradient
    hidden_size: int = 768  # width of the hidden states
    layers: int = 12  # number of layers; in ALBERT several layers apply the same blocks
    heads: int = 12  # attention heads of a layer
    intermediate_size: int = 3072  # width of the feed-forward layer
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"  # of the feed-forward layer
    gated: bool = False  # multiply the activation by a second projection of the same width
    # Normalise the input of attention and of the feed-forward layer, and the output of the last
    # block, in place of each sum. The input of the first block is normalised already.
    pre_norm: bool = False
    has_biases: bool = True  # biases of linear layers and norms

    embedding_size: int | None = None  # width of the embedding tables; None: hidden_size
    max_positions: int = 512  # most tokens of a text
    position_embeddings: bool = True  # add a learned embedding of the absolute position
    position_offset: int = 0  # row of the first token in the position table
    token_type_vocab: int = 2  # number of segment ids; 0: no segment embeddings

    layer_groups: int | None = None  # groups of blocks with separate weights; None: one per layer
    inner_layers: int = 1  # blocks in a group, applied one after another in each layer

    # In the names of terms, c is content and p is relative position: c2p multiplies queries of the
    # content by keys of the position, p2c queries of the position by keys of the content.
    attention_terms: tuple[AttentionTerm, ...] = ("c2c",)  # terms of the attention scores
    relative_positions: int = 0  # number of distances in each direction; 0: no relative positions
    # Number of ranges of distances, each with one bias of the scores per head, shared by all
    # layers; 0: no biases.
    position_buckets: int = 0
    key_bias: bool = True  # bias of the keys; DeBERTa has none
    # Base of the wavelengths by which queries and keys are rotated; None: no rotation.
    rotary_base: float | None = None
    # Only the first of each ``global_every`` layers attends to whole texts. In the others, a token
    # attends to tokens at most ``local_reach`` away, and rotations have a base of their own.
    global_every: int = 1
    local_reach: int = 0  # 0: all layers attend to whole texts
    local_rotary_base: float | None = None  # base in these layers
    causal: bool = False  # attend to the left only; for tests

    pooler: bool = False  # tanh layer over the first token, trained by next-sentence prediction
    layer_norm_eps: float = 1e-12  # added to the variance in layer norms
    hidden_dropout: float = 0.1  # dropout rate of layer outputs
    attention_dropout: float = 0.1  # dropout rate of attention weights
    initializer_range: float = 0.02  # standard deviation of initial weights

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention_terms", tuple(sorted(self.attention_terms)))
        self._check_sizes()
        self._check_sharing()
        self._check_attention()
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"encoder.{name} is {getattr(self, name)}; it must be in [0, 1).")
        if not 0.0 < self.layer_norm_eps < math.inf:
            raise ConfigError(
                f"encoder.layer_norm_eps is {self.layer_norm_eps}; it must be finite, and above 0."
            )
        if not 0.0 <= self.initializer_range < math.inf:
            raise ConfigError(
                f"encoder.initializer_range is {self.initializer_range}; it must be finite, and "
                "0 or more."
            )

    def _check_sizes(self) -> None:
        positive = ("vocab_size", "hidden_size", "layers", "heads", "intermediate_size")
        for name in (*positive, "max_positions", "inner_layers", "global_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"encoder.{name} is {getattr(self, name)}; it must be positive.")
        if self.layers * self.inner_layers > MOST_LAYERS:
            raise ConfigError(
                f"encoder.layers x inner_layers is {self.layers:,} x {self.inner_layers:,}; it "
                f"must be at most {MOST_LAYERS:,}."
            )
        tables = ("position_offset", "token_type_vocab", "relative_positions", "position_buckets")
        for name in (*tables, "local_reach"):
            if getattr(self, name) < 0:
                raise ConfigError(f"encoder.{name} is {getattr(self, name)}; it must be 0 or more.")
        if self.embedding_size is not None and self.embedding_size < 1:
            raise ConfigError(
                f"encoder.embedding_size is {self.embedding_size}; it must be positive."
            )
        if self.hidden_size % self.heads:
            raise ConfigError(
                f"encoder.hidden_size {self.hidden_size} is not a multiple of heads {self.heads}."
            )
        if not 0 <= self.pad_id < self.vocab_size:
            raise ConfigError(
                f"encoder.pad_id is {self.pad_id}; it must be below vocab_size {self.vocab_size}."
            )

    def _check_sharing(self) -> None:
        if self.layer_groups is not None and not 1 <= self.layer_groups <= self.layers:
            raise ConfigError(
                f"encoder.layer_groups is {self.layer_groups}; it must be from 1 to layers "
                f"({self.layers})."
            )
        if (self.pre_norm or self.local_reach) and self.n_blocks != self.layers:
            raise ConfigError("encoder.pre_norm and local_reach need layers that share no weights.")

    def _check_attention(self) -> None:
        terms = self.attention_terms
        known = set(terms) <= {"c2c", "c2p", "p2c"}
        if not terms or not known or len(set(terms)) < len(terms):
            raise ConfigError(
                f"encoder.attention_terms is {list(terms)}; choose some of c2c, c2p, p2c."
            )
        if set(terms) != {"c2c"} and not self.relative_positions:
            raise ConfigError(
                f"encoder.attention_terms {list(terms)} need relative_positions above 0."
            )
        for name in ("rotary_base", "local_rotary_base"):
            base = getattr(self, name)
            if base is not None and (not 1.0 < base < math.inf or self.head_dim % 2):
                raise ConfigError(
                    f"encoder.{name} is {base}, with heads of width {self.head_dim}; it must be "
                    "finite and above 1, and the width even."
                )
        if self.position_buckets % 4:
            raise ConfigError(
                f"encoder.position_buckets is {self.position_buckets}; it must be a multiple of 4."
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.heads

    @property
    def has_plain_scores(self) -> bool:
        """Whether attention scores are only products of projected queries and keys."""
        content = self.attention_terms == ("c2c",) and self.rotary_base is None
        return content and not self.position_buckets and not self.local_reach

    def reach_of(self, layer: int) -> int | None:
        """How far a token of a layer attends, in tokens; None: to the whole text."""
        return None if layer % self.global_every == 0 else self.local_reach or None

    def rotary_base_of(self, layer: int) -> float | None:
        """Base of the rotations in a layer; None: no rotation."""
        return self.rotary_base if self.reach_of(layer) is None else self.local_rotary_base

    @property
    def up_size(self) -> int:
        """Width of the first linear layer of the feed-forward layer."""
        return self.intermediate_size * (1 + self.gated)

    @property
    def table_size(self) -> int:
        """Width of the embedding tables."""
        return self.embedding_size or self.hidden_size

    @property
    def n_blocks(self) -> int:
        """Number of blocks with separate weights."""
        return (self.layer_groups or self.layers) * self.inner_layers

    @property
    def block_order(self) -> list[int]:
        """Indices of the blocks in the order in which they are applied.

        Consecutive layers share a group of blocks, as in ALBERT. If the number of layers is not a
        multiple of the number of groups, some groups are applied in one layer more than others.
        """
        groups = self.layer_groups or self.layers
        return [
            layer * groups // self.layers * self.inner_layers + inner
            for layer in range(self.layers)
            for inner in range(self.inner_layers)
        ]


def _bert(layers: int, hidden: int, heads: int) -> EncoderConfig:
    return EncoderConfig(
        layers=layers, hidden_size=hidden, heads=heads, intermediate_size=4 * hidden, pooler=True
    )


def _roberta(layers: int, hidden: int, heads: int) -> EncoderConfig:
    return replace(
        _bert(layers, hidden, heads),
        layout="roberta",
        vocab_size=50265,
        pad_id=1,
        position_offset=2,
        token_type_vocab=1,
        layer_norm_eps=1e-5,
    )


def _albert(layers: int, hidden: int, heads: int) -> EncoderConfig:
    return replace(
        _bert(layers, hidden, heads),
        layout="albert",
        vocab_size=30000,
        embedding_size=128,
        layer_groups=1,
        activation="gelu_tanh",
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


def _modernbert(layers: int, hidden: int, heads: int, intermediate: int) -> EncoderConfig:
    return EncoderConfig(
        layout="modernbert",
        vocab_size=50368,
        pad_id=50283,
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        intermediate_size=intermediate,
        gated=True,
        pre_norm=True,
        has_biases=False,
        max_positions=8192,
        position_embeddings=False,
        token_type_vocab=0,
        rotary_base=160_000.0,
        global_every=3,
        local_reach=64,
        local_rotary_base=10_000.0,
        layer_norm_eps=1e-5,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


def _electra(hidden: int, heads: int, embedding_size: int | None) -> EncoderConfig:
    config = _bert(12, hidden, heads)
    return replace(config, layout="electra", embedding_size=embedding_size, pooler=False)


PRESETS: dict[str, EncoderConfig] = {
    "bert-tiny": _bert(2, 128, 2),
    "bert-mini": _bert(4, 256, 4),
    "bert-small": _bert(4, 512, 8),
    "bert-medium": _bert(8, 512, 8),
    "bert-base": _bert(12, 768, 12),
    "bert-large": _bert(24, 1024, 16),
    "minilm-l6": _bert(6, 384, 12),
    "minilm-l12": _bert(12, 384, 12),
    "roberta-base": _roberta(12, 768, 12),
    "roberta-large": _roberta(24, 1024, 16),
    "xlm-roberta-base": replace(_roberta(12, 768, 12), layout="xlm-roberta", vocab_size=250_002),
    "mpnet-base": replace(
        _roberta(12, 768, 12),
        layout="mpnet",
        vocab_size=30527,
        token_type_vocab=0,
        position_buckets=32,
    ),
    "modernbert-base": _modernbert(22, 768, 12, 1152),
    "modernbert-large": _modernbert(28, 1024, 16, 2624),
    "albert-base": _albert(12, 768, 12),
    "albert-large": _albert(24, 1024, 16),
    "albert-xlarge": _albert(24, 2048, 16),
    "albert-xxlarge": _albert(12, 4096, 64),
    "distilbert": replace(_bert(6, 768, 12), layout="distilbert", token_type_vocab=0, pooler=False),
    "electra-small-generator": _electra(256, 4, 128),
    "electra-small": _electra(256, 4, 128),
    "electra-base-generator": _electra(256, 4, 768),
    "electra-base": _electra(768, 12, None),
    "deberta-base": EncoderConfig(
        layout="deberta",
        vocab_size=50265,
        position_embeddings=False,
        token_type_vocab=0,
        attention_terms=("c2c", "c2p", "p2c"),
        relative_positions=512,
        key_bias=False,
        layer_norm_eps=1e-7,
    ),
}


def preset(name: str) -> EncoderConfig:
    """Look up a published configuration."""
    if name not in PRESETS:
        raise ConfigError(unknown_name(name, name, PRESETS, "encoder"))
    return PRESETS[name]


def parameter_count(config: EncoderConfig) -> int:
    """Count the parameters of an encoder; shared parameters count once."""
    hidden, width = config.hidden_size, config.table_size
    positions = config.max_positions + config.position_offset if config.position_embeddings else 0
    norm = 1 + config.has_biases  # parameters of a channel
    count = (config.vocab_size + positions + config.token_type_vocab + norm) * width
    if config.embedding_size is not None:
        count += (width + 1) * hidden
    count += 2 * config.relative_positions * hidden + config.position_buckets * config.heads
    count += config.n_blocks * _block_parameters(config)
    return count + (hidden + 1) * hidden * config.pooler


def _block_parameters(config: EncoderConfig) -> int:
    hidden, terms = config.hidden_size, config.attention_terms
    attention = 4 * hidden * hidden
    attention += hidden * hidden * ("c2p" in terms) + (hidden + 1) * hidden * ("p2c" in terms)
    feed_forward = hidden * (config.up_size + config.intermediate_size)
    biases = (4 if config.key_bias else 3) * hidden + config.up_size + hidden
    norms = 2 * (1 + config.has_biases) * hidden
    return attention + feed_forward + biases * config.has_biases + norms


def flops_per_token(config: EncoderConfig, length: int) -> int:
    """Count the operations per token of a forward pass over texts of ``length`` tokens.

    A multiplication and an addition are two operations. Only matrix products count. The projections
    of relative positions are left out, because they are computed once for a whole batch, and the
    pooler, because it is computed once for a text.
    """
    hidden = config.hidden_size
    block = 2 * hidden * (4 * hidden + config.up_size + config.intermediate_size)
    project = 2 * hidden * config.embedding_size if config.embedding_size is not None else 0
    attention = 0
    for layer in range(config.layers):
        reach = config.reach_of(layer)
        seen = length if reach is None else min(length, 2 * reach + 1)
        attention += 2 * seen * hidden  # probabilities times values
        for term in config.attention_terms:
            attention += 2 * (seen if term == "c2c" else 2 * length - 1) * hidden
    return len(config.block_order) * block + config.inner_layers * attention + project
