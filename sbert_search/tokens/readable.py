"""Write tokens as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import decoders, pre_tokenizers

from sbert_search.tokens.tokenizer import TextTokenizer

BLANK = "\u2423"  # an open box, for a blank inside of a token


def readable_tokens(tokenizer: TextTokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text of each token; a blank in it is shown as U+2423.

    In a byte-level vocabulary, a token is shown as the characters that its bytes encode. A token
    that has only some of the bytes of a character is shown as the vocabulary spells it.
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
