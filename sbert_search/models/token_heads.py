"""The token head, which predicts masked tokens, and the names of its tensors in published files.

A layout is the published file format of one model family, such as bert or roberta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import ACTIVATIONS
from sbert_search.models.encoder.training_layers import Linear, linear


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenHeadLayout:
    """The names that one layout gives to the heads for pre-training.

    Attributes:
        masked: Name of the class in transformers that has only the token head.
        dense: Name of the layer before the output matrix.
        norm: Name of the layer norm after ``dense``.
        biases: Names of the bias over the vocabulary; a checkpoint has one or more of them, and
            `MaskedLanguageModel.save` writes the first.
        decoder: Name of the output matrix, which equals the embedding table.
        activation: Activation after ``dense``; None: the activation of the encoder.
        paired: Name of the class in transformers that also classifies pairs of segments; None: the
            layout has no such class.
        pair: Name of the classifier of segment pairs in ``paired``, which reads the output of the
            pooler; None: the layout has no such classifier.
        settings: Keys of ``config.json`` that the head needs, with their values.
        positions: Name of the position table of DeBERTa's enhanced mask decoder, which adds
            absolute positions before the token head; None: the layout has no such decoder.
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
    """Computes logits over the vocabulary; the output matrix is the encoder's embedding table."""

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

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """Compute logits.

        Args:
            states: Hidden states of the tokens to predict, float (n, hidden).
            table: The embedding table, float (vocab, table_size).

        Returns:
            Float (n, vocab).
        """
        return linear(self.norm(self.activation(self.dense(states))), table, self.bias)


def fill_fresh(linear: nn.Linear, config: EncoderConfig) -> None:
    """Initialise a layer of a head as `Encoder` initialises its layers."""
    nn.init.normal_(linear.weight, std=config.initializer_range)
    nn.init.zeros_(linear.bias)
