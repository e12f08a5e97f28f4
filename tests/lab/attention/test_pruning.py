from pathlib import Path

import numpy as np
import pytest
import torch

from sbert_search.lab.attention.pruning import (
    MaskedTokens,
    Objective,
    PairSimilarity,
    Pruning,
    Removal,
    gated,
    head_importance,
    prune,
)
from sbert_search.models.pretraining import MaskedLanguageModel
from tests.models.tiny import WORDS, tiny_bi_encoder, tiny_encoder, tiny_tokenizer

TEXTS = [" ".join(np.random.default_rng(n).choice(WORDS, 30)) + "." for n in range(20)]
PAIRS = [(TEXTS[n][:20], TEXTS[n + 1][:30]) for n in range(16)]


def objective_of(kind: str, folder: Path) -> Objective:
    if kind == "pairs":
        model = tiny_bi_encoder(folder)
        with torch.no_grad():
            for parameter in model.encoder.blocks.parameters():
                parameter.mul_(10.0)
        return PairSimilarity(model, PAIRS, [n % 6 for n in range(16)])
    encoder = tiny_encoder(initializer_range=0.3)
    return MaskedTokens(MaskedLanguageModel(encoder, tiny_tokenizer(folder)).eval(), TEXTS)


@pytest.mark.parametrize("kind", ["pairs", "masked"])
def test_importance_is_the_slope_of_each_gate(kind: str, tmp_path: Path) -> None:
    objective = objective_of(kind, tmp_path)
    got = head_importance(objective)
    slopes = np.zeros_like(got)
    examples, step = 0, 1e-2
    for batch in objective.fit_batches():
        examples += batch.examples
        for layer, head in np.ndindex(got.shape):
            losses = []
            for sign in (1, -1):
                gates = torch.ones(got.shape)
                gates[layer, head] += sign * step
                with gated(objective.encoder, gates), torch.no_grad():
                    losses.append(batch.losses().double())
            slopes[layer, head] += ((losses[0] - losses[1]) / (2 * step)).abs().sum().item()
    assert got == pytest.approx(slopes / examples, rel=0.02, abs=1e-4)


@pytest.mark.parametrize("kind", ["pairs", "masked"])
def test_the_least_important_heads_go_first(kind: str, tmp_path: Path) -> None:
    objective = objective_of(kind, tmp_path)
    found = prune(objective)
    scaled = np.array(found.importance)
    assert np.square(scaled).sum(axis=1) == pytest.approx(1.0)
    in_order = [scaled[layer - 1, head - 1] for layer, head in found.order]
    assert in_order == sorted(in_order)
    assert found.removals[0] == Removal(removed=0, score=objective.score())
    assert [each.removed for each in found.removals] == [0, 1, 2, 3]
    gates = torch.ones(2, 2)
    for layer, head in found.order[:2]:
        gates[layer - 1, head - 1] = 0
    with gated(objective.encoder, gates):
        assert found.removals[2].score == pytest.approx(objective.score())


@pytest.mark.parametrize(
    ("higher", "scores", "removable"),
    [
        (True, [0.80, 0.81, 0.795, 0.70], 2),
        (True, [0.80, 0.60, 0.795], 2),
        (False, [2.0, 2.01, 2.03], 1),
        (False, [2.0, 2.1], 0),
    ],
)
def test_heads_are_removable_within_one_percent(
    higher: bool, scores: list[float], removable: int
) -> None:
    removals = tuple(Removal(removed=n, score=score) for n, score in enumerate(scores))
    found = Pruning(metric="m", higher_is_better=higher, importance=(), order=(), removals=removals)
    assert found.removable == removable
