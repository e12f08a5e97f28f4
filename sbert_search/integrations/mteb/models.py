"""An `Embedder` as MTEB's encoder, and a `Reranker` as its cross-encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.similarity_functions import select_pairwise_similarity, select_similarity
from mteb.types import PromptType
from numpy.typing import NDArray

from sbert_search.base.cache import digest_of
from sbert_search.embed.arguments import ModelLike
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError
from sbert_search.index.building.model_check import as_embedder
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.search.rerankers import Reranker

if TYPE_CHECKING:
    from mteb.types import Array

_SIMILARITIES = {
    "cosine": ScoringFunction.COSINE,
    "dot": ScoringFunction.DOT_PRODUCT,
    "euclidean": ScoringFunction.EUCLIDEAN,
}

Batches = Iterable[Mapping[str, list[str]]]
"""MTEB's loader of inputs: batches with the texts as ``text``."""


class SbertSearchEncoder:
    """Embeds texts with the prompts that the model has for queries and documents.

    Args:
        model: A name, a folder or an embedder.
        revision: Ignored; the metadata have the hash of the weights.
        device: auto, cpu, cuda, cuda:N or mps, if the model is opened here.
        kwargs: Ignored; MTEB may pass arguments that this model does not need.

    Raises:
        ConfigError: The similarity of the model is one that MTEB does not have.
    """

    def __init__(
        self,
        model: ModelLike,
        revision: str | None = None,
        *,
        device: str | None = None,
        **kwargs: object,
    ) -> None:
        named = isinstance(model, (str, Path))
        self.embedder: TextEmbedder = (
            as_embedder(model, device=device) if named and device else as_embedder(model)
        )
        identity = self.embedder.identity
        if identity.similarity not in _SIMILARITIES:
            raise ConfigError(
                f"{identity.name} compares by {identity.similarity}; MTEB has "
                f"{', '.join(_SIMILARITIES)}."
            )
        self.mteb_model_meta = meta_of(identity, "dense")

    def encode(
        self,
        inputs: Batches,
        *,
        task_metadata: object = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: PromptType | None = None,
        **kwargs: object,
    ) -> NDArray[np.float32]:
        """Embed the texts of all batches, float32 (n, dim)."""
        texts = texts_of(inputs)
        if prompt_type == PromptType.query:
            return self.embedder.encode_query(texts)
        if prompt_type == PromptType.document:
            return self.embedder.encode_document(texts)
        return self.embedder.encode(texts)

    def similarity(self, embeddings1: Array, embeddings2: Array) -> Array:
        """Compare each vector of one array with each of the other, by the model's similarity."""
        return select_similarity(embeddings1, embeddings2, self._scoring)

    def similarity_pairwise(self, embeddings1: Array, embeddings2: Array) -> Array:
        """Compare vector n of one array with vector n of the other, by the model's similarity."""
        return select_pairwise_similarity(embeddings1, embeddings2, self._scoring)

    @property
    def _scoring(self) -> ScoringFunction:
        return _SIMILARITIES[self.embedder.identity.similarity]


class SbertSearchCrossEncoder:
    """Scores pairs of texts.

    Args:
        model: A name, a folder or a `Reranker`.
        revision: Ignored; the metadata have the hash of the weights.
        device: auto, cpu, cuda, cuda:N or mps, if the model is opened here.
        kwargs: Ignored; MTEB may pass arguments that this model does not need.
    """

    def __init__(
        self,
        model: str | Reranker,
        revision: str | None = None,
        device: str | None = None,
        **kwargs: object,
    ) -> None:
        if not isinstance(model, Reranker):
            model = Reranker(model, device=device or "auto")
        self.reranker = model
        self.mteb_model_meta = meta_of(self.reranker.identity, "cross-encoder")

    def predict(
        self,
        inputs1: Batches,
        inputs2: Batches,
        *,
        task_metadata: object = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: PromptType | None = None,
        **kwargs: object,
    ) -> NDArray[np.float32]:
        """Score text n of the first input with text n of the second one, float32 (n,)."""
        pairs = list(zip(texts_of(inputs1), texts_of(inputs2), strict=True))
        return self.reranker.predict(pairs)


def texts_of(batches: Batches) -> list[str]:
    """Return the texts of all batches, in order."""
    return [text for batch in batches for text in batch["text"]]


def _settings_hash(identity: ModelIdentity) -> str:
    """Hash all fields of an identity but the name, which a model keeps on other machines."""
    return digest_of({**identity.to_mapping(), "name": ""})[:8]


def meta_of(
    identity: ModelIdentity, kind: str, name: str | None = None, settings: str = ""
) -> ModelMeta:
    """Describe a model to MTEB.

    Args:
        identity: Identity of the model. The hash of its weights begins the revision.
        kind: MTEB's type of model: dense, sparse or cross-encoder.
        name: Name of the model; None: that of the identity.
        settings: Hash of further settings, which becomes a part of the revision.

    MTEB reuses cached results of a model with the same name and revision. So the revision also has
    a hash of all settings of the identity, such as pooling and truncation.
    """
    shown = name or identity.name
    is_encoder = kind != "cross-encoder"
    settings = "-".join(filter(None, [_settings_hash(identity), settings]))
    return ModelMeta.create_empty(
        {
            "name": shown if shown.count("/") == 1 else f"sbert-search/{shown.replace('/', '_')}",
            "revision": "-".join(filter(None, [identity.weights_sha256[:40], settings])),
            "max_tokens": identity.max_len,
            "embed_dim": identity.dim if is_encoder else None,
            "similarity_fn_name": _SIMILARITIES.get(identity.similarity) if is_encoder else None,
            "framework": ["PyTorch"],
            "modalities": ["text"],
            "model_type": [kind],
            "use_instructions": any(identity.prompts.values()),
        }
    )
