"""Pre-training objectives: MLM with NSP or SOP, replaced token detection, distillation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import torch
from torch import Tensor, nn

from sbert_search.declared import Bounds, check
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
_Weight = Annotated[float, Bounds(0)]


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
    replaced_weight: _Weight = 50.0
    replaced_at: Literal["tokens", "masked"] = "tokens"
    temperature: Annotated[float, Bounds(above=0)] = 2.0
    soft_weight: _Weight = 5.0
    mlm_weight: _Weight = 2.0
    cosine_weight: _Weight = 1.0
    soft_at: Literal["masked", "tokens"] = "masked"

    def __post_init__(self) -> None:
        check(self, table="objective.")
        if self.kind == "distilled" and not (
            self.soft_weight or self.mlm_weight or self.cosine_weight
        ):
            raise ConfigError(
                "All distillation weights are 0; set one of objective.soft_weight, mlm_weight and "
                "cosine_weight above 0."
            )


class PretrainingObjective(Protocol):
    """An objective over masked examples that declares the units of its losses."""

    units: Mapping[str, Unit]  # the unit that each loss is summed over
    accuracies: tuple[str, ...]  # names of the metrics, besides the losses, in evaluation mode

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        """Run the model on a batch whose inputs are a `MaskedBatch`."""


class MaskedObjective:
    """Masked language modelling, optionally with next sentence or sentence order prediction.

    Source: Devlin et al. 2019, BERT, section 3.1 (arXiv:1810.04805); Lan et al. 2020, ALBERT,
    section 3.1, for the order of segments (arXiv:1909.11942).
    """

    def __init__(self, pairs: Literal["nsp", "sop"] | None = None) -> None:
        self.pairs = pairs
        self.units: Mapping[str, Unit] = {"mlm": "masked"}
        if pairs is not None:
            self.units = {"mlm": "masked", pairs: "texts"}
        self.accuracies = tuple(f"{name}_accuracy" for name in self.units)

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


class ReplacedObjective:
    """Replaced token detection (ELECTRA): the generator's MLM loss and the discriminator's loss.

    ``weight`` is that of the discriminator's loss, and ``at`` the tokens it is over; the metrics
    are over all tokens.

    Source: Clark et al. 2020, ELECTRA (arXiv:2003.10555), section 2, and "ELECTRA 15%" in table 5
    for the loss over masked tokens only.
    """

    def __init__(self, weight: float = 50.0, at: Literal["tokens", "masked"] = "tokens") -> None:
        self.weight, self.at = weight, at
        self.units: Mapping[str, Unit] = {"mlm": "masked", "rtd": at}
        self.accuracies: tuple[str, ...] = ("rtd_accuracy", "rtd_recall", "rtd_precision")

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
        named: list[tuple[str, float, Unit]] = [
            ("soft", config.soft_weight, config.soft_at),
            ("mlm", config.mlm_weight, "masked"),
            ("cosine", config.cosine_weight, "tokens"),
        ]
        self._weights = {name: weight for name, weight, _ in named if weight}
        self.units: Mapping[str, Unit] = {name: unit for name, weight, unit in named if weight}
        self.accuracies: tuple[str, ...] = ("mlm_accuracy",)

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
