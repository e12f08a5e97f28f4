"""Pre-training objectives: MLM with NSP or SOP, replaced token detection, distillation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from sbert_search.errors import ConfigError
from sbert_search.models.logit_losses import (
    cosine_loss,
    replaced_token_loss,
    soft_target_loss,
    token_cross_entropy,
)
from sbert_search.models.pretraining import MaskedBatch, MaskedLanguageModel, MaskedLMOutput
from sbert_search.models.replaced_token_detection import ReplacedTokenModel
from sbert_search.train.loop.objective import Batch, Losses, Sum

Unit = Literal["masked", "texts", "tokens"]
"""What a loss is summed over: masked tokens, texts (examples), or all tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveConfig:
    """The objective and its weights.

    The recipe's ``segments.kind`` decides whether NSP or SOP is added to ``masked``.

    Attributes:
        kind: ``masked``: masked language modelling. ``replaced``: replaced token detection.
            ``distilled``: masked language modelling with a teacher.
        replaced_weight: Weight of the discriminator's loss, λ in the ELECTRA paper.
        replaced_at: Whether the discriminator's loss is over all tokens, or over the masked ones
            only, which is "ELECTRA 15%" in table 5 of the paper.
        temperature: Temperature of the teacher's and the student's distributions.
        soft_weight: Weight of the divergence from the teacher's distribution; 0 turns it off.
        mlm_weight: Weight of the MLM loss when distilling; 0 turns it off.
        cosine_weight: Weight of the cosine loss of last hidden states; 0 turns it off.
        soft_at: Whether the distributions are compared at masked tokens or at all tokens.

    Sources: Clark et al. 2020, ELECTRA, section 2 (arXiv:2003.10555); for distillation, the weights
    and the temperature of huggingface/transformers' example for DistilBERT.
    """

    kind: Literal["masked", "replaced", "distilled"] = "masked"
    replaced_weight: float = 50.0
    replaced_at: Literal["tokens", "masked"] = "tokens"
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
            raise ConfigError(
                "All distillation weights are 0; set one of objective.soft_weight, mlm_weight and "
                "cosine_weight above 0."
            )


class PretrainingObjective(Protocol):
    """An objective over masked examples that declares the units of its losses."""

    @property
    def units(self) -> Mapping[str, Unit]:
        """The unit that each loss is summed over."""

    @property
    def accuracies(self) -> tuple[str, ...]:
        """Names of the metrics, besides the losses, in evaluation mode."""

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        """Run the model on a batch whose inputs are a `MaskedBatch`."""


@dataclass(frozen=True, slots=True)
class MaskedObjective:
    """Masked language modelling, optionally with next sentence or sentence order prediction.

    Source: Devlin et al. 2019, BERT, section 3.1 (arXiv:1810.04805); Lan et al. 2020, ALBERT,
    section 3.1, for the order of segments (arXiv:1909.11942).
    """

    pairs: Literal["nsp", "sop"] | None = None

    @property
    def units(self) -> Mapping[str, Unit]:
        """The unit that each loss is summed over."""
        units: dict[str, Unit] = {"mlm": "masked"}
        return units if self.pairs is None else {**units, self.pairs: "texts"}

    @property
    def accuracies(self) -> tuple[str, ...]:
        """Names of the metrics besides the losses."""
        return tuple(f"{name}_accuracy" for name in self.units)

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        """Compute the sums of the losses."""
        inputs = batch.inputs
        assert isinstance(inputs, MaskedBatch)
        guesses: MaskedLMOutput = model(inputs.tokens, inputs.positions)
        sums: dict[str, Sum] = {"mlm": token_cross_entropy(guesses.token_logits, inputs.labels)}
        metrics = (
            {}
            if model.training
            else {"mlm_accuracy": _correct(guesses.token_logits, inputs.labels)}
        )
        if self.pairs is not None:
            assert guesses.pair_logits is not None
            sums[self.pairs] = token_cross_entropy(guesses.pair_logits, inputs.pair_labels)
            metrics[f"{self.pairs}_accuracy"] = _correct(guesses.pair_logits, inputs.pair_labels)
        return Losses(sums, metrics=metrics)


@dataclass(frozen=True, slots=True)
class ReplacedObjective:
    """Replaced token detection (ELECTRA): the generator's MLM loss and the discriminator's loss.

    Source: Clark et al. 2020, ELECTRA (arXiv:2003.10555), section 2, and "ELECTRA 15%" in table 5
    for the loss over masked tokens only.
    """

    weight: float = 50.0  # of the discriminator's loss
    at: Literal["tokens", "masked"] = "tokens"  # of that loss; the metrics are over all tokens

    @property
    def units(self) -> Mapping[str, Unit]:
        """The unit that each loss is summed over."""
        return {"mlm": "masked", "rtd": self.at}

    @property
    def accuracies(self) -> tuple[str, ...]:
        """Names of the metrics besides the losses."""
        return ("rtd_accuracy", "rtd_recall", "rtd_precision")

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        """Compute the sums of the losses."""
        inputs = batch.inputs
        assert isinstance(inputs, MaskedBatch)
        assert isinstance(model, ReplacedTokenModel)
        output = model(inputs)
        predicted = output.logits > 0
        hits = (predicted & output.replaced).sum()
        logits, replaced = output.logits, output.replaced
        if self.at == "masked":
            logits, replaced = logits[inputs.positions], replaced[inputs.positions]
        return Losses(
            {
                "mlm": token_cross_entropy(output.generator_logits, inputs.labels),
                "rtd": replaced_token_loss(logits, replaced),
            },
            weights={"rtd": self.weight},
            metrics={
                "rtd_accuracy": ((predicted == output.replaced).sum(), len(predicted)),
                "rtd_recall": (hits, output.replaced.sum()),
                "rtd_precision": (hits, predicted.sum()),
            },
        )


class DistilledObjective:
    """Distillation: the student learns a teacher's token distributions and last hidden states.

    Source: Sanh et al. 2019, DistilBERT, section 2 (arXiv:1910.01108).
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
        """The unit that each loss is summed over."""
        units: dict[str, Unit] = {
            "soft": self._config.soft_at,
            "mlm": "masked",
            "cosine": "tokens",
        }
        return {name: units[name] for name in self._weights}

    @property
    def accuracies(self) -> tuple[str, ...]:
        """Names of the metrics besides the losses."""
        return ("mlm_accuracy",)

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        """Compute the sums of the losses; the teacher runs without dropout or gradients."""
        inputs = batch.inputs
        assert isinstance(inputs, MaskedBatch)
        self._teacher.to(inputs.positions.device)
        at_all_tokens = self._config.soft_at == "tokens"
        every = torch.arange(inputs.tokens.total, device=inputs.positions.device)
        positions = every if at_all_tokens else inputs.positions
        output_states = "cosine" in self._weights
        student: MaskedLMOutput = model(inputs.tokens, positions, output_states=output_states)
        with torch.no_grad():
            teacher: MaskedLMOutput = self._teacher(
                inputs.tokens, positions, output_states=output_states
            )
        masked_logits = (
            student.token_logits[inputs.positions] if at_all_tokens else student.token_logits
        )
        sums: dict[str, Sum] = {}
        if "soft" in self._weights:
            sums["soft"] = soft_target_loss(
                student.token_logits, teacher.token_logits, self._config.temperature
            )
        if "mlm" in self._weights:
            sums["mlm"] = token_cross_entropy(masked_logits, inputs.labels)
        if student.hidden_states is not None and teacher.hidden_states is not None:
            sums["cosine"] = cosine_loss(student.hidden_states, teacher.hidden_states)
        metrics = {} if model.training else {"mlm_accuracy": _correct(masked_logits, inputs.labels)}
        return Losses(sums, self._weights, metrics)


def _correct(logits: Tensor, labels: Tensor) -> Sum:
    """Count the positions at which the label has the highest logit, and all positions."""
    return (logits.argmax(-1) == labels).sum(), len(labels)
