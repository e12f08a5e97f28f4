"""BEIR folders as tasks of MTEB, and MTEB's tasks by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata

from sbert_search.errors import EvaluationError
from sbert_search.text.documents import CorpusReader
from sbert_search.text.labelled.retrieval import is_own_document, read_qrels, read_queries


class FolderTask(AbsTaskRetrieval):
    """Retrieval on a BEIR folder: corpus, queries and the judgements of a split.

    As in ``eval retrieval``, a query that is itself a document of the corpus does not count this
    document. MTEB has one flag for this, ``ignore_identical_ids``, which compares only ids. If it
    is set, a query that shares its id with another document gets another id.

    Args:
        folder: The folder.
        split: Name of the file of judgements, without ``.tsv``.
    """

    metadata: TaskMetadata
    dataset: dict[str, dict[str, object]] | None = None

    def __init__(self, folder: str | Path, split: str = "test") -> None:
        self.folder = Path(folder)
        self.metadata = TaskMetadata(
            name=self.folder.resolve().name,
            description=f"The BEIR folder {self.folder.name}.",
            dataset={"path": str(self.folder), "revision": "local"},
            type="Retrieval",
            category="t2t",
            modalities=["text"],
            eval_splits=[split],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )
        super().__init__()

    def unload_data(self) -> None:
        """Free the memory of the data; MTEB's own method would remove the metadata too."""
        self.dataset, self.data_loaded = None, False

    def load_data(self, num_proc: int | None = None, **kwargs: object) -> None:
        """Read the folder; queries without a judgement are left out."""
        (split,) = self.metadata.eval_splits
        qrels = read_qrels(self.folder, split)
        queries = [query for query in read_queries(self.folder) if query.query_id in qrels]
        reader = CorpusReader(self.folder, on_error="skip")
        reader.survey()
        documents = [document for batch in reader.batches() for document in batch.documents]
        texts = {query.query_id: query.text for query in queries}
        own = {
            each.doc_id: is_own_document(texts[each.doc_id], each, qrels[each.doc_id])
            for each in documents
            if each.doc_id in texts
        }
        self.ignore_identical_ids = any(own.values())
        renamed = {
            name: f"query {name}"
            for name, is_own in own.items()
            if self.ignore_identical_ids and not is_own
        }
        data = RetrievalSplitData(
            corpus=Dataset.from_list(
                [{"id": each.doc_id, "title": each.title, "text": each.text} for each in documents]
            ),
            queries=Dataset.from_list(
                [{"id": renamed.get(name, name), "text": text} for name, text in texts.items()]
            ),
            relevant_docs={renamed.get(name, name): dict(grades) for name, grades in qrels.items()},
            top_ranked=None,
        )
        self.dataset = {"default": {split: data}}
        self.data_loaded = True


def run_tasks(model: Any, tasks: Sequence[Any], out: Path | None = None) -> list[dict[str, Any]]:
    """Run tasks; return a mapping with the main score for each split and subset of each task.

    Results in ``out`` are not computed again, except those of BEIR folders, whose files may have
    changed.
    """
    cache = None if out is None else mteb.ResultCache(out)
    try:
        results = [
            result
            for task in tasks
            for result in mteb.evaluate(
                model,
                [task],
                cache=cache,
                co2_tracker=False,
                show_progress_bar=False,
                overwrite_strategy="always" if isinstance(task, FolderTask) else "only-missing",
            ).task_results
        ]
    except OSError as error:
        names = ", ".join(task.metadata.name for task in tasks)
        raise EvaluationError(
            f"The data of {names} cannot be read: {error} Name a BEIR folder, or go online."
        ) from error
    return [
        {
            "task": result.task_name,
            "split": split,
            "subset": scores["hf_subset"],
            "metric": task.metadata.main_score,
            "score": float(scores["main_score"]),
        }
        for task, result in zip(tasks, results, strict=True)
        for split, subsets in result.scores.items()
        for scores in subsets
    ]


def open_tasks(names: Sequence[str], split: str = "test") -> list[Any]:
    """Return tasks of MTEB by name, and BEIR folders by path."""
    tasks: list[Any] = []
    for name in names:
        if Path(name).is_dir():
            tasks.append(FolderTask(name, split))
            continue
        try:
            tasks.append(mteb.get_task(name))
        except KeyError as error:
            raise EvaluationError(
                f"{name!r} is neither a task of MTEB nor a BEIR folder. {error.args[0]}"
            ) from error
    return tasks
