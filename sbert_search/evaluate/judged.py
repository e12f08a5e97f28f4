"""Evaluate a model, an engine or a run on a BEIR folder, or on pairs; compare two engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Unpack

from sbert_search.embed.arguments import ModelLike
from sbert_search.errors import ConfigError, EvaluationError
from sbert_search.evaluate.comparison import Comparison, compare
from sbert_search.evaluate.manifest import Evaluation, EvaluationTracker
from sbert_search.evaluate.metrics.correlation import spearman
from sbert_search.evaluate.metrics.ranking import DEFAULT_MEASURES, mean, score_run
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.similarity import evaluate_binary, evaluate_sts
from sbert_search.evaluate.tasks import EvalTask, Kind
from sbert_search.index.building.model_check import as_embedder
from sbert_search.index.index import Index
from sbert_search.records import Qrels, Query, Run
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import SearchKeywords, SearchOptions
from sbert_search.search.rerankers import Reranker
from sbert_search.text.fields import find_field
from sbert_search.text.labelled.pairs import COLUMNS, rows_file
from sbert_search.text.labelled.retrieval import read_qrels_file, read_queries, read_run
from sbert_search.text.sources import classify, field_names
from sbert_search.text.spool import Rows

_JUDGED_DEPTH = 10  # hits that nDCG@10 reads
_KIND_OF_COLUMN: Mapping[str, Kind] = {"score": "sts", "label": "binary"}


def evaluate(
    system: SearchEngine | Index | Reranker | ModelLike | None,
    data: str | Path | Rows,
    *,
    split: str = "test",
    metric: str = "",
    seed: int = 0,
    **keywords: Unpack[SearchKeywords],
) -> Evaluation:
    """Measure a model or a search engine on data with known answers.

    What is measured follows from the data:

    - a BEIR folder: a search of its corpus with its judged queries;
    - rows with ``query`` and ``positive`` (or other usual names), perhaps ``negative``: a search of
      all positives and negatives with the queries or, for an engine, of its index;
    - for a model, rows with two texts and a ``score``: the correlation of similarity and score
      (STS);
    - for a model, rows with two texts and a ``label``, 0 or 1: how well a threshold of the
      similarity tells pairs with the label 1 from others.

    Args:
        system: A `SearchEngine` or `Index`; a name or folder of a model, an `Embedder` or a
            ``SentenceTransformer``; None: the default model; or, for pairs with a score or a label,
            a `Reranker`.
        data: A BEIR folder; a file of rows (CSV, TSV, JSON lines, JSON, Parquet, Arrow); or rows in
            memory, as for `Index.build`.
        split: Split of the judgements of a BEIR folder.
        metric: The main metric; "": nDCG@10, Spearman's correlation or F1.
        seed: Seed of the intervals.
        keywords: Options of the search, such as ``mode``; see `SearchOptions`. By default, the
            search has the mode that `SearchEngine.search` has.

    Returns:
        The metrics in ``scores``, 95 % intervals in ``intervals``, the value of each query or pair
        in ``per_item``. ``print`` shows the first two. `compare` compares two of them.

    Raises:
        CorpusError: A row or a file cannot be read.
        EvaluationError: The system cannot answer such data, a relevant text is not in the engine's
            index, or the metric is unknown.
        ConfigError: A search option is given for pairs with a score or a label.

    Example:
        >>> rows = [{"query": "mill", "positive": "A mill"}, {"query": "rye", "positive": "Rye"}]
        >>> evaluate("hashing", rows).scores["nDCG@10"]
        1.0
    """
    with rows_file(data) as path:
        system = SearchEngine(system) if isinstance(system, Index) else system
        kind = "retrieval" if isinstance(system, SearchEngine) else _kind_of(path)
        task = EvalTask(
            name=path.stem or "data",
            kind=kind,
            path=path.resolve(),
            split=split,
            main_metric=metric,
        )
        if kind == "retrieval" or isinstance(system, SearchEngine):
            return _searched(system, task, keywords, seed)
        if keywords:
            raise ConfigError(
                f"{', '.join(sorted(keywords))}: {path.name} has pairs with a score or a label, "
                "which are compared and not searched; leave out the options of a search."
            )
        model = system if isinstance(system, Reranker) else as_embedder(system)
        measured = evaluate_sts if kind == "sts" else evaluate_binary
        return measured(task, model, data=Path(), seed=seed)


def _kind_of(path: Path) -> Kind:
    if path.is_dir():
        return "retrieval"
    names = field_names(classify(path)) or []
    found = (kind for part, kind in _KIND_OF_COLUMN.items() if find_field(COLUMNS[part], names))
    return next(found, "retrieval")


def _searched(
    system: SearchEngine | Reranker | ModelLike | None,
    task: EvalTask,
    keywords: SearchKeywords,
    seed: int,
) -> Evaluation:
    if isinstance(system, Reranker):
        raise EvaluationError(
            "A Reranker alone finds no documents; pass SearchEngine(index, reranker=...)."
        )
    search = SearchOptions().with_keywords(None, **keywords)
    measured = partial(evaluate_retrieval, task, data=Path(), search=search, seed=seed)
    if not isinstance(system, SearchEngine):
        return measured(as_embedder(system))
    return measured(
        system.embedder,
        index=system.index,
        reranker=system.reranker,
        query_model=system.query_model,
    )


def evaluate_run(
    run: str | Path,
    qrels: str | Path,
    *,
    metrics: Sequence[str] = (),
    seed: int = 0,
) -> Evaluation:
    """Measure the run file of any system, such as Anserini, Elasticsearch or this package.

    Args:
        run: A file in TREC's format: query id, Q0, document id, rank, score, name of the system. Or
            a ``.json`` file: an object with an object of scores by document id for each query id.
        qrels: The judgements, in TREC's or in BEIR's format. All their queries count.
        metrics: nDCG@k, recall@k, MRR@k, MRR or MAP, the main one first; (): `DEFAULT_MEASURES`.
        seed: Seed of the intervals.

    Returns:
        As of `evaluate`. Two runs with the same judgements can be compared by `compare`.

    Raises:
        CorpusError: A file cannot be read, or has a wrong line.
        EvaluationError: A metric is unknown, or no query of the run is judged.
    """
    path, judged = Path(run), Path(qrels)
    names = tuple(metrics) or DEFAULT_MEASURES
    task = EvalTask(
        name=judged.stem or "qrels", kind="retrieval", path=judged.resolve(), main_metric=names[0]
    )
    tracker = EvaluationTracker(task, Path(), seed=seed)
    found, grades = read_run(path), read_qrels_file(judged)
    if found.keys().isdisjoint(grades):
        raise EvaluationError(
            f"None of the {len(found):,} queries of {path}, such as {next(iter(found))!r}, is "
            f"judged in {judged}, which has {next(iter(grades))!r}; name the judgements of the run."
        )
    return _measured(tracker, path.stem, found, grades, names)


def _measured(
    tracker: EvaluationTracker, system: str, run: Run, qrels: Qrels, metrics: Sequence[str]
) -> Evaluation:
    per_query = score_run(run, qrels, metrics)
    return tracker.finish(
        system,
        scores={name: mean(values) for name, values in per_query.items()},
        per_item=per_query,
        counts=_counts(run, qrels),
        run=run,
    )


def _counts(run: Run, qrels: Qrels) -> dict[str, int]:
    return {
        "queries": len(qrels),
        "judgements": sum(map(len, qrels.values())),
        "queries without results": len(qrels.keys() - run.keys()),
        "queries of the run left out, as not judged": len(run.keys() - qrels.keys()),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchAgreement:
    """How much the hits of two engines have in common, over the same queries.

    Attributes:
        queries: Number of queries.
        k: Number of first hits of each query that are compared.
        overlap: Mean share of the hits of one engine that the other one has, too.
        same_first: Share of queries with the same first hit.
        rank_correlation: Mean of Spearman's correlation of the ranks of the hits that both have, in
            queries with at least two such hits; None: there is no such query.
        judged: nDCG@10 of both, with judgements; None: there are none.
    """

    queries: int
    k: int
    overlap: float
    same_first: float
    rank_correlation: float | None
    judged: Comparison | None = None


def compare_searches(
    first: SearchEngine,
    second: SearchEngine,
    queries: str | Path | Sequence[Query],
    qrels: str | Path | None = None,
    *,
    k: int = 10,
    seed: int = 0,
    **keywords: Unpack[SearchKeywords],
) -> SearchAgreement:
    """Compare the hits of two engines, with or without judgements.

    Args:
        first: An engine.
        second: Another one, whose index has the same documents; for instance that of
            `Index.preview_migration`.
        queries: A file of queries with their texts and ids, a BEIR folder, or `Query` objects.
        qrels: The judgements, in TREC's or in BEIR's format; with them, the queries that they judge
            are also compared by nDCG@10.
        k: Number of first hits that are compared without judgements.
        seed: Seed of interval and p-value of the difference of nDCG@10.
        keywords: Options of the searches, such as ``mode``; see `SearchOptions`.

    Raises:
        CorpusError: A file cannot be read, or has a wrong line.
        EvaluationError: There is no query, or none of them is judged.
        QueryError: An option is out of range.

    Example:
        >>> index = Index.from_texts(["a river", "a mill"], model="hashing")
        >>> engine = SearchEngine(index)
        >>> compare_searches(engine, engine, [Query("1", "mill")]).overlap
        1.0
    """
    asked = read_queries(Path(queries)) if isinstance(queries, (str, Path)) else list(queries)
    grades = read_qrels_file(Path(qrels)) if qrels is not None else {}
    if not asked:
        raise EvaluationError("There are no queries to compare the searches by.")
    if qrels is not None and grades.keys().isdisjoint(query.query_id for query in asked):
        raise EvaluationError(
            f"None of the {len(asked):,} queries, such as {asked[0].query_id!r}, is judged in "
            f"{qrels}; name the judgements of these queries."
        )
    ids = {query.query_id for query in asked}
    grades = {query_id: own for query_id, own in grades.items() if query_id in ids}
    depth = max(k, _JUDGED_DEPTH) if grades else k
    runs = [engine.run(asked, depth, **keywords) for engine in (first, second)]
    tops = [{key: list(islice(hits, k)) for key, hits in run.items()} for run in runs]
    pairs = [(tops[0][query.query_id], tops[1][query.query_id]) for query in asked]
    judged = None
    if qrels is not None:
        path = Path(qrels)
        task = EvalTask(name=path.stem, kind="retrieval", path=path.resolve())
        measured = [
            _measured(EvaluationTracker(task, Path(), seed=seed), name, run, grades, ["nDCG@10"])
            for name, run in zip(("first", "second"), runs, strict=True)
        ]
        judged = compare(*measured, metric="nDCG@10", seed=seed)
    correlations = [c for pair in pairs if (c := _rank_correlation(*pair)) is not None]
    return SearchAgreement(
        queries=len(asked),
        k=k,
        overlap=_mean([_overlap(*pair) for pair in pairs]),
        same_first=_mean([a[:1] == b[:1] for a, b in pairs]),
        rank_correlation=_mean(correlations) if correlations else None,
        judged=judged,
    )


def _overlap(first: Sequence[str], second: Sequence[str]) -> float:
    """Return the share of hits that two searches have in common; it is 1 if both find nothing."""
    most = max(len(first), len(second))
    return len({*first} & {*second}) / most if most else 1.0


def _rank_correlation(first: Sequence[str], second: Sequence[str]) -> float | None:
    shared = [doc_id for doc_id in first if doc_id in second]
    if len(shared) < 2:
        return None
    return spearman(range(len(shared)), [second.index(one) for one in shared])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
