"""Heads of tokens: the token head, which predicts masked tokens, and a linear-chain CRF.

A path gives each item of a sequence one tag. The score of a path is the sum of the emissions (the
scores that the model gives to each tag for its item), the transitions (a score for each two
neighbouring tags), the start score of the first tag, and the end score of the last tag.

Source: Lafferty, McCallum & Pereira 2001, Conditional Random Fields, section 3; Lample et al. 2016,
Neural Architectures for Named Entity Recognition, section 2.2 (arXiv:1603.01360).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import ACTIVATIONS, norm_of
from sbert_search.models.encoder.training_layers import Linear, linear
from sbert_search.tag_schemes import Scheme, may_follow


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenHeadLayout:
    """The names in one layout of the heads for pre-training; None: it has no such part."""

    masked: str  # class in transformers that has only the token head
    dense: str  # layer before the output matrix
    norm: str  # layer norm after ``dense``
    # Bias over the vocabulary: a checkpoint has one or more of these names. The first is written.
    biases: tuple[str, ...]
    decoder: str  # output matrix, which equals the embedding table
    activation: str | None = None  # after ``dense``; None: that of the encoder
    paired: str | None = None  # class in transformers that also classifies pairs of segments
    pair: str | None = None  # classifier of pairs in ``paired``, which reads the pooler's output
    settings: Mapping[str, object] = field(default_factory=dict)  # keys of ``config.json``
    positions: str | None = None  # position table of DeBERTa's enhanced mask decoder


_ROBERTA = TokenHeadLayout(
    masked="RobertaForMaskedLM",
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    biases=("lm_head.bias", "lm_head.decoder.bias"),
    decoder="lm_head.decoder.weight",
    activation="gelu",
)
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
    "roberta": _ROBERTA,
    "xlm-roberta": replace(_ROBERTA, masked="XLMRobertaForMaskedLM"),
    "mpnet": replace(_ROBERTA, masked="MPNetForMaskedLM"),
    "modernbert": TokenHeadLayout(
        masked="ModernBertForMaskedLM",
        dense="head.dense",
        norm="head.norm",
        biases=("decoder.bias",),
        decoder="decoder.weight",
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
        self.dense = Linear(config.hidden_size, width, bias=config.has_biases)
        self.norm = norm_of(config, width)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        fill_fresh(self.dense, config)

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """Compute logits (n, vocab) from states (n, hidden) and the table (vocab, table_size)."""
        return linear(self.norm(self.activation(self.dense(states))), table, self.bias)


def fill_fresh(linear: nn.Linear, config: EncoderConfig) -> None:
    """Initialise a layer of a head as `Encoder` initialises its layers."""
    nn.init.normal_(linear.weight, std=config.initializer_range)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


class ChainScores(NamedTuple):
    """The parts of a path's score that depend only on the tags, not on the items."""

    start: Tensor  # score of each tag as the first one, float (labels,)
    transitions: Tensor  # score of tag j directly after tag i, float (labels, labels)
    end: Tensor  # score of each tag as the last one, float (labels,)


def crf_negative_log_likelihood(
    emissions: Tensor, tags: Tensor, lengths: Tensor, chain: ChainScores
) -> Tensor:
    """Negative log-likelihood of the true path of each sequence among all paths, float32 (n,).

    Emissions are float (n, longest, labels), ``tags`` int64 (n, longest), and ``lengths``, each at
    least 1, int64 (n,). Emissions after the end of a sequence are any finite values, and tags there
    any tags.
    """
    return log_partition(emissions, lengths, chain) - path_scores(emissions, tags, lengths, chain)


def log_partition(emissions: Tensor, lengths: Tensor, chain: ChainScores) -> Tensor:
    """Logarithm of the sum of exp(score) over all paths of each sequence; float32 (n,)."""
    # This is the forward algorithm.
    emissions, transitions = emissions.float(), chain.transitions.float()
    # (n, labels): log of the sum of exp(score) over all paths so far that end in each tag.
    scores = chain.start.float() + emissions[:, 0]
    for step in range(1, emissions.shape[1]):
        longer = torch.logsumexp(scores.unsqueeze(2) + transitions, dim=1) + emissions[:, step]
        scores = torch.where((step < lengths).unsqueeze(1), longer, scores)
    return torch.logsumexp(scores + chain.end.float(), dim=1)


def path_scores(emissions: Tensor, tags: Tensor, lengths: Tensor, chain: ChainScores) -> Tensor:
    """Score of one path of each sequence; float32 (n,)."""
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
    """Trained `ChainScores`, with labels as tags."""

    def __init__(self, labels: Sequence[str], scheme: Scheme | None) -> None:
        """Start with scores of 0; without a scheme, every label may follow every label."""
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
        """Return the scores, with -10,000 for what the scheme forbids."""
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

        Emissions are float (items, labels). Of several best paths, the one with the smallest last
        label is taken; of several such paths, the one with the smallest label before it, and so on.
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
