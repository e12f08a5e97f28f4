"""A `SearchEngine` as MTEB's search model: dense, lexical, hybrid or reranked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mteb._create_dataloaders import create_dataloader  # noqa: PLC2701 (no public name)
from mteb.types import PromptType

from sbert_search.base.cache import digest_of
from sbert_search.config import to_mapping
from sbert_search.embed.arguments import ModelLike
from sbert_search.errors import EvaluationError
from sbert_search.evaluate.metrics.ranking import ties_by_hash
from sbert_search.index.building.model_check import as_embedder
from sbert_search.index.index import Index
from sbert_search.index.settings import LexicalSettings
from sbert_search.integrations.conditions import Conditions, all_of
from sbert_search.integrations.mteb.models import meta_of
from sbert_search.records import Query, Run
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import SearchOptions
from sbert_search.search.ordering import PairScorer
from sbert_search.search.rerankers import BestWindow, Reranker
from sbert_search.text.labelled.retrieval import strictly_falling

if TYPE_CHECKING:
    from datasets import Dataset
    from mteb.abstasks.task_metadata import TaskMetadata

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
        """Identity of a reranker of this package, or the class name of another; None: none."""
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
            where = all_of([f"({own})", columns.id_in(ids)]) if own else columns.id_in(ids)
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
