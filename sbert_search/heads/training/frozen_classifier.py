"""Train only the head of a classifier, or a linear layer in its place, on cached states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sbert_search.heads.training.frozen import CachedStates, train_only
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.train.data.token_table import TokenTable


class FrozenClassifier(nn.Module):
    """A classifier whose encoder is frozen; its head, or a linear layer in its place, is trained.

    Attributes:
        classifier: The classifier.
        probe: The linear layer; it starts with the weights of the classifier's last layer.
        is_probe: Whether ``probe`` is trained; if not, both layers of the classifier's head are.
    """

    def __init__(self, classifier: SequenceClassifier, *, probe: bool) -> None:
        super().__init__()
        self.classifier = classifier
        self.probe = nn.Linear(classifier.out.in_features, classifier.out.out_features)
        self.probe.load_state_dict(classifier.out.state_dict())
        head = [*classifier.inner.parameters(), *classifier.out.parameters()]
        self.is_probe = probe
        train_only(self, [*self.probe.parameters()] if probe else head)

    def classify(self, states: Tensor) -> Tensor:
        """Compute logits, float32 (batch, labels), from the states of the texts."""
        if not self.is_probe:
            return self.classifier.classify(states)
        logits: Tensor = self.probe(states.to(self.probe.weight.dtype))
        return logits

    def complete(self) -> SequenceClassifier:
        """Return the classifier; a trained probe is first written into its head."""
        if self.is_probe:
            self.classifier.become_linear(self.probe)
        return self.classifier

    def save(self, path: Path) -> None:
        """Write the classifier to a folder."""
        self.complete().save(path)


def cached_states(
    model: SequenceClassifier, table: TokenTable, device: torch.device, out: Path, rank: int
) -> CachedStates:
    """Compute the state of each row that the head reads, by the encoder without dropout."""
    model.to(device).eval()
    return CachedStates.compute(
        lambda rows: model.states(table.pack(rows).to(device)),
        table.lengths,
        np.ones(len(table.lengths), dtype=np.int64),
        model.encoder,
        out / f"states-{rank}.npy",
    )
