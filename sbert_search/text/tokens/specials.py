"""Find the special tokens of a tokenizer by their role, and show token ids to users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import decoders, pre_tokenizers

from sbert_search.errors import ModelError
from sbert_search.text.tokens.masking import MaskVocabulary, continues_word
from sbert_search.text.tokens.tokenizer import TextTokenizer
from sbert_search.text.tokens.vocabulary import SPECIAL_ROLES


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The special tokens that pre-training needs."""

    cls_id: int  # before a text
    sep_id: int  # after a text
    mask_id: int  # in place of a token to predict
    pad_id: int  # for other libraries that load the model: this package does not pad texts
    mask: str  # text of the mask token

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> SpecialTokens:
        """Find the special tokens; a text must have one of them before and one after it."""
        before, after = tokenizer.single.before, tokenizer.single.after
        if len(before) != 1 or len(after) != 1:
            raise ModelError(
                f"The tokenizer puts {len(before)} special tokens before a text and {len(after)} "
                "after it; pre-training needs one of each, such as [CLS] and [SEP]."
            )
        (mask, mask_id), (_, pad_id) = (_known(tokenizer, r) for r in ("mask_token", "pad_token"))
        return cls(before[0], after[0], mask_id, pad_id, mask)


def mask_vocabulary(tokenizer: TextTokenizer) -> MaskVocabulary:
    """Return which tokens of a tokenizer are special, and which continue a word."""
    known = SpecialTokens.of(tokenizer)
    added = tokenizer.backend.get_added_tokens_decoder()
    ids = tokenizer.backend.get_vocab()
    size = max(ids.values()) + 1
    special, pieces = np.ones(size, bool), [""] * size  # an id without a token counts as special
    for piece, piece_id in ids.items():
        pieces[piece_id] = piece
        special[piece_id] = piece_id in added and added[piece_id].special
    special[[known.cls_id, known.sep_id, known.mask_id, known.pad_id]] = True
    return MaskVocabulary(known.mask_id, special, continues_word(pieces))


def _known(tokenizer: TextTokenizer, role: str) -> tuple[str, int]:
    """Return the first name of a role that is a token of the tokenizer, and the id of the token."""
    names = SPECIAL_ROLES[role]
    for name in names:
        if (token_id := tokenizer.backend.token_to_id(name)) is not None:
            return name, token_id
    raise ModelError(
        f"The tokenizer has no {' or '.join(names)}; add it to the vocabulary, or train a "
        "tokenizer with `sbert-search tokenizer train`."
    )


_BLANK = "\u2423"  # the character "open box", which is shown in place of a blank


def readable_tokens(tokenizer: TextTokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text of each token, with every blank replaced by U+2423.

    A token of a byte-level vocabulary is decoded if its bytes are complete UTF-8 characters.
    """
    backend = tokenizer.backend
    byte_level = (decoders.ByteLevel, pre_tokenizers.ByteLevel)
    of_bytes = any(isinstance(p, byte_level) for p in (backend.decoder, backend.pre_tokenizer))
    shown = []
    for token_id in ids:
        token = backend.id_to_token(token_id) or f"#{token_id}"
        text = decoders.ByteLevel().decode([token]) if of_bytes else token
        text = token if "\ufffd" in text else text
        shown.append(text.replace("\u2581", _BLANK).replace(" ", _BLANK))
    return shown
