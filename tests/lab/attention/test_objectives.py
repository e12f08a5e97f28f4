from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sbert_search.errors import EvaluationError
from sbert_search.evaluate.metrics.correlation import spearman
from sbert_search.lab.attention.pruning import MaskedTokens, PairSimilarity
from sbert_search.models.pretraining import MaskedLanguageModel
from tests.lab.attention.test_pruning import PAIRS, TEXTS
from tests.models.tiny import tiny_bi_encoder, tiny_encoder, tiny_tokenizer

GOLD = [float(n % 6) for n in range(16)]


def cosines(folder: Path, pairs: list[tuple[str, str]]) -> np.ndarray:
    """Cosines of pairs, each pair computed alone."""
    from sbert_search.embed.embedder import Embedder

    embedder = Embedder(tiny_bi_encoder(folder))
    both = [F.normalize(torch.from_numpy(embedder.encode(list(pair))), dim=-1) for pair in pairs]
    return np.array([float(a @ b) for a, b in both])


def test_losses_of_pairs_are_squared_differences(tmp_path: Path) -> None:
    objective = PairSimilarity(tiny_bi_encoder(tmp_path), PAIRS, GOLD, seed=3)
    rows = np.random.default_rng(3).permutation(16)
    expected = (cosines(tmp_path, PAIRS) - np.array(GOLD) / 5) ** 2
    got = torch.cat([batch.losses() for batch in objective.fit_batches()]).numpy()
    assert got == pytest.approx(expected[rows[:8]], abs=1e-5)


def test_the_score_of_pairs_is_of_the_other_half(tmp_path: Path) -> None:
    objective = PairSimilarity(tiny_bi_encoder(tmp_path), PAIRS, GOLD, seed=3)
    rows = np.random.default_rng(3).permutation(16)[8:]
    expected = spearman(cosines(tmp_path, PAIRS)[rows], np.array(GOLD)[rows])
    assert objective.score() == pytest.approx(expected, abs=0.02)


def test_masked_losses_are_means_of_examples_and_scores_means_of_tokens(tmp_path: Path) -> None:
    model = MaskedLanguageModel(tiny_encoder(initializer_range=0.3), tiny_tokenizer(tmp_path))
    objective = MaskedTokens(model.eval(), TEXTS)
    batches = list(objective.fit_batches())
    losses = torch.cat([batch.losses() for batch in batches])
    assert len(losses) == sum(batch.examples for batch in batches)
    assert losses.min() >= 0
    vocabulary = model.encoder.config.vocab_size
    assert 0.5 * np.log(vocabulary) < objective.score() < 3 * np.log(vocabulary)
    assert objective.score() == MaskedTokens(model, TEXTS).score()


def test_groups_name_the_example_of_every_token(tmp_path: Path) -> None:
    objective = PairSimilarity(tiny_bi_encoder(tmp_path), PAIRS, GOLD)
    (batch,) = objective.fit_batches()
    assert batch.examples == 8
    assert set(batch.groups.tolist()) == set(range(8))


def test_too_little_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="at least 4 pairs with different scores"):
        PairSimilarity(tiny_bi_encoder(tmp_path), PAIRS[:3], GOLD[:3])
    with pytest.raises(EvaluationError, match="at least 4 pairs with different scores"):
        PairSimilarity(tiny_bi_encoder(tmp_path), PAIRS, [1.0] * 16)
    model = MaskedLanguageModel(tiny_encoder(), tiny_tokenizer(tmp_path))
    with pytest.raises(EvaluationError, match="too few to judge"):
        MaskedTokens(model.eval(), ["cat"])
