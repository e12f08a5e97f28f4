"""Choose the tokens that a masked language model predicts, and replace them in its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.arrays import Ints
from sbert_search.base.seed import uniforms
from sbert_search.declared import Bounds, check
from sbert_search.errors import ConfigError
from sbert_search.text.tokens.vocabulary import CONTINUATION

# Prefixes of pieces (vocabulary entries). In WordPiece, ## marks a piece that continues a word. In
# byte-level BPE and SentencePiece, the character for a space marks a piece that begins a word.
_MARKS = (CONTINUATION, "\u0120", "\u2581")

# Each use of random numbers has its own number, the last argument of `uniforms`, so that the uses
# are independent of each other.
_CHOICE, _EXTRA, _FATE, _SUBSTITUTE = range(4)


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskSettings:
    """How tokens are masked.

    Attributes:
        rate: Share of the tokens to predict, special tokens excluded.
        mask_share: Share of the tokens to predict that become [MASK].
        random_share: Share of the tokens to predict that become a random token. The rest of them
            does not change.
        whole_word: Whether to choose whole words, so that either all tokens of a word are predicted
            or none of them.
        static: Whether every epoch has the same masks, as in BERT; otherwise each epoch has new
            masks, as in RoBERTa.
    """

    rate: Annotated[float, Bounds(above=0, below=1)] = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    whole_word: bool = False
    static: bool = False

    def __post_init__(self) -> None:
        check(self, table="mask.")
        shares = self.mask_share, self.random_share
        if min(shares) < 0 or sum(shares) > 1:
            raise ConfigError(
                f"mask.mask_share is {shares[0]} and mask.random_share {shares[1]}; neither may be "
                "below 0, and their sum may not be above 1."
            )


@dataclass(frozen=True, slots=True)
class MaskVocabulary:
    """The properties of a vocabulary that masking needs."""

    mask_id: int
    special: NDArray[np.bool_]  # tokens never masked or used as random tokens, (vocab,)
    continues: NDArray[np.bool_]  # tokens that continue the word of the token before, (vocab,)


@dataclass(frozen=True, slots=True)
class MaskedTokens:
    """A batch of concatenated examples with masked tokens; all arrays are int64."""

    input_ids: Ints  # input of the model, (total,)
    positions: Ints  # indices of the tokens to predict, ascending, (n_masked,)
    labels: Ints  # original ids of these tokens, (n_masked,)


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
    """Mask a batch; the masks of an example depend only on the seed, the epoch and its index.

    ``examples`` has this index, (n,), ``lengths`` the tokens of each, (n,), ``input_ids`` all of
    them, (total,). On average, the share ``rate`` of the tokens of an example that are not special
    is predicted.

    Source: Devlin et al. 2019, BERT, section 3.1 (arXiv:1810.04805); Liu et al. 2019, RoBERTa,
    section 4.1, for dynamic masks (arXiv:1907.11692).
    """
    when = 0 if settings.static else epoch
    # For each token: the number of its example in the batch, and its place in this example.
    row = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(input_ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    maskable = ~vocabulary.special[input_ids]
    continues = np.zeros(len(input_ids), bool)
    if settings.whole_word:
        continues[1:] = vocabulary.continues[input_ids[1:]] & maskable[:-1] & (position[1:] > 0)
    heads = np.flatnonzero(maskable & ~continues)  # first tokens of words
    word = np.cumsum(~continues & maskable) - 1  # word of each maskable token
    sizes = np.bincount(word[maskable], minlength=len(heads))
    budget = settings.rate * np.bincount(row[maskable], minlength=len(lengths))
    owners = row[heads]
    order = uniforms(seed, "mask", when, examples[owners], position[heads], _CHOICE)
    extra = uniforms(seed, "mask", when, examples, 0, _EXTRA)
    chosen = _choose(owners, sizes, order, budget, extra)
    positions = np.flatnonzero(maskable & np.append(chosen, False)[word])
    where = when, examples[row[positions]], position[positions]
    masked = input_ids.copy()
    masked[positions] = _substitutes(input_ids[positions], where, vocabulary, settings, seed)
    return MaskedTokens(masked, positions, input_ids[positions])


def continues_word(vocabulary: Sequence[str]) -> NDArray[np.bool_]:
    """Whether each piece continues the word of the piece before, bool (vocab,)."""
    marked = {mark: [p.startswith(mark) for p in vocabulary] for mark in _MARKS}
    # The mark in use is the most frequent; the others may occur in a few pieces as plain text.
    mark = max(_MARKS, key=lambda mark: sum(marked[mark]))
    return np.array([has_mark == (mark == CONTINUATION) for has_mark in marked[mark]])


def _choose(
    owners: Ints,
    sizes: Ints,
    order: NDArray[np.float64],
    budget: NDArray[np.floating],
    extra: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Take the words of each example in random order until its budget is used, bool (words,).

    ``owners`` (ascending), ``sizes`` and ``order`` (random) are of words, ``budget`` and ``extra``
    (random in [0, 1)) of examples. The last word is taken if the share of it that fits into the
    budget is above ``extra``, so that on average the budget is used exactly.
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
    """Return the model's input for each token to predict: [MASK], a random token or the token."""
    fate = uniforms(seed, "mask", *where, _FATE)
    ordinary = np.flatnonzero(~vocabulary.special)
    drawn = uniforms(seed, "mask", *where, _SUBSTITUTE)
    random_tokens = ordinary[(drawn * len(ordinary)).astype(np.int64)]
    is_random = fate < settings.mask_share + settings.random_share
    return np.where(
        fate < settings.mask_share, vocabulary.mask_id, np.where(is_random, random_tokens, tokens)
    )
