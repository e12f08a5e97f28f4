"""The shape of an encoder, described by what it does; families of models are only values here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sbert_search.errors import ConfigError

AttentionTerm = Literal["c2c", "c2p", "p2c"]
MOST_LAYERS = 1_000
"""Far more than any model has, and few enough to be told quickly that they are too many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """One Transformer encoder of the BERT family: post-norm blocks over learned embeddings.

    The defaults are BERT-base.

    Raises:
        ConfigError: A value, or a combination of values, that no encoder can have.

    Sources: Devlin et al. 2019 (arXiv:1810.04805), Liu et al. 2019 (arXiv:1907.11692), Lan et al.
    2020 (arXiv:1909.11942), He et al. 2021 (arXiv:2006.03654).
    """

    layout: str = "bert"  # the published file layout it is read from and saved in
    vocab_size: int = 30522
    pad_id: int = 0  # its embedding gets no gradient; packed batches never hold it
    hidden_size: int = 768
    layers: int = 12  # how often a group of blocks is applied
    heads: int = 12
    intermediate_size: int = 3072
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"

    embedding_size: int | None = None  # width of the tables, projected to hidden_size; None: equal
    max_positions: int = 512  # tokens a text may have
    position_embeddings: bool = True  # add a learned vector of the absolute position
    position_offset: int = 0  # rows of the position table before the one of the first token
    token_type_vocab: int = 2  # segments told apart; 0: none

    layer_groups: int | None = None  # sets of blocks with weights of their own; None: one a layer
    inner_layers: int = 1  # blocks in a group, applied one after another in each layer

    attention_terms: tuple[AttentionTerm, ...] = ("c2c",)  # content and relative position scores
    relative_positions: int = 0  # distances told apart in each direction; 0: no relative table
    key_bias: bool = True  # whether keys have a bias; without one the projections are content only
    causal: bool = False  # a token sees only what is left of it; for tests of bidirectionality

    pooler: bool = False  # a tanh layer over the first token, as next-sentence prediction trains it
    layer_norm_eps: float = 1e-12
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02  # standard deviation of fresh weights

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention_terms", tuple(sorted(self.attention_terms)))
        self._check_sizes()
        self._check_sharing()
        self._check_attention()
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"encoder.{name} is {getattr(self, name)}; it must be in [0, 1).")

    def _check_sizes(self) -> None:
        positive = ("vocab_size", "hidden_size", "layers", "heads", "intermediate_size")
        for name in (*positive, "max_positions", "inner_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"encoder.{name} is {getattr(self, name)}; it must be positive.")
        if self.layers * self.inner_layers > MOST_LAYERS:
            raise ConfigError(
                f"encoder.layers is {self.layers:,} times {self.inner_layers:,}; at most "
                f"{MOST_LAYERS:,} are computed."
            )
        for name in ("position_offset", "token_type_vocab", "relative_positions"):
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
                f"encoder.layer_groups is {self.layer_groups}; there are {self.layers} layers."
            )

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

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.heads

    @property
    def table_size(self) -> int:
        """Width of the embedding tables."""
        return self.embedding_size or self.hidden_size

    @property
    def n_blocks(self) -> int:
        """Blocks that have weights of their own."""
        return (self.layer_groups or self.layers) * self.inner_layers

    @property
    def block_order(self) -> list[int]:
        """Indices of the blocks to apply; layers take the groups in equal runs, as in ALBERT."""
        groups = self.layer_groups or self.layers
        return [
            layer * groups // self.layers * self.inner_layers + inner
            for layer in range(self.layers)
            for inner in range(self.inner_layers)
        ]
