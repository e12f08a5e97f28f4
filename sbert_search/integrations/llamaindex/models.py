"""An `Embedder` as LlamaIndex's ``BaseEmbedding``; a `Reranker` as its node postprocessor."""

from __future__ import annotations

from typing import Unpack

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import ConfigDict, PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from sbert_search.embed.arguments import EmbedderOptions, ModelLike
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.index.building.model_check import as_embedder
from sbert_search.integrations.collection import in_thread
from sbert_search.search.rerankers import Reranker

BATCH_SIZE = 1024  # texts of a call; the embedder splits them into its own batches by length


class SbertSearchEmbedding(BaseEmbedding):
    """Embeds texts with the prompts that the model has for documents and queries.

    Args:
        model: A name, a folder or an embedder; None: the default model of `Embedder`.
        embed_batch_size: Texts of a call.
        options: How to open a model by name, such as ``device``; see `Embedder`.
    """

    _embedder: TextEmbedder = PrivateAttr()

    def __init__(
        self,
        model: ModelLike | None = None,
        *,
        embed_batch_size: int = BATCH_SIZE,
        **options: Unpack[EmbedderOptions],
    ) -> None:
        embedder = as_embedder(model, **options)
        super().__init__(model_name=embedder.identity.name, embed_batch_size=embed_batch_size)
        self._embedder = embedder

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex knows this class."""
        return "SbertSearchEmbedding"

    @property
    def embedder(self) -> TextEmbedder:
        """The model."""
        return self._embedder

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._embedder.encode_query([query])[0].tolist()
        return vector

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._embedder.encode_document(texts).tolist()
        return vectors

    _aget_query_embedding = in_thread(_get_query_embedding)
    _aget_text_embedding = in_thread(_get_text_embedding)
    _aget_text_embeddings = in_thread(_get_text_embeddings)


class SbertSearchRerank(BaseNodePostprocessor):
    """Keeps the nodes that a cross-encoder scores best, with its scores.

    Attributes:
        reranker: The cross-encoder. It reads the metadata that the node shows to embedding models,
            and the text.
        top_n: Number of nodes to keep.
        keep_retrieval_score: Whether to keep the score of the retrieval in the metadata as
            ``retrieval_score``.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    reranker: Reranker
    top_n: int = 2
    keep_retrieval_score: bool = False

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex knows this class."""
        return "SbertSearchRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("Missing query bundle in extra info.")
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        kept = []
        for ranked in self.reranker.rank(query_bundle.query_str, texts, self.top_n):
            found = nodes[ranked["corpus_id"]]
            if self.keep_retrieval_score:
                found.node.metadata["retrieval_score"] = found.score
            kept.append(NodeWithScore(node=found.node, score=ranked["score"]))
        return kept
