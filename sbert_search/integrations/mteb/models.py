"""An `Embedder`, a `Reranker` or a `SearchEngine` as MTEB's encoder, cross-encoder or search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mteb._create_dataloaders import create_dataloader  # noqa: PLC2701 (no public name)
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.similarity_functions import select_pairwise_similarity, select_similarity
from mteb.types import PromptType
from numpy.typing import NDArray

from sbert_search.base.cache import digest_of
from sbert_search.config import to_mapping
from sbert_search.embed.arguments import ModelLike
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, EvaluationError
from sbert_search.evaluate.metrics.ranking import ties_by_hash
from sbert_search.index.building.model_check import as_embedder
from sbert_search.index.filters.structured import all_of, condition_text
from sbert_search.index.index import Index
from sbert_search.index.settings import LexicalSettings
from sbert_search.integrations.records import Conditions
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.records import Query, Run
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import SearchOptions
from sbert_search.search.ordering import PairScorer
from sbert_search.search.rerankers import BestWindow, Reranker
from sbert_search.text.labelled.retrieval import strictly_falling

if TYPE_CHECKING:
    from datasets import Dataset
    from mteb.abstasks.task_metadata import TaskMetadata
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


def meta_of(
    identity: ModelIdentity, kind: str, name: str | None = None, settings: str = ""
) -> ModelMeta:
    """Describe a model to MTEB; ``kind`` is dense, sparse or cross-encoder.

    MTEB reuses cached results of a model with the same name and revision. So the revision has
    hashes of the weights, of all settings of the identity, such as pooling and truncation, and of
    further ``settings``.
    """
    shown = name or identity.name
    is_encoder = kind != "cross-encoder"
    # The same model may have another name on another machine.
    hashes = [identity.weights_sha256[:40], digest_of({**identity.to_mapping(), "name": ""})[:8]]
    return ModelMeta.create_empty(
        {
            "name": shown if shown.count("/") == 1 else f"sbert-search/{shown.replace('/', '_')}",
            "revision": "-".join(filter(None, [*hashes, settings])),
            "max_tokens": identity.max_len,
            "embed_dim": identity.dim if is_encoder else None,
            "similarity_fn_name": _SIMILARITIES.get(identity.similarity) if is_encoder else None,
            "framework": ["PyTorch"],
            "modalities": ["text"],
            "model_type": [kind],
            "use_instructions": any(identity.prompts.values()),
        }
    )


_KINDS = {"dense": "dense", "lexical": "sparse"}


class SbertSearchModel:
    """Indexes the corpus of a task and searches it with the task's queries.

    Args:
        model: A name, a folder or an embedder.
        options: How documents are found; dense by default. ``k`` is given by the task.
        reranker: Scores the first ``options.rerank_depth`` documents again.
        name: Name of the system in the results; None: the model's name, the mode and, with a
            reranker, ``rerank``, with hyphens between.
    """

    def __init__(
        self,
        model: ModelLike,
        *,
        options: SearchOptions | None = None,
        reranker: PairScorer | None = None,
        name: str | None = None,
    ) -> None:
        self.embedder = as_embedder(model)
        self.options = options or SearchOptions(mode="dense")
        self.reranker = reranker
        kind = _KINDS.get(self.options.mode, "dense")
        parts = [self.embedder.identity.name, self.options.mode, *(["rerank"] if reranker else [])]
        settings = "" if self._is_plain else digest_of([to_mapping(self.options), self._scorer])[:8]
        self.mteb_model_meta = meta_of(
            self.embedder.identity, kind, name or "-".join(parts), settings
        )
        self._engine: SearchEngine | None = None

    @property
    def _is_plain(self) -> bool:
        """Whether the mode is the only setting."""
        return self.reranker is None and self.options == SearchOptions(mode=self.options.mode)

    @property
    def _scorer(self) -> object:
        """Identity of our reranker, or the class name of another; None without a reranker."""
        if isinstance(self.reranker, BestWindow):
            return [self.reranker.identity.to_mapping(), self.reranker.most]
        if isinstance(self.reranker, Reranker):
            return self.reranker.identity.to_mapping()
        return None if self.reranker is None else type(self.reranker).__qualname__

    def index(
        self,
        corpus: Dataset,
        *,
        task_metadata: TaskMetadata,
        hf_split: str = "",
        hf_subset: str = "",
        encode_kwargs: Mapping[str, Any] | None = None,
        num_proc: int | None = None,
        **kwargs: object,
    ) -> None:
        """Build an index of the corpus in a temporary folder."""
        loader = create_dataloader(
            corpus, task_metadata=task_metadata, prompt_type=PromptType.document, batch_size=1024
        )
        lexical = None if self.options.mode == "dense" else LexicalSettings()
        index = Index.build(
            _rows(loader), model=self.embedder, on_truncate="warn", on_error="skip", lexical=lexical
        )
        self._engine = SearchEngine(index, self.embedder, self.reranker)

    def search(
        self,
        queries: Dataset,
        *,
        task_metadata: TaskMetadata,
        hf_split: str = "",
        hf_subset: str = "",
        top_k: int,
        encode_kwargs: Mapping[str, Any] | None = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        num_proc: int | None = None,
        **kwargs: object,
    ) -> dict[str, dict[str, float]]:
        """Return the scores of the best documents of each query.

        Args:
            queries: The queries.
            task_metadata: Metadata of the task.
            hf_split: Ignored.
            hf_subset: Ignored.
            top_k: Number of documents to find for each query.
            encode_kwargs: Ignored.
            top_ranked: The documents to rank for each query; None: all.
            num_proc: Ignored.
            kwargs: Ignored.

        Raises:
            EvaluationError: `index` was not called.
        """
        if (engine := self._engine) is None:
            raise EvaluationError("There is no corpus to search; call index first.")
        loader = create_dataloader(
            queries, task_metadata=task_metadata, prompt_type=PromptType.query, batch_size=1024
        )
        texts = (text for batch in loader for text in batch["text"])
        asked = [Query(str(i), t) for i, t in zip(queries["id"], texts, strict=True)]
        k = min(top_k, len(engine.index))
        if top_ranked is None:
            run = engine.run(asked, k, options=self.options)
            return self._ordered(run)
        columns = Conditions(engine.index.state.columns)
        found: dict[str, dict[str, float]] = {}
        for query in asked:
            ids = list(map(str, top_ranked.get(query.query_id, ())))
            own = self.options.where
            where = columns.id_in(ids)
            if own:
                where = all_of([f"({condition_text(own)})", where])
            only = self.options.with_keywords(None, where=where)
            found |= self._ordered(engine.run([query], k, options=only))
        return found

    def _ordered(self, run: Run) -> dict[str, dict[str, float]]:
        """Order equal scores as `evaluate_retrieval` does, and let all scores fall."""
        run = run if self.reranker else ties_by_hash(run)
        return {query_id: strictly_falling(scores) for query_id, scores in run.items()}


def _rows(loader: Any) -> Iterator[dict[str, object]]:
    for batch in loader:
        texts = batch["body"] if "body" in batch and "title" in batch else batch["text"]
        titles = batch.get("title", [""] * len(texts))
        for doc_id, title, text in zip(batch["id"], titles, texts, strict=True):
            yield {"_id": str(doc_id), "title": title or "", "text": text}
