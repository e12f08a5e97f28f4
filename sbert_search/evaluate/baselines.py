"""Baselines of a sentence encoder: simple pooling of the encoder's hidden states or embeddings.

Source: Reimers & Gurevych 2019, table 1, the rows above SBERT (arXiv:1908.10084). Where the paper
averages GloVe vectors, this module averages the word embeddings of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sbert_search.embed.embedder import Embedder
from sbert_search.embed.protocol import Task, TextEmbedder, TokenizedTexts, Vectors
from sbert_search.models.loading.folder import load_tokenizer, read_folder
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.text.tokens.chunking import WHOLE_WORDS, Chunking

_POOLED = {"mean of the last states": "mean", "[CLS] of the last states": "cls"}


def open_baselines(
    model: str | Path | None = None, *, device: str = "auto"
) -> dict[str, TextEmbedder]:
    """Open the three baselines of a model, in fp32, by name.

    They give the mean of the last hidden states, the last hidden state of [CLS], and the mean of
    the word embeddings of the tokens (no position embeddings, no layer of the encoder). Dense and
    normalisation layers after the encoder are left out. The package's own encoder must support the
    architecture.
    """
    from sbert_search.base.device import resolve_device
    from sbert_search.models.bi_encoder import BiEncoder
    from sbert_search.models.encoder.weights import load_encoder  # torch loads here

    target = resolve_device(device)
    folder = read_folder(resolve_model(model).path)
    tokenizer = load_tokenizer(folder)
    embedders: dict[str, TextEmbedder] = {
        name: Embedder(
            BiEncoder(load_encoder(folder.transformer_path), tokenizer, pooling=(mode,)).to(target)
        )
        for name, mode in _POOLED.items()
    }
    return embedders | {"mean of the token embeddings": TokenMeanEmbedder(model)}


class TokenMeanEmbedder:
    """Averages the token embeddings of a text, without those of special tokens."""

    batch_tokens = 1 << 16

    def __init__(self, model: str | Path | None = None) -> None:
        from sbert_search.models.encoder.weights import load_encoder  # torch loads here

        resolved = resolve_model(model)
        folder = read_folder(resolved.path)
        self._table: Vectors = (
            load_encoder(folder.transformer_path).embeddings.word.weight.detach().numpy()
        )
        self._of_no_tokens = np.eye(1, self._table.shape[1], dtype=np.float32)[0]
        self._tokenizer = load_tokenizer(folder)
        self.dim, self.max_len = self._table.shape[1], self._tokenizer.max_len
        self.identity = ModelIdentity(
            name=resolved.name,
            weights_sha256=folder.weights_sha256(),
            tokenizer_sha256=folder.tokenizer_sha256(),
            architecture=folder.description.architecture,
            pooling="mean of token embeddings",
            max_len=self.max_len,
            dim=self.dim,
            engine="native",
            precision="fp32",
        )

    def tokenize(
        self, texts: Sequence[str], *, task: Task | None = None, prompt_name: str | None = None
    ) -> TokenizedTexts:
        """Turn texts into token ids without special tokens; prompts are ignored."""
        ids, lost = self._tokenizer.encode(texts)
        before, after = len(self._tokenizer.single.before), len(self._tokenizer.single.after)
        return TokenizedTexts(texts, "", [each[before : len(each) - after] for each in ids], lost)

    def split(
        self, text: str, *, task: Task | None = None, chunking: Chunking = WHOLE_WORDS
    ) -> list[tuple[int, int]]:
        """Cut a text into passages of at most ``max_len`` tokens."""
        return self._tokenizer.split(text, chunking=chunking)

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Average the token embeddings of each text, (n, dim); of no token: (1, 0, ..., 0)."""
        rows = [self._table[ids].mean(axis=0) if ids else self._of_no_tokens for ids in tokens.ids]
        return np.stack(rows) if rows else np.empty((0, self.dim), np.float32)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors, float32 (n, dim)."""
        return self.encode_tokens(self.tokenize(texts))

    encode_query = encode
    encode_document = encode
