"""Modules after an encoder: a dense layer, normalisation, the head of a sequence classifier.

A layout is the published file format of one model family, such as bert or roberta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.config import from_mapping
from sbert_search.errors import ConfigError

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
    """Make the activation with the class path that a model folder names.

    The path is looked up in `ACTIVATIONS`; nothing is imported by name.

    Raises:
        ConfigError: `ACTIVATIONS` has no such path.
    """
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
        """Make a layer from the ``config.json`` of its module.

        Raises:
            ConfigError: A size is missing or not positive, a value has the wrong type, or the
                activation is unknown.
        """
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
    """Names of the layers with which one layout classifies a sequence by its first token.

    Attributes:
        architecture: Name of the class in transformers.
        dense: Name of the linear layer before the last layer; None: this layer is the pooler of the
            encoder.
        activation: Class of the activation after ``dense`` or the pooler.
        out: Name of the last layer.
    """

    architecture: str
    dense: str | None
    activation: type[nn.Module]
    out: str


SEQUENCE_HEADS = {
    "bert": SequenceHead("BertForSequenceClassification", None, nn.Tanh, "classifier"),
    "albert": SequenceHead("AlbertForSequenceClassification", None, nn.Tanh, "classifier"),
    "roberta": SequenceHead(
        "RobertaForSequenceClassification", "classifier.dense", nn.Tanh, "classifier.out_proj"
    ),
    "electra": SequenceHead(
        "ElectraForSequenceClassification", "classifier.dense", nn.GELU, "classifier.out_proj"
    ),
    "distilbert": SequenceHead(
        "DistilBertForSequenceClassification", "pre_classifier", nn.ReLU, "classifier"
    ),
    "deberta": SequenceHead(
        "DebertaForSequenceClassification", "pooler.dense", nn.GELU, "classifier"
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
