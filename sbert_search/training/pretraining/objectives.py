"""What a model is pre-trained for: masked words and pairs, replaced tokens, or a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from sbert_search.errors import ConfigError
from sbert_search.losses.token import (
    cosine_loss,
    replaced_token_loss,
    soft_target_loss,
    token_cross_entropy,
)
from sbert_search.models.pretraining import MaskedBatch, MaskedLanguageModel, MaskedLMOutput
from sbert_search.models.replaced_token_detection import ReplacedTokenModel
from sbert_search.training.loop.objective import Batch, Losses, Sum

Unit = Literal["masked", "texts", "tokens"]
"""What a loss is a sum over: masked tokens, examples, or all tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveConfig:
    """What is learnt; whether pairs are judged follows from ``segments.kind``.

    Attributes:
        kind: ``masked``: guess hidden words. ``replaced``: find the words that a generator put in.
            ``distilled``: guess hidden words as a teacher does.
        replaced_weight: λ, of the discriminator's loss beside the generator's.
        temperature: Of the teacher's and the student's distributions.
        soft_weight: Of the divergence from the teacher's distribution; 0 switches it off.
        mlm_weight: Of the true words when distilling; 0 switches it off.
        cosine_weight: Of the angle between last hidden states; 0 switches it off.
        soft_at: Whether the teacher's distribution is compared at masked tokens or at all.

    Sources: Clark et al. 2020, ELECTRA, section 3.1; the weights and the temperature of
    huggingface/transformers' distillation example for DistilBERT.
    """

    kind: Literal["masked", "replaced", "distilled"] = "masked"
    replaced_weight: float = 50.0
    temperature: float = 2.0
    soft_weight: float = 5.0
    mlm_weight: float = 2.0
    cosine_weight: float = 1.0
    soft_at: Literal["masked", "tokens"] = "masked"

    def __post_init__(self) -> None:
        weights = ("replaced_weight", "soft_weight", "mlm_weight", "cosine_weight")
        if wrong := [name for name in weights if not getattr(self, name) >= 0]:
            raise ConfigError(
                f"objective.{wrong[0]} is {getattr(self, wrong[0])}; it must not be below 0."
            )
        if self.temperature <= 0:
            raise ConfigError(f"objective.temperature is {self.temperature}; it must be above 0.")
        if self.kind == "distilled" and not any(map(self.__getattribute__, weights[1:])):
            raise ConfigError("Every weight of the distillation is 0; switch one loss on.")


class PretrainingObjective(Protocol):
    """An objective over masked examples that says what its losses count."""

    @property
    def units(self) -> Mapping[str, Unit]:
        """What each loss is a sum over."""

    @property
    def accuracies(self) -> tuple[str, ...]:
        """Names of the other metrics that it gives in evaluation mode."""

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        """Run the model on a batch whose inputs are a `MaskedBatch`."""


@dataclass(frozen=True, slots=True)
class MaskedObjective:
    """Masked words, and the pairs of segments when they are named.

    Attributes:
        pairs: Name of the loss of the pairs, nsp or sop; None: they are not judged.

    Source: Devlin et al. 2019, BERT, section 3.1 (arXiv:1810.04805); Lan et al. 2020, ALBERT,
    section 3.1, for the order of segments (arXiv:1909.11942).
    """

    pairs: Literal["nsp", "sop"] | None = None

    @property
    def units(self) -> Mapping[str, Unit]:
        """What each loss is a sum over."""
        words: dict[str, Unit] = {"mlm": "masked"}
        return words if self.pairs is None else {**words, self.pairs: "texts"}

    @property
    def accuracies(self) -> tuple[str, ...]:
        """Names of the other metrics."""
        return tuple(f"{name}_accuracy" for name in self.units)

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        """Sum the losses of a batch."""
        given: MaskedBatch = batch.inputs
        guesses: MaskedLMOutput = model(given.tokens, given.positions)
        sums: dict[str, Sum] = {"mlm": token_cross_entropy(guesses.token_logits, given.labels)}
        metrics = (
            {} if model.training else {"mlm_accuracy": _right(guesses.token_logits, given.labels)}
        )
        if self.pairs is not None:
            assert guesses.pair_logits is not None
            sums[self.pairs] = token_cross_entropy(guesses.pair_logits, given.pair_labels)
            metrics[f"{self.pairs}_accuracy"] = _right(guesses.pair_logits, given.pair_labels)
        return Losses(sums, metrics=metrics)


@dataclass(frozen=True, slots=True)
class ReplacedObjective:
    """The generator's masked words, and which tokens of its draws were replaced.

    Attributes:
        weight: Of the discriminator's loss.
    """

    weight: float = 50.0

    @property
    def units(self) -> Mapping[str, Unit]:
        """What each loss is a sum over."""
        return {"mlm": "masked", "rtd": "tokens"}

    @property
    def accuracies(self) -> tuple[str, ...]:
        """Names of the other metrics."""
        return ("rtd_accuracy", "rtd_recall", "rtd_precision")

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        """Sum the losses of a batch, every real token counted."""
        given: MaskedBatch = batch.inputs
        assert isinstance(model, ReplacedTokenModel)
        found = model(given)
        told = found.logits > 0
        hits = (told & found.replaced).sum()
        return Losses(
            {
                "mlm": token_cross_entropy(found.generator_logits, given.labels),
                "rtd": replaced_token_loss(found.logits, found.replaced),
            },
            weights={"rtd": self.weight},
            metrics={
                "rtd_accuracy": ((told == found.replaced).sum(), len(told)),
                "rtd_recall": (hits, found.replaced.sum()),
                "rtd_precision": (hits, told.sum()),
            },
        )


class DistilledObjective:
    """What a teacher says of hidden words, and its hidden states.

    Source: Sanh et al. 2019, DistilBERT, section 3 (arXiv:1910.01108).
    """

    def __init__(self, teacher: MaskedLanguageModel, config: ObjectiveConfig) -> None:
        self._teacher, self._config = teacher.eval().requires_grad_(False), config
        named = {
            "soft": config.soft_weight,
            "mlm": config.mlm_weight,
            "cosine": config.cosine_weight,
        }
        self._weights = {name: weight for name, weight in named.items() if weight}

    @property
    def units(self) -> Mapping[str, Unit]:
        """What each loss is a sum over."""
        units: dict[str, Unit] = {
            "soft": self._config.soft_at,
            "mlm": "masked",
            "cosine": "tokens",
        }
        return {name: units[name] for name in self._weights}

    @property
    def accuracies(self) -> tuple[str, ...]:
        """Names of the other metrics."""
        return ("mlm_accuracy",)

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        """Sum the losses of a batch; the teacher runs without dropout and without gradients."""
        given: MaskedBatch = batch.inputs
        self._teacher.to(given.positions.device)
        everywhere = self._config.soft_at == "tokens"
        rows = torch.arange(given.tokens.total, device=given.positions.device)
        asked = rows if everywhere else given.positions
        output_states = "cosine" in self._weights
        ours: MaskedLMOutput = model(given.tokens, asked, output_states=output_states)
        with torch.no_grad():
            theirs: MaskedLMOutput = self._teacher(given.tokens, asked, output_states=output_states)
        words = ours.token_logits[given.positions] if everywhere else ours.token_logits
        sums: dict[str, Sum] = {}
        if "soft" in self._weights:
            sums["soft"] = soft_target_loss(
                ours.token_logits, theirs.token_logits, self._config.temperature
            )
        if "mlm" in self._weights:
            sums["mlm"] = token_cross_entropy(words, given.labels)
        if ours.hidden_states is not None and theirs.hidden_states is not None:
            sums["cosine"] = cosine_loss(ours.hidden_states, theirs.hidden_states)
        metrics = {} if model.training else {"mlm_accuracy": _right(words, given.labels)}
        return Losses(sums, self._weights, metrics)


def _right(logits: Tensor, labels: Tensor) -> Sum:
    """Count the labels that get the highest logit."""
    return (logits.argmax(-1) == labels).sum(), len(labels)
