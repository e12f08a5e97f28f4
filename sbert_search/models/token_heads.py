"""Heads over tokens: the one that guesses masked words, and how published layouts name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sbert_search.encoder.block import ACTIVATIONS
from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.linear import Linear, linear


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenHeadLayout:
    """How a published layout holds what was pre-trained.

    Attributes:
        masked: The class in transformers with this head alone.
        dense: Layer before the vocabulary.
        norm: Behind that layer.
        biases: Names of one bias a word; any may be there, and the first is written.
        decoder: Matrix over the vocabulary, which is the embedding table.
        activation: Of the dense layer; None: the encoder's.
        paired: The class that also judges whether two segments belong together, if there is one.
        pair: Its classifier, behind the pooler.
        settings: Keys of ``config.json`` that this head needs.
        positions: Table of the mask decoder, where the layout has one.
    """

    masked: str
    dense: str
    norm: str
    biases: tuple[str, ...]
    decoder: str
    activation: str | None = None
    paired: str | None = None
    pair: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    positions: str | None = None


TOKEN_HEADS = {
    "bert": TokenHeadLayout(
        masked="BertForMaskedLM",
        dense="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        biases=("cls.predictions.bias", "cls.predictions.decoder.bias"),
        decoder="cls.predictions.decoder.weight",
        paired="BertForPreTraining",
        pair="cls.seq_relationship",
    ),
    "roberta": TokenHeadLayout(
        masked="RobertaForMaskedLM",
        dense="lm_head.dense",
        norm="lm_head.layer_norm",
        biases=("lm_head.bias", "lm_head.decoder.bias"),
        decoder="lm_head.decoder.weight",
        activation="gelu",
    ),
    "albert": TokenHeadLayout(
        masked="AlbertForMaskedLM",
        dense="predictions.dense",
        norm="predictions.LayerNorm",
        biases=("predictions.bias", "predictions.decoder.bias"),
        decoder="predictions.decoder.weight",
        paired="AlbertForPreTraining",
        pair="sop_classifier.classifier",
    ),
    "distilbert": TokenHeadLayout(
        masked="DistilBertForMaskedLM",
        dense="vocab_transform",
        norm="vocab_layer_norm",
        biases=("vocab_projector.bias",),
        decoder="vocab_projector.weight",
    ),
    "electra": TokenHeadLayout(
        masked="ElectraForMaskedLM",
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        biases=("generator_lm_head.bias",),
        decoder="generator_lm_head.weight",
        activation="gelu",
    ),
    "deberta": TokenHeadLayout(
        masked="DebertaForMaskedLM",
        dense="lm_predictions.lm_head.dense",
        norm="lm_predictions.lm_head.LayerNorm",
        biases=("lm_predictions.lm_head.bias",),
        decoder="lm_predictions.lm_head.decoder.weight",
        settings={"legacy": False},
        positions="deberta.embeddings.position_embeddings.weight",
    ),
}


class TokenHead(nn.Module):
    """Tells the word that belongs at a position, by the table that embeds words."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        layout, width = TOKEN_HEADS[config.layout], config.table_size
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[
            layout.activation or config.activation
        ]
        self.dense = Linear(config.hidden_size, width)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        fill_fresh(self.dense, config)

    def forward(self, states: Tensor, words: Tensor) -> Tensor:
        """Compute logits.

        Args:
            states: Hidden states of the positions asked for, float (n, hidden).
            words: The embedding table, float (vocab, table width).

        Returns:
            Float (n, vocab).
        """
        return linear(self.norm(self.activation(self.dense(states))), words, self.bias)


def fill_fresh(linear: nn.Linear, config: EncoderConfig) -> None:
    """Draw the weights of a fresh layer of a head as those of the encoder are drawn."""
    nn.init.normal_(linear.weight, std=config.initializer_range)
    nn.init.zeros_(linear.bias)
