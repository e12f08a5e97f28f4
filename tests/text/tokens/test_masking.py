from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.errors import ConfigError
from sbert_search.text.tokens.masking import (
    MaskedTokens,
    MaskSettings,
    MaskVocabulary,
    continues_word,
    mask_tokens,
)
from sbert_search.text.tokens.vocabulary import SPECIAL_TOKENS

Ints = NDArray[np.int64]

N_WORDS, N_PIECES = 500, 500
PIECES = [
    *SPECIAL_TOKENS,
    *(f"w{n}" for n in range(N_WORDS)),
    *(f"##p{n}" for n in range(N_PIECES)),
]
CLS, SEP, MASK = 2, 3, 4
VOCABULARY = MaskVocabulary(MASK, np.arange(len(PIECES)) <= MASK, continues_word(PIECES))


def packed(n: int, seed: int = 0) -> tuple[Ints, Ints]:
    """Some examples of 20 to 128 tokens between [CLS] and [SEP], half of their tokens pieces."""
    rng = np.random.default_rng(seed)
    rows = [
        np.concatenate([[CLS], rng.integers(5, len(VOCABULARY.special), size), [SEP]])
        for size in rng.integers(18, 127, n)
    ]
    return np.concatenate(rows), np.array([len(row) for row in rows])


def masked(
    ids: Ints, lengths: Ints, settings: MaskSettings, epoch: int = 0, examples: Ints | None = None
) -> MaskedTokens:
    numbers = np.arange(len(lengths)) if examples is None else examples
    return mask_tokens(ids, lengths, numbers, VOCABULARY, settings, seed=7, epoch=epoch)


@pytest.mark.thorough
@pytest.mark.parametrize("whole_word", [False, True])
def test_shares_over_a_million_tokens(whole_word: bool) -> None:
    ids, lengths = packed(15_000)
    assert len(ids) > 1_000_000
    batch = masked(ids, lengths, MaskSettings(whole_word=whole_word))
    n_real = np.count_nonzero(~VOCABULARY.special[ids])
    assert abs(len(batch.positions) / n_real - 0.15) < 0.001
    seen = batch.input_ids[batch.positions]
    kept = np.mean(seen == batch.labels)
    became_mask = np.mean(seen == MASK)
    assert abs(became_mask - 0.8) < 0.005
    assert abs(kept - 0.1) < 0.005
    assert abs(1 - became_mask - kept - 0.1) < 0.005
    substitutes = seen[(seen != MASK) & (seen != batch.labels)]
    assert not VOCABULARY.special[substitutes].any()
    assert len(np.unique(substitutes)) == N_WORDS + N_PIECES


def test_special_tokens_are_never_masked_and_the_rest_is_untouched() -> None:
    ids, lengths = packed(300)
    batch = masked(ids, lengths, MaskSettings(rate=0.9))
    assert not VOCABULARY.special[batch.labels].any()
    assert np.array_equal(batch.labels, ids[batch.positions])
    others = np.setdiff1d(np.arange(len(ids)), batch.positions)
    assert np.array_equal(batch.input_ids[others], ids[others])


def test_words_are_masked_whole_or_not_at_all() -> None:
    ids, lengths = packed(400)
    batch = masked(ids, lengths, MaskSettings(whole_word=True))
    is_hole = np.zeros(len(ids), bool)
    is_hole[batch.positions] = True
    goes_on = VOCABULARY.continues[ids] & ~np.roll(VOCABULARY.special[ids], 1)
    assert np.array_equal(is_hole[goes_on], np.roll(is_hole, 1)[goes_on])


@pytest.mark.parametrize("whole_word", [False, True])
def test_an_example_is_masked_alike_in_any_company(whole_word: bool) -> None:
    ids, lengths = packed(40)
    settings = MaskSettings(whole_word=whole_word)
    together = masked(ids, lengths, settings, epoch=3)
    ends = np.cumsum(lengths)
    for n in (0, 17, 39):
        start, end = ends[n] - lengths[n], ends[n]
        alone = masked(ids[start:end], lengths[n : n + 1], settings, 3, np.array([n]))
        assert np.array_equal(alone.input_ids, together.input_ids[start:end])


def test_dynamic_masks_change_with_the_epoch_and_static_ones_do_not() -> None:
    ids, lengths = packed(50)

    def batch(epoch: int, static: bool) -> bytes:
        return masked(ids, lengths, MaskSettings(static=static), epoch).positions.tobytes()

    assert batch(0, static=False) == batch(0, static=False) != batch(1, static=False)
    assert batch(0, static=True) == batch(1, static=True) == batch(0, static=False)


def test_other_seeds_and_examples_have_other_masks() -> None:
    ids, lengths = packed(50)
    base = masked(ids, lengths, MaskSettings()).positions.tolist()
    shifted = masked(ids, lengths, MaskSettings(), examples=np.arange(50) + 1)
    other = mask_tokens(ids, lengths, np.arange(50), VOCABULARY, MaskSettings(), seed=8, epoch=0)
    assert base not in (shifted.positions.tolist(), other.positions.tolist())


@pytest.mark.parametrize("ids", [[], [CLS, SEP], [CLS, 9, SEP]])
def test_tiny_examples(ids: Sequence[int]) -> None:
    row = np.array(ids, np.int64)
    batch = masked(row, np.array([len(row)]), MaskSettings(rate=0.99, whole_word=True))
    assert set(batch.labels.tolist()) <= {9}


def test_rates_and_shares_that_cannot_be_are_refused() -> None:
    for rate in (0.0, 1.0):
        with pytest.raises(ConfigError, match=r"mask\.rate"):
            MaskSettings(rate=rate)
    with pytest.raises(ConfigError, match="above 1"):
        MaskSettings(mask_share=0.8, random_share=0.3)
