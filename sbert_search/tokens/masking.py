"""Which tokens a masked language model must guess, and what it sees in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import ConfigError
from sbert_search.runtime.arrays import Ints
from sbert_search.runtime.seed import uniforms
from sbert_search.tokens.wordpiece_merges import CONTINUATION

_MARKS = (CONTINUATION, "\u0120", "\u2581")  # the others: a space in byte-level BPE, SentencePiece

_CHOICE, _EXTRA, _FATE, _SUBSTITUTE = range(4)  # what a draw is for


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskSettings:
    """How tokens are masked.

    Attributes:
        rate: Share of the tokens that are to be guessed, special ones aside.
        mask_share: Share of these that become [MASK].
        random_share: Share of these that become another token, drawn evenly; the rest stay.
        whole_word: Choose words, so that all pieces of a word are to be guessed or none.
        static: The same masks in every epoch, as in BERT; else new ones, as in RoBERTa.
    """

    rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    whole_word: bool = False
    static: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ConfigError(f"mask.rate is {self.rate}; it must be above 0 and below 1.")
        shares = self.mask_share, self.random_share
        if min(shares) < 0 or sum(shares) > 1:
            raise ConfigError(
                f"mask.mask_share is {shares[0]} and mask.random_share {shares[1]}; neither may be "
                "below 0, nor both together above 1."
            )


@dataclass(frozen=True, slots=True)
class MaskVocabulary:
    """What masking needs to know of a vocabulary.

    Attributes:
        mask_id: Of [MASK].
        special: Tokens never masked and never put in, bool (vocab,).
        continues: Tokens that go on with the word before them, bool (vocab,).
    """

    mask_id: int
    special: NDArray[np.bool_]
    continues: NDArray[np.bool_]

    @classmethod
    def of(cls, vocabulary: Sequence[str], special_tokens: Sequence[str]) -> MaskVocabulary:
        """Read it off a WordPiece vocabulary, pieces by id."""
        special = np.isin(np.array(vocabulary, dtype=np.str_), list(special_tokens))
        return cls(list(vocabulary).index("[MASK]"), special, continues_word(vocabulary))


@dataclass(frozen=True, slots=True)
class MaskedTokens:
    """A packed batch with holes.

    Attributes:
        input_ids: What the model sees, int64 (total,).
        positions: Tokens to be guessed, rising, int64 (n_masked,).
        labels: What stood there, int64 (n_masked,).
    """

    input_ids: Ints
    positions: Ints
    labels: Ints


def mask_tokens(
    input_ids: Ints,
    lengths: Ints,
    examples: Ints,
    vocabulary: MaskVocabulary,
    settings: MaskSettings,
    *,
    seed: int,
    epoch: int,
) -> MaskedTokens:
    """Mask a packed batch; what happens to an example depends on (seed, epoch, example) alone.

    An example of n maskable tokens gets ``rate * n`` holes: words (or tokens) are taken in random
    order while they fit, and the one that does not fit is taken with the probability that makes the
    expected number exact.

    Args:
        input_ids: Tokens of all examples, end to end, (total,).
        lengths: Tokens of each example, (n,).
        examples: Number of each example in its epoch, (n,).
        vocabulary: What is special, and what goes on with a word.
        settings: How to mask.
        seed: Of the run.
        epoch: Counted from 0.

    Source: Devlin et al. 2019, BERT, section 3.1 (arXiv:1810.04805); Liu et al. 2019, RoBERTa,
    section 4.1, for dynamic masks (arXiv:1907.11692).
    """
    when = 0 if settings.static else epoch
    row = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(input_ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    maskable = ~vocabulary.special[input_ids]
    goes_on = np.zeros(len(input_ids), bool)
    if settings.whole_word:
        goes_on[1:] = vocabulary.continues[input_ids[1:]] & maskable[:-1] & (place[1:] > 0)
    heads = np.flatnonzero(maskable & ~goes_on)  # first tokens of words
    word = np.cumsum(~goes_on & maskable) - 1  # word of each maskable token
    sizes = np.bincount(word[maskable], minlength=len(heads))
    budget = settings.rate * np.bincount(row[maskable], minlength=len(lengths))
    owners = row[heads]
    order = uniforms(seed, "mask", when, examples[owners], place[heads], _CHOICE)
    extra = uniforms(seed, "mask", when, examples, 0, _EXTRA)
    chosen = _choose(owners, sizes, order, budget, extra)
    positions = np.flatnonzero(maskable & np.append(chosen, False)[word])
    where = when, examples[row[positions]], place[positions]
    seen = input_ids.copy()
    seen[positions] = _substitutes(input_ids[positions], where, vocabulary, settings, seed)
    return MaskedTokens(seen, positions, input_ids[positions])


def continues_word(vocabulary: Sequence[str]) -> NDArray[np.bool_]:
    """Tell which pieces go on with the word before them, bool (vocab,).

    WordPiece marks these; byte-level BPE and SentencePiece mark the pieces that begin a word.
    """
    marked = {mark: [p.startswith(mark) for p in vocabulary] for mark in _MARKS}
    mark = max(_MARKS, key=lambda mark: sum(marked[mark]))  # the others are letters in a few pieces
    return np.array([begins == (mark == CONTINUATION) for begins in marked[mark]])


def _choose(
    owners: Ints,
    sizes: Ints,
    order: NDArray[np.float64],
    budget: NDArray[np.floating[Any]],
    extra: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Take the words of each example in order until its budget is used up.

    Args:
        owners: Example of each word, rising, (words,).
        sizes: Tokens of each word, (words,).
        order: What the words of an example are sorted by, (words,).
        budget: Tokens to take from each example, (n,).
        extra: A draw that decides on the word that does not fit whole, (n,).
    """
    sorted_words = np.lexsort((order, owners))
    sizes = sizes[sorted_words]
    before = np.cumsum(sizes) - sizes
    starts = np.searchsorted(owners, np.arange(len(budget)))
    before = before - np.append(before, 0)[starts][owners]
    left = (budget[owners] - before) / sizes  # share of the word that still fits
    chosen = np.zeros(len(owners), bool)
    chosen[sorted_words] = left > extra[owners]
    return chosen


def _substitutes(
    tokens: Ints,
    where: tuple[int, Ints, Ints],
    vocabulary: MaskVocabulary,
    settings: MaskSettings,
    seed: int,
) -> Ints:
    """Give what the model sees instead of each token to be guessed."""
    fate = uniforms(seed, "mask", *where, _FATE)
    ordinary = np.flatnonzero(~vocabulary.special)
    drawn = uniforms(seed, "mask", *where, _SUBSTITUTE)
    others = ordinary[(drawn * len(ordinary)).astype(np.int64)]
    is_random = fate < settings.mask_share + settings.random_share
    return np.where(
        fate < settings.mask_share, vocabulary.mask_id, np.where(is_random, others, tokens)
    )
