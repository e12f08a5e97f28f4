"""The perturbation stays in its ball, changes the output more than noise, and leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from sbert_search.errors import ConfigError
from sbert_search.heads.adversarial import (
    AdversarialConfig,
    perturbed_by,
    squared_difference,
    symmetric_binary_kl,
    symmetric_kl,
    virtual_adversarial,
)
from sbert_search.models.sequence_classifier import SequenceClassifier
from tests.models.tiny import TEXTS, tiny_encoder, tiny_tokenizer


@pytest.fixture
def model(tmp_path: Path) -> SequenceClassifier:
    encoder = tiny_encoder(pooler=True, initializer_range=0.3)
    return SequenceClassifier(encoder, tiny_tokenizer(tmp_path), labels=["a", "b", "c"]).eval()


@pytest.mark.parametrize("kind", ["sift", "smart"])
def test_ascent_finds_a_larger_change_than_noise(
    model: SequenceClassifier, kind: Literal["sift", "smart"]
) -> None:
    tokens = model.pack(model.encode([(text, None) for text in TEXTS]))
    clean = model(tokens)

    def change(step: float, steps: int = 3) -> Tensor:
        torch.manual_seed(0)
        config = AdversarialConfig(kind=kind, step=step, steps=steps, radius=0.1)
        return virtual_adversarial(
            lambda: model(tokens), clean, symmetric_kl, model.encoder, tokens, config
        )

    noise, found = change(1e-12), change(0.02)
    assert found > 2 * noise > 0
    assert torch.equal(model(tokens), clean)  # the hook is gone
    torch.autograd.backward(found)
    gradient = model.encoder.embeddings.word.weight.grad
    assert gradient is not None
    assert bool((gradient != 0).any())


def test_normalised_embeddings_are_perturbed_whatever_their_scale(
    model: SequenceClassifier,
) -> None:
    embeddings, tokens = model.encoder.embeddings, model.pack(model.encode([("a cat", None)]))
    delta = torch.full((tokens.total, 16), 0.5)
    with torch.no_grad():
        embeddings.norm.weight.mul_(3)
        plain = embeddings(tokens)
        with perturbed_by(model.encoder, delta, AdversarialConfig(kind="sift")):
            moved = embeddings(tokens)
    torch.testing.assert_close(moved - plain, delta * embeddings.norm.weight)


def test_divergences_are_those_of_the_textbook() -> None:
    x, y = torch.tensor([[0.2, -1.0, 0.5]]), torch.tensor([[1.0, 0.3, -0.4]])
    p, q = x.softmax(-1), y.softmax(-1)
    expected = (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
    torch.testing.assert_close(symmetric_kl(x, y), expected)
    pairs = [torch.stack([torch.zeros(3), logits[0]], dim=-1) for logits in (x, y)]
    torch.testing.assert_close(symmetric_binary_kl(x, y), symmetric_kl(*pairs) / 3)
    assert float(squared_difference(x, x + 2)) == pytest.approx(12.0)
    assert float(symmetric_kl(x, x)) == 0


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"adversarial\.radius is 0\.0"):
        AdversarialConfig(radius=0.0)
    with pytest.raises(ConfigError, match=r"adversarial\.steps is 0"):
        AdversarialConfig(steps=0)
