"""A static model that can be trained: the embedding of a text is the mean of a table's rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import safetensors.torch
import torch
from torch import Tensor, nn

from sbert_search.base import files
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.weights import WEIGHTS
from sbert_search.models.heads import Normalize, pool
from sbert_search.models.loading.folder import ModelDescription, write_legacy_form
from sbert_search.models.loading.modules import Module
from sbert_search.text.tokens.tokenizer import TextTokenizer

_AT_ONCE = 1 << 16  # tokens


class StaticModel(nn.Module):
    """A table with a row for each token of a tokenizer that adds no special tokens."""

    def __init__(
        self, tokenizer: TextTokenizer, dim: int, *, head: Sequence[Normalize] = ()
    ) -> None:
        super().__init__()
        self.tokenizer, self.dim = tokenizer, dim
        self.embedding = nn.Embedding(tokenizer.vocab_size, dim)
        self.head = nn.Sequential(*head)
        self.prompts: dict[str, str] = {}
        self.default_prompt_name: str | None = None

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Compute embeddings, float32 (batch, dim)."""
        embeddings: Tensor = self.head(pool(self.embedding(tokens.input_ids), tokens, ("mean",)))
        return embeddings

    @torch.no_grad()
    def start_from(self, tokens: PackedTokens, vectors: Tensor) -> None:
        """Set the row of each token to the mean vector of the texts that contain it, or to 0.

        ``vectors`` are float (texts, dim). A token that occurs twice in a text counts twice.
        """
        weight = self.embedding.weight.zero_()
        counts = torch.bincount(tokens.input_ids, minlength=len(weight))
        texts = tokens.text_of_row
        for start in range(0, len(texts), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            weight.index_add_(0, tokens.input_ids[some], vectors[texts[some]])
        weight /= counts.clamp(min=1).unsqueeze(1)

    def describe(self) -> ModelDescription:
        """Return the description that the folder of this model will contain."""
        modules = [Module("StaticEmbedding", "")]
        modules += [Module("Normalize", f"{n}_Normalize") for n, _ in enumerate(self.head, 1)]
        return ModelDescription(
            architecture="StaticEmbedding",
            modules=tuple(modules),
            max_len=self.tokenizer.max_len,
            prompts=self.prompts,
        )

    def save(self, path: str | Path) -> None:
        """Write a folder of the module StaticEmbedding of sentence-transformers."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        state = {"embedding.weight": self.embedding.weight.detach().cpu().contiguous()}
        files.write_new(path / WEIGHTS, safetensors.torch.save(state, {"format": "pt"}))
        files.replace_file(path / "tokenizer.json", self.tokenizer.truncating_json().encode())
        write_legacy_form(path, self.describe())


SentenceModel: TypeAlias = BiEncoder | StaticModel
"""A model that gives one embedding per text, for training."""
