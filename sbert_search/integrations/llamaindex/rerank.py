"""A `Reranker` as LlamaIndex's node postprocessor."""

from __future__ import annotations

from llama_index.core.bridge.pydantic import ConfigDict
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from sbert_search.search.rerankers import Reranker


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
