"""Modules after an encoder: pooling, a dense layer, normalisation, the head of a classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.config import from_mapping
from sbert_search.errors import ConfigError
from sbert_search.models.encoder.packed import PackedTokens

_CLASSES: tuple[type[nn.Module], ...] = (
    nn.Identity,
    nn.Tanh,
    nn.Sigmoid,
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
)
ACTIVATIONS = {f"{cls.__module__}.{cls.__name__}": cls for cls in _CLASSES}


def make_activation(path: str) -> nn.Module:
    """Make an activation from its class path, by `ACTIVATIONS`; nothing is imported by name."""
    if path not in ACTIVATIONS:
        raise ConfigError(f"Unknown activation {path!r}; known: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[path]()


def activation_path(activation: nn.Module) -> str:
    """Class path of an activation, as it is written in model folders."""
    return f"{type(activation).__module__}.{type(activation).__name__}"


@dataclass(frozen=True)
class _DenseSettings:
    """The keys of a dense layer's ``config.json`` that this package uses."""

    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = activation_path(nn.Tanh())

    def __post_init__(self) -> None:
        for name in ("in_features", "out_features"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive.")


class Dense(nn.Module):
    """A linear layer with an activation, as sentence-transformers stores it."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation = nn.Tanh() if activation is None else activation

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> Dense:
        """Make a layer from the ``config.json`` of its module."""
        stated = from_mapping(_DenseSettings, settings, others=True)
        activation = make_activation(stated.activation_function)
        return cls(stated.in_features, stated.out_features, bias=stated.bias, activation=activation)

    def settings(self) -> dict[str, object]:
        """Settings for ``config.json``."""
        return {
            "in_features": self.linear.in_features,
            "out_features": self.linear.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": activation_path(self.activation),
        }

    def forward(self, embeddings: Tensor) -> Tensor:
        """Transform (batch, in_features) to (batch, out_features)."""
        out: Tensor = self.activation(self.linear(embeddings))
        return out


class Normalize(nn.Module):
    """Scale embeddings to norm 1; a zero vector stays zero."""

    def forward(self, embeddings: Tensor) -> Tensor:
        """Scale (batch, dim)."""
        return F.normalize(embeddings, dim=-1)


@dataclass(frozen=True, slots=True)
class SequenceHead:
    """Names of the layers with which one layout classifies a sequence by its first token."""

    architecture: str  # class in transformers
    dense: str | None  # linear layer before the last layer; None: the pooler of the encoder
    activation: type[nn.Module]  # after ``dense`` or the pooler
    out: str  # last layer
    activation_key: str = ""  # key of ``config.json`` that may name another activation
    norm: str | None = None  # layer norm after the activation; then no layer but ``out`` has a bias
    pooling_key: str = ""  # key of ``config.json`` that may name the pooling "mean"


SEQUENCE_HEADS = {
    "bert": SequenceHead("BertForSequenceClassification", None, nn.Tanh, "classifier"),
    "albert": SequenceHead("AlbertForSequenceClassification", None, nn.Tanh, "classifier"),
    "roberta": SequenceHead(
        "RobertaForSequenceClassification", "classifier.dense", nn.Tanh, "classifier.out_proj"
    ),
    "xlm-roberta": SequenceHead(
        "XLMRobertaForSequenceClassification", "classifier.dense", nn.Tanh, "classifier.out_proj"
    ),
    "mpnet": SequenceHead(
        "MPNetForSequenceClassification", "classifier.dense", nn.Tanh, "classifier.out_proj"
    ),
    "modernbert": SequenceHead(
        "ModernBertForSequenceClassification",
        "head.dense",
        nn.GELU,
        "classifier",
        activation_key="classifier_activation",
        norm="head.norm",
        pooling_key="classifier_pooling",
    ),
    "electra": SequenceHead(
        "ElectraForSequenceClassification", "classifier.dense", nn.GELU, "classifier.out_proj"
    ),
    "distilbert": SequenceHead(
        "DistilBertForSequenceClassification", "pre_classifier", nn.ReLU, "classifier"
    ),
    "deberta": SequenceHead(
        "DebertaForSequenceClassification",
        "pooler.dense",
        nn.GELU,
        "classifier",
        activation_key="pooler_hidden_act",
    ),
}

LINEAR_RANGES: dict[type[nn.Module], tuple[float, float]] = {
    nn.Tanh: (2.0**-10, 0.0),
    nn.GELU: (1.0, 32.0),
    nn.ReLU: (1.0, 32.0),
}
"""Scale and shift that bring hidden states into the range where an activation is almost linear.

The keys are the classes of the activations. `SequenceClassifier.become_linear` uses the values to
make a head with an activation compute a linear function.
"""


ATTENTION_MEAN = "attention_mean"  # the mode that `attention_mean` computes


def pool(hidden_states: Tensor, tokens: PackedTokens, modes: Sequence[str]) -> Tensor:
    """Pool the states of each text and concatenate the results of the modes.

    States are float (total, hidden), and ``modes`` are names in `POOLINGS`. The result is float32
    (batch, hidden x modes), not normalised. Sums are computed in float32.

    Source: Reimers & Gurevych 2019, Sentence-BERT, section 3 (arXiv:1908.10084).
    """
    # Adjacent texts of equal length (a run) are pooled together, so a batch sorted by length takes
    # few operations. On CUDA, each operation costs a kernel launch: all texts are pooled at once.
    if _saves_launches(hidden_states) and AT_ONCE.keys() >= set(modes):
        return torch.cat([AT_ONCE[mode](hidden_states, tokens) for mode in modes], dim=-1)
    parts = []
    runs = torch.split(hidden_states, tokens.run_sizes)
    for run, rows in zip(tokens.runs, runs, strict=True):
        states = rows.view(run.texts, run.length, -1)
        parts.append(torch.cat([POOLINGS[mode](states) for mode in modes], dim=-1))
    return torch.cat(parts)


def attention_mean(
    hidden_states: Tensor, tokens: PackedTokens, attentions: Sequence[Tensor]
) -> Tensor:
    """Average the states of each text, weighted by the attention of its first token to each token.

    States are those of the last layer, float (total, hidden), and ``attentions`` its probabilities
    for each text, (heads, length, length). The result is float32 (batch, hidden).
    """
    weights = torch.cat([probs[:, 0].mean(dim=0) for probs in attentions])  # (total,)
    weighted = hidden_states.float() * weights.float().unsqueeze(-1)
    return pool(weighted, tokens, ["sum"])


def check_modes(modes: Sequence[str]) -> None:
    """Refuse unknown pooling modes, and `ATTENTION_MEAN` combined with others."""
    known = set(POOLINGS) - {"sum"} | {ATTENTION_MEAN}
    unknown = [mode for mode in modes if mode not in known]
    if unknown or not modes:
        shown = repr(unknown[0]) if unknown else "nothing"
        raise ConfigError(f"Unknown pooling mode {shown}; known: {', '.join(sorted(known))}.")
    if ATTENTION_MEAN in modes and len(modes) > 1:
        raise ConfigError(f"{ATTENTION_MEAN} cannot be concatenated with other pooling modes.")


def _saves_launches(states: Tensor) -> bool:
    return states.is_cuda and not torch.is_grad_enabled()


def _sum(states: Tensor) -> Tensor:
    return states.sum(dim=1, dtype=torch.float32)


def _weighted_mean(states: Tensor) -> Tensor:
    """Average the states of each text; the weight of a token is its position, counted from 1.

    Source: Muennighoff 2022, SGPT, equation 2 (arXiv:2202.08904).
    """
    length = states.shape[1]
    weights = torch.arange(1, length + 1, device=states.device, dtype=torch.float32)
    return torch.einsum("tlh,l->th", states.float(), weights / weights.sum())


# Functions from the states of texts of equal length (texts, length, hidden) to float32 (texts,
# hidden).
POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda states: states[:, 0].float(),
    "max": lambda states: states.amax(dim=1).float(),
    "mean": lambda states: _sum(states) / states.shape[1],
    "mean_sqrt_len_tokens": lambda states: _sum(states) / states.shape[1] ** 0.5,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda states: states[:, -1].float(),
    "sum": _sum,
}


def _reduce_texts(states: Tensor, tokens: PackedTokens, how: str) -> Tensor:
    offsets = tokens.starts.to(torch.int64)
    # unsafe=True skips a check of the offsets, for which the CPU would have to wait for the device.
    return torch.segment_reduce(states.float(), how, offsets=offsets, unsafe=True)


# Functions from the states of all texts of a batch (total, hidden) to float32 (batch, hidden).
AT_ONCE: dict[str, Callable[[Tensor, PackedTokens], Tensor]] = {
    "cls": lambda states, tokens: states[tokens.first_rows].float(),
    "max": lambda states, tokens: _reduce_texts(states, tokens, "max"),
    "mean": lambda states, tokens: _reduce_texts(states, tokens, "mean"),
    "lasttoken": lambda states, tokens: states[tokens.starts[1:] - 1].float(),
    "sum": lambda states, tokens: _reduce_texts(states, tokens, "sum"),
}
