import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.modules import Pooling

from sbert_search.errors import ConfigError
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.heads import attention_mean, check_modes, pool

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def batch(lengths: list[int]) -> tuple[torch.Tensor, PackedTokens]:
    tokens = PackedTokens.from_lists([[1] * length for length in lengths])
    return torch.randn(tokens.total, 6), tokens


def theirs(modes: Any, states: torch.Tensor, tokens: PackedTokens) -> torch.Tensor:
    """Pool the same states, padded, as sentence-transformers does."""
    padded = tokens.pad(states)
    mask = tokens.pad(torch.ones(tokens.total)).long()
    features = {"token_embeddings": padded, "attention_mask": mask}
    pooled: torch.Tensor = Pooling(6, modes)(features)["sentence_embedding"]
    return pooled


@pytest.mark.parametrize(
    "modes", [*((mode,) for mode in MODES), *itertools.combinations(MODES[:3], 2), MODES]
)
def test_every_mode_equals_sentence_transformers(modes: tuple[str, ...]) -> None:
    states, tokens = batch([3, 3, 1, 5, 2, 5])
    torch.testing.assert_close(pool(states, tokens, modes), theirs(modes, states, tokens))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.sampled_from(MODES))
@settings(max_examples=40, deadline=None)
def test_company_does_not_change_a_vector(lengths: list[int], mode: str) -> None:
    states, tokens = batch(lengths)
    pooled = pool(states, tokens, [mode])
    for row, part in enumerate(torch.split(states, lengths)):
        alone = pool(part, PackedTokens.from_lists([[1] * lengths[row]]), [mode])
        torch.testing.assert_close(alone[0], pooled[row], atol=1e-6, rtol=1e-6)


def test_half_precision_states_are_summed_in_fp32() -> None:
    tokens = PackedTokens.from_lists([[1] * 4096])
    states = torch.full((4096, 1), 1.01, dtype=torch.bfloat16)
    mean = pool(states, tokens, ["mean"])
    assert mean.dtype == torch.float32
    assert mean.item() == pytest.approx(float(states[0, 0]), abs=1e-6)


def test_attention_mean_weighs_by_what_the_first_token_attends_to() -> None:
    states, tokens = batch([2, 3])
    first = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]])  # one head
    second = torch.tensor([[[0.2, 0.3, 0.5], [1, 0, 0], [0, 1, 0]]])
    pooled = attention_mean(states, tokens, [first, second])
    torch.testing.assert_close(pooled[0], 0.25 * states[0] + 0.75 * states[1])
    torch.testing.assert_close(pooled[1], 0.2 * states[2] + 0.3 * states[3] + 0.5 * states[4])


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        (["median"], "Unknown pooling mode 'median'; known: attention_mean, cls"),
        ([], "Unknown pooling mode nothing"),
        (["attention_mean", "cls"], "cannot be concatenated"),
    ],
)
def test_impossible_modes_are_refused(modes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_modes(modes)
