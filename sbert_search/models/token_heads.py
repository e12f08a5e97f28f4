"""Heads of tokens: the token head, which predicts masked tokens, and a linear-chain CRF.

A layout is the published file format of one model family, such as bert or roberta.

A path gives each item of a sequence one tag. The score of a path is the sum of the emissions (the
scores that the model gives to each tag for its item), the transitions (a score for each two
neighbouring tags), the start score of the first tag, and the end score of the last tag.

Source: Lafferty, McCallum & Pereira 2001, Conditional Random Fields, section 3; Lample et al. 2016,
Neural Architectures for Named Entity Recognition, section 2.2 (arXiv:1603.01360).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import ACTIVATIONS
from sbert_search.models.encoder.training_layers import Linear, linear
from sbert_search.tag_schemes import Scheme, may_follow


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


class ChainScores(NamedTuple):
    """The parts of a path's score that depend only on the tags, not on the items.

    Attributes:
        start: Score of each tag as the first one, float (labels,).
        transitions: Score of tag j directly after tag i, float (labels, labels).
        end: Score of each tag as the last one, float (labels,).
    """

    start: Tensor
    transitions: Tensor
    end: Tensor


def crf_negative_log_likelihood(
    emissions: Tensor, tags: Tensor, lengths: Tensor, chain: ChainScores
) -> Tensor:
    """Negative log-likelihood of the true path of each sequence among all paths.

    Args:
        emissions: Score of each tag for each item, float (n, longest, labels), with any finite
            values after the end of a sequence.
        tags: The true tags, int64 (n, longest), with any tag from 0 to labels - 1 after the end of
            a sequence.
        lengths: Number of items of each sequence, at least 1, int64 (n,).
        chain: Scores of starts, transitions and ends.

    Returns:
        Float32 (n,), in nats.
    """
    return log_partition(emissions, lengths, chain) - path_scores(emissions, tags, lengths, chain)


def log_partition(emissions: Tensor, lengths: Tensor, chain: ChainScores) -> Tensor:
    """Logarithm of the sum of exp(score) over all paths of each sequence; float32 (n,).

    It is computed by the forward algorithm. Arguments are those of `crf_negative_log_likelihood`.
    """
    emissions, transitions = emissions.float(), chain.transitions.float()
    # (n, labels): log of the sum of exp(score) over all paths so far that end in each tag.
    scores = chain.start.float() + emissions[:, 0]
    for step in range(1, emissions.shape[1]):
        longer = torch.logsumexp(scores.unsqueeze(2) + transitions, dim=1) + emissions[:, step]
        scores = torch.where((step < lengths).unsqueeze(1), longer, scores)
    return torch.logsumexp(scores + chain.end.float(), dim=1)


def path_scores(emissions: Tensor, tags: Tensor, lengths: Tensor, chain: ChainScores) -> Tensor:
    """Score of one path of each sequence; float32 (n,).

    Arguments are those of `crf_negative_log_likelihood`.
    """
    n, longest = tags.shape
    inside = torch.arange(longest, device=tags.device) < lengths.unsqueeze(1)
    emitted = emissions.float().gather(2, tags.unsqueeze(2)).squeeze(2)
    moved = chain.transitions.float()[tags[:, :-1], tags[:, 1:]]
    last = tags[torch.arange(n, device=tags.device), lengths - 1]
    return (
        (emitted * inside).sum(dim=1)
        + (moved * inside[:, 1:]).sum(dim=1)
        + chain.start.float()[tags[:, 0]]
        + chain.end.float()[last]
    )


_FORBIDDEN = -1e4  # score of forbidden labels and transitions; finite, so gradients are finite


class LinearChainCrf(nn.Module):
    """Scores of the first label, of the last label and of neighbouring labels of a sequence.

    Attributes:
        start: Score of each label as the first one, (labels,).
        transitions: Score of label j directly after label i, (labels, labels).
        end: Score of each label as the last one, (labels,).
    """

    def __init__(self, labels: Sequence[str], scheme: Scheme | None) -> None:
        """Start with scores of 0.

        Args:
            labels: The labels, in order.
            scheme: Scheme of the labels, which says which label may follow which; None: every label
                may follow every label.
        """
        super().__init__()
        n = len(labels)
        self.start = nn.Parameter(torch.zeros(n))
        self.transitions = nn.Parameter(torch.zeros(n, n))
        self.end = nn.Parameter(torch.zeros(n))
        allowed = np.ones((n + 1, n + 1), dtype=bool)
        if scheme is not None:
            ends = [*labels, None]  # None: before the first and after the last label
            allowed[:] = [[may_follow(one, other, scheme) for other in ends] for one in ends]
        self.register_buffer("allowed", torch.from_numpy(allowed), persistent=False)

    def chain(self) -> ChainScores:
        """Return the scores, with -10,000 for labels and transitions that the scheme forbids.

        A scheme can forbid a label at the start, at the end, or directly after another label.
        """
        allowed = self.get_buffer("allowed")
        return ChainScores(
            self.start.masked_fill(~allowed[-1, :-1], _FORBIDDEN),
            self.transitions.masked_fill(~allowed[:-1, :-1], _FORBIDDEN),
            self.end.masked_fill(~allowed[:-1, -1], _FORBIDDEN),
        )

    def loss(self, emissions: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
        """Compute `crf_negative_log_likelihood` of sequences; float32 (n,)."""
        return crf_negative_log_likelihood(emissions, labels, lengths, self.chain())

    @torch.no_grad()
    def decode(self, emissions: Tensor | NDArray[np.float32]) -> list[int]:
        """Find the path of the highest score of one sequence, by the Viterbi algorithm.

        Args:
            emissions: Score of each label of each item, float (items, labels).

        Returns:
            The index of the label of each item. Of several best paths, the one with the smallest
            last label is taken; of several such paths, the one with the smallest label before it,
            and so on.
        """
        start, moves, end = (part.float().cpu().numpy() for part in self.chain())
        given = emissions.float().cpu().numpy() if isinstance(emissions, Tensor) else emissions
        if not len(given):
            return []
        scores, before = start + given[0], list[NDArray[np.int64]]()
        for row in given[1:]:
            paths = scores[:, None] + moves
            before.append(paths.argmax(axis=0))
            scores = paths.max(axis=0) + row
        path = [int((scores + end).argmax())]
        for best in reversed(before):
            path.append(int(best[path[-1]]))
        return path[::-1]
