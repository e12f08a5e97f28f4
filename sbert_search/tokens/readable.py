"""Convert token ids to strings that are shown to users."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import decoders, pre_tokenizers

from sbert_search.tokens.tokenizer import TextTokenizer

BLANK = "\u2423"  # the character "open box", which is shown in place of a blank


def readable_tokens(tokenizer: TextTokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text of each token, with every blank replaced by U+2423.

    The text of a token from a byte-level vocabulary is decoded from the bytes of the token. If
    these bytes are not complete UTF-8 characters, the entry in the vocabulary is returned instead.
    """
    backend = tokenizer.backend
    byte_level = (decoders.ByteLevel, pre_tokenizers.ByteLevel)
    of_bytes = any(isinstance(p, byte_level) for p in (backend.decoder, backend.pre_tokenizer))
    shown = []
    for token_id in ids:
        token = backend.id_to_token(token_id) or f"#{token_id}"
        text = decoders.ByteLevel().decode([token]) if of_bytes else token
        text = token if "\ufffd" in text else text
        shown.append(text.replace("\u2581", BLANK).replace(" ", BLANK))
    return shown
