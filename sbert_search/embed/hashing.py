"""An embedder without a model: it hashes each word to a dimension of the vector and a sign.

It ranks documents by shared words only. Benchmarks and crash tests of the index use it because it
does not load torch; in tables of retrieval scores it is the simplest baseline.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import chain

import numpy as np
import xxhash

from sbert_search.config import is_integer
from sbert_search.embed.protocol import Task, TokenizedTexts, Vectors
from sbert_search.errors import ConfigError
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.text.tokens.chunking import PIECE_CHARS, WHOLE_WORDS, Chunking, Spans, pieces

_WORD = re.compile(r"\w+")
# Indexes store a hash of this string as the identity of the embedder. Change the string if and only
# if the vectors change.
_RECIPE = "lower-cased \\w+, xxh3_64, sign from bit 63, place from the rest modulo dim, unit length"


class HashingEmbedder:
    """Turns texts into unit vectors by feature hashing of their words.

    ``max_len`` is the maximum number of words of a text; longer texts are truncated.

    Source: Weinberger et al. 2009, Feature Hashing for Large Scale Multitask Learning, section 2
    (arXiv:0902.2206).
    """

    batch_tokens = 1 << 17

    def __init__(self, dim: int = 384, *, max_len: int = 512) -> None:
        if not (is_integer(dim) and is_integer(max_len)) or dim < 1 or max_len < 1:
            raise ConfigError(f"hashing: dim is {dim}, max_len {max_len}; both must be at least 1.")
        self.dim, self.max_len = dim, max_len
        recipe = hashlib.sha256(_RECIPE.encode()).hexdigest()
        self.identity = ModelIdentity(
            name="hashing" if dim == 384 else f"hashing:{dim}",
            weights_sha256=recipe,
            tokenizer_sha256=recipe,
            architecture="hashing",
            pooling="sum",
            max_len=max_len,
            dim=dim,
            normalize=True,
            engine="hashing",
        )

    def tokenize(
        self, texts: Sequence[str], *, task: Task | None = None, prompt_name: str | None = None
    ) -> TokenizedTexts:
        """Hash the words of each text; the hashes take the place of token ids."""
        if prompt_name is not None:
            raise ConfigError(f"The hashing embedder has no prompt {prompt_name!r}; it has none.")
        hashes, lost = [], []
        for text in texts:
            words, count = self._words(text)
            hashes.append(list(map(_hash, words)))
            lost.append(count - len(words))
        return TokenizedTexts(texts, "", hashes, np.array(lost, dtype=np.int32))

    def _words(self, text: str) -> tuple[list[str], int]:
        """Return the first ``max_len`` words of a text, in lower case, and its number of words."""
        if len(text) <= PIECE_CHARS:
            matches = _WORD.findall(text.lower())
            return matches[: self.max_len], len(matches)
        words: list[str] = []
        count = 0
        for piece in pieces(text):
            matches = _WORD.findall(piece.lower())
            words += matches[: self.max_len - len(words)]
            count += len(matches)
        return words, count

    def split(
        self, text: str, *, task: Task | None = None, chunking: Chunking = WHOLE_WORDS
    ) -> list[tuple[int, int]]:
        """Cut a text into passages of at most ``max_len`` words."""
        return chunking.split(text, lambda piece: self._split(piece, chunking))

    def _split(self, text: str, chunking: Chunking) -> Spans:
        # `tokenize` counts the words of the text in lower case. The lower case of "İ" is "i" and a
        # combining dot, and the dot ends a word. A word with "İ" may therefore count as several.
        offsets = [
            match.span()
            for match in _WORD.finditer(text)
            for _ in range(len(_WORD.findall(match[0].lower())) if "İ" in match[0] else 1)
        ]
        capacity = min(chunking.tokens or self.max_len, self.max_len)
        return chunking.spans(text, offsets, range(len(offsets)), capacity)

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Compute unit vectors, float32 (n, dim); a text without words gives (1, 0, ..., 0)."""
        rows = np.repeat(np.arange(len(tokens)), tokens.lengths)
        hashes = np.fromiter(chain.from_iterable(tokens.ids), np.uint64, len(rows))
        columns = (hashes & np.uint64(2**63 - 1)) % np.uint64(self.dim)
        signs = np.where(hashes >> np.uint64(63), -1.0, 1.0)
        cells = rows * self.dim + columns.astype(np.int64)
        sums = np.bincount(cells, signs, minlength=len(tokens) * self.dim)
        vectors: Vectors = sums.reshape(len(tokens), self.dim).astype(np.float32)
        vectors[~vectors.any(axis=1), 0] = 1.0
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Compute unit vectors, float32 (n, dim)."""
        return self.encode_tokens(self.tokenize(texts))

    encode_query = encode
    encode_document = encode


def _hash(word: str) -> int:
    return xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass"))
