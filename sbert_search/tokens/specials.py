"""The special tokens of a tokenizer, by what they are for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sbert_search.errors import ModelError
from sbert_search.tokens.masking import MaskVocabulary, continues_word
from sbert_search.tokens.tokenizer import TextTokenizer

_MASK = ("[MASK]", "<mask>")
_PAD = ("[PAD]", "<pad>")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """What pre-training puts between and in place of the tokens of a text.

    Attributes:
        cls_id: Before a text.
        sep_id: Behind it.
        mask_id: In place of a token to be guessed.
        pad_id: Fills up batches of other libraries.
        mask: How the token to be guessed is written.
    """

    cls_id: int
    sep_id: int
    mask_id: int
    pad_id: int
    mask: str

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> SpecialTokens:
        """Read them off a tokenizer.

        Raises:
            ModelError: One is missing, or a text has more than one token at its start or end.
        """
        before, after = tokenizer.single.before, tokenizer.single.after
        if len(before) != 1 or len(after) != 1:
            raise ModelError(
                f"The tokenizer puts {len(before)} special tokens before a text and {len(after)} "
                "behind it; pre-training needs one each, as [CLS] and [SEP]."
            )
        (mask, mask_id), (_, pad_id) = _known(tokenizer, _MASK), _known(tokenizer, _PAD)
        return cls(before[0], after[0], mask_id, pad_id, mask)


def mask_vocabulary(tokenizer: TextTokenizer) -> MaskVocabulary:
    """Say which tokens of a tokenizer are special and which go on with a word.

    Raises:
        ModelError: As `SpecialTokens.of`.
    """
    named = SpecialTokens.of(tokenizer)
    added = tokenizer.backend.get_added_tokens_decoder()
    ids = tokenizer.backend.get_vocab()
    size = max(ids.values()) + 1
    special, pieces = np.ones(size, bool), [""] * size  # an id without a piece is never put in
    for piece, number in ids.items():
        pieces[number] = piece
        special[number] = number in added and added[number].special
    special[[named.cls_id, named.sep_id, named.mask_id, named.pad_id]] = True
    return MaskVocabulary(named.mask_id, special, continues_word(pieces))


def _known(tokenizer: TextTokenizer, names: tuple[str, ...]) -> tuple[str, int]:
    """Find the first of some names that the tokenizer knows, and its id."""
    for name in names:
        if (number := tokenizer.backend.token_to_id(name)) is not None:
            return name, number
    raise ModelError(
        f"The tokenizer has no {' or '.join(names)}; add it to the vocabulary, or train one by "
        "`sbert-search tokenizer train`."
    )
