"""Evaluate retrieval on a judged collection, and select a fusion of rankings by judged queries.

In some collections, such as ArguAna and Quora, queries are documents of the collection. Such a
query finds itself first. BEIR and MTEB therefore leave out a document with the query's id
(``ignore_identical_ids``). In other collections, queries and documents are numbered independently
of each other, and a document with the number of a query may be relevant to it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, compress, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import warn
from sbert_search.config import to_mapping
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import EvaluationError, QueryError
from sbert_search.evaluate.manifest import ALIKE, Evaluation, EvaluationTracker
from sbert_search.evaluate.metrics.ranking import DEFAULT_MEASURES, mean, score_run, ties_by_hash
from sbert_search.evaluate.tasks import EvalTask
from sbert_search.index.building.build import BuildSettings, build_index
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.documents import first_rows
from sbert_search.index.index import Index
from sbert_search.index.settings import LexicalSettings
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.records import Qrels, Query, Run, Where
from sbert_search.search.candidates import candidates_of
from sbert_search.search.engine import SearchEngine
from sbert_search.search.facets import require_groups
from sbert_search.search.fusion import fuse
from sbert_search.search.hits import ids_of
from sbert_search.search.options import MAX_RERANK_DEPTH, Fusion, SearchOptions
from sbert_search.search.ordering import PairScorer
from sbert_search.search.queries import pages_of_file
from sbert_search.text.formats.rows import excerpt
from sbert_search.text.labelled.pairs import read_triplets
from sbert_search.text.labelled.records import Triplet
from sbert_search.text.labelled.retrieval import (
    collection_of_pairs,
    fold_case_and_space,
    is_own_document,
    read_qrels,
    read_queries,
)
from sbert_search.text.spool import Sources

OWN_DOCUMENTS = "queries whose own document is left out"
"""The count in evaluations."""


def own_documents(
    index: Index, queries: Sequence[Query], qrels: Qrels, ignore_identical_ids: bool | None = None
) -> set[str]:
    """Return the ids of the queries whose own document is to be left out of their results."""
    if ignore_identical_ids is False:
        return set()
    rows = index.state.lookup([query.query_id for query in queries])
    namesakes = [query for query, row in zip(queries, rows.tolist(), strict=True) if row >= 0]
    if ignore_identical_ids:
        return {query.query_id for query in namesakes}
    return {
        query.query_id
        for query in namesakes
        if (document := index.get(query.query_id))
        and is_own_document(query.text, document, qrels[query.query_id])
    }


def without_own(
    run: Run, own: Collection[str], depth: int | None = None
) -> dict[str, dict[str, float]]:
    """Return a run without the own documents of the queries ``own``, cut to ``depth`` hits."""
    return {
        query_id: dict(
            islice(
                (hit for hit in hits.items() if hit[0] != query_id or query_id not in own), depth
            )
        )
        for query_id, hits in run.items()
    }


# Options that `_settings` does not copy: they have other names there, or they change no score.
_STATED = {"k", "mode", "fusion", "rerank_depth", "full_text", "fields", "answer_depth"}


def evaluate_retrieval(
    task: EvalTask,
    embedder: TextEmbedder,
    *,
    data: Path,
    index: Path | Index | None = None,
    search: SearchOptions | None = None,
    reranker: PairScorer | None = None,
    query_model: str | None = None,
    seed: int = 0,
    encoding: str | None = None,
) -> Evaluation:
    """Search a collection with its judged queries and compute the metrics of the rankings.

    Documents with equal scores are ordered by a hash of query and document, and not as in the
    collection, in which relevant documents often come first: a model that gives all texts one
    vector would then get the best metrics.

    The data are a BEIR folder, or a file of pairs of a query and a relevant text, perhaps with
    negatives. The collection of pairs is that of `collection_of_pairs` or, with ``index``, that
    index, whose documents are named by their texts or ids.

    ``index`` None: an index with exact search is built in a temporary folder. ``task.depth`` is the
    number of documents found for a query. The reranker gets the first ``search.rerank_depth`` of
    them, which stay before the others. ``query_model`` names one of the index that embeds the
    queries; ``embedder`` is then that model. ``encoding`` is that of pairs and queries.
    """
    score_run({}, {}, [task.main_metric])  # an unknown metric is refused before the work
    search = search or SearchOptions()
    if reranker is not None and search.rerank_depth < 1:
        raise QueryError(f"rerank_depth is {search.rerank_depth}; it must be at least 1.")
    folder = data / task.path
    of_pairs = folder.is_file()
    files = [folder] if of_pairs else collection_files(task, folder)
    tracker = EvaluationTracker(task, data, seed=seed, files=files)
    rows: Sources = folder
    if of_pairs:
        if search.group_by is not None:
            raise QueryError(
                "group_by needs judgements of groups, in a folder with queries.jsonl and qrels; "
                "pairs have none. See docs/guides/evaluating.md."
            )
        pairs = read_triplets(folder, allow_pairs=True, encoding=encoding)
        rows, queries, qrels = collection_of_pairs(pairs)
    else:
        qrels = read_qrels(folder, task.split)
        queries = _judged(task, folder, qrels, encoding)
    tracker.lap("read")
    words = None if search.mode == "dense" else LexicalSettings()
    with _open_or_build(task, rows, embedder, index, words) as (opened, build_counts):
        if of_pairs and index is not None:
            qrels = _qrels_in(opened, pairs, queries)
        depth = min(search.rerank_depth, task.depth)  # the reranker adds no documents to the run
        search = replace(search.for_index(opened.state), rerank_depth=depth)
        _warn_of_absent(opened, qrels, search)
        ignore = task.ignore_identical_ids if search.group_by is None else False
        own = own_documents(opened, queries, qrels, ignore)
        tracker.lap("index")
        model = embedder if query_model is None else None
        engine = SearchEngine(opened, model, query_model=query_model)
        found = engine.run(queries, task.depth + bool(own), options=search)
        # The documents that the reranker gets are those that it gets in a search.
        first = 0 if reranker is None else depth
        run: Run = ties_by_hash(without_own(found, own, task.depth), first)
        tracker.lap("search")
        if reranker is not None:
            more = min(depth + bool(own), MAX_RERANK_DEPTH)
            reranking = SearchEngine(opened, model, reranker, query_model=query_model)
            reranked = reranking.run(queries, more, options=replace(search, rerank_depth=more))
            run = _put_first(reranked, run, depth)
            tracker.lap("rerank")
        settings = _settings(opened, search, task.depth, reranker)
        settings |= {"encoding": encoding} if encoding else {}
        counts = _counts(opened, qrels, search.group_by) | build_counts
        if own:
            settings["ignore identical ids"] = True
            counts[OWN_DOCUMENTS] = len(own)
        # Few words of a query often give few documents one score.
        if alike := sum(len(hits) >= 10 and len({*hits.values()}) == 1 for hits in found.values()):
            counts[ALIKE] = alike
    per_query = score_run(run, qrels, dict.fromkeys((task.main_metric, *DEFAULT_MEASURES)))
    evaluation = tracker.finish(
        embedder.identity,
        scores={name: mean(values) for name, values in per_query.items()},
        per_item=per_query,
        counts=counts,
        settings=settings,
        run=run,
    )
    return replace(evaluation, texts={query.query_id: query.text for query in queries})


def _qrels_in(index: Index, pairs: Sequence[Triplet], queries: Sequence[Query]) -> Qrels:
    """Return the judgements of pairs whose positives are texts or ids of an index's documents.

    All documents with the text of a positive are relevant.
    """
    wanted = {pair.positive for pair in pairs}
    found = {text: {text} for text in wanted if text in index}
    folded = {fold_case_and_space(text): set[str]() for text in wanted - found.keys()}
    for document in index if folded else ():
        for text in (document.text, document.full_text):
            if (known := folded.get(fold_case_and_space(text))) is not None:
                known.add(document.doc_id)
    for text in wanted - found.keys():
        if doc_ids := folded[fold_case_and_space(text)]:
            found[text] = doc_ids
    if not found:
        pair = pairs[0]
        pages = pages_of_file(index.state, pair.positive)
        raise EvaluationError(
            f"{pair.source}: {excerpt(pair.positive)} is neither the text nor the id of a document "
            f"of {index.path}, nor is another positive; name the pairs of this index, or evaluate "
            f"the model without an index.{pages}"
        )
    found |= {text: {text} for text in wanted - found.keys()}  # an absent id, of which is warned
    ids = {query.text: query.query_id for query in queries}
    qrels: dict[str, dict[str, int]] = {query.query_id: {} for query in queries}
    for pair in pairs:
        qrels[ids[pair.anchor]] |= dict.fromkeys(sorted(found[pair.positive]), 1)
    return qrels


def _are_in(
    index: Index, ids: Sequence[str], group_by: str | None, where: Where | None = None
) -> NDArray[np.bool_]:
    """Whether documents or, with ``group_by``, groups are in the index and pass the filter."""
    if group_by is None:
        rows = index.state.lookup(ids)
        return rows >= 0 if where is None else np.isin(rows, first_rows(index.state, where))
    require_groups(index.state, group_by)
    found = {*ids_of(index.state, first_rows(index.state, where), group_by)}
    return np.array([each in found for each in ids], dtype=bool)


def _warn_of_absent(index: Index, qrels: Qrels, search: SearchOptions) -> None:
    """Warn of queries with relevant documents that the index lacks, or that a filter leaves out."""
    relevant = {
        query_id: [doc_id for doc_id, grade in grades.items() if grade > 0]
        for query_id, grades in qrels.items()
    }
    ids = list(dict.fromkeys(chain.from_iterable(relevant.values())))
    are_in = _are_in(index, ids, search.group_by)
    passes = _are_in(index, ids, search.group_by, search.where)
    causes = {"are not in the index": ~are_in, "the filter leaves out": are_in & ~passes}
    for cause, are_absent in causes.items():
        if absent := dict.fromkeys(compress(ids, are_absent.tolist())):
            n = sum(not absent.keys().isdisjoint(own) for own in relevant.values())
            pages = pages_of_file(index.state, next(iter(absent)))
            warn(
                f"{n:,} of {len(qrels):,} queries have relevant documents that {cause}, "
                f"{len(absent):,} in all: {', '.join([*absent][:3])}"
                f"{', ...' if len(absent) > 3 else ''}; their scores are lower for it."
                f"{pages and f'{pages} To find files, pass --group-by path.'}"
            )


def _put_first(reranked: Run, retrieved: Run, depth: int) -> dict[str, dict[str, float]]:
    """Put the first ``depth`` documents of each query into the reranked order, before the others.

    Documents with equal scores of the reranker stay in the order of ``retrieved``. The scores of
    the result only express the order: 1 for the last document of a query, 2 for the one before it.
    """
    ordered = {}
    for query, hits in retrieved.items():
        first = [doc_id for doc_id in islice(hits, depth) if doc_id in reranked[query]]
        first.sort(key=reranked[query].__getitem__, reverse=True)
        ordered[query] = [*first, *islice(hits, depth, None)]
    return {
        query: {doc_id: float(len(docs) - index) for index, doc_id in enumerate(docs)}
        for query, docs in ordered.items()
    }


def _settings(
    index: Index, search: SearchOptions, depth: int, reranker: PairScorer | None
) -> dict[str, object]:
    """Return the settings on which the scores depend, without those of unused stages."""
    stored = index.state.manifest
    fusion = to_mapping(search.fusion)
    weight = fusion.pop("rerank_weight")
    settings: dict[str, object] = {
        "mode": search.mode,
        "index": stored.settings.spec.factory,
        "metric": stored.settings.metric,
        "depth": depth,
    }
    reading = index.read_settings
    if reading.on_truncate == "chunk":
        settings |= {
            "chunk tokens": reading.chunk_tokens or index.identity.max_len,
            "chunk overlap": reading.chunk_overlap,
            "chunk borders": reading.chunk_borders,
        }
    if search.mode != "dense" and stored.lexical is not None:
        settings |= to_mapping(stored.lexical)
    defaults, values = to_mapping(SearchOptions()), to_mapping(search)
    others = {name for name in values if values[name] != defaults[name]} - _STATED
    plain = json.loads(json.dumps(values, default=str))  # JSON has no dates, but a boost may
    settings |= {name.replace("_", " "): plain[name] for name in values if name in others}
    if search.mode == "hybrid":
        settings |= {f"fusion {name}": value for name, value in fusion.items()}
    if reranker is not None:
        identity: ModelIdentity | None = getattr(reranker, "identity", None)
        name = type(reranker).__name__ if identity is None else Path(identity.name).name
        settings |= {
            "reranker": name,
            "reranker weights sha256": identity.weights_sha256 if identity else "",
            "rerank depth": search.rerank_depth,
            "rerank weight": weight,
            "rerank windows": getattr(reranker, "most", 1),
        }
    return settings


@contextmanager
def _open_or_build(
    task: EvalTask,
    rows: Sources,
    embedder: TextEmbedder,
    index: Path | Index | None,
    words: LexicalSettings | None,
) -> Iterator[tuple[Index, dict[str, int]]]:
    """Open an index, or build one with exact search that goes with the context."""
    if index is not None:
        opened = index if isinstance(index, Index) else Index.open(index)
        if not len(opened):
            raise EvaluationError(
                f"{opened.path} holds no documents; add those of {task.name} first."
            )
        yield opened, {}
        return
    with tempfile.TemporaryDirectory(prefix="sbert-search-eval-") as scratch:
        out = Path(scratch) / "index"
        settings = BuildSettings(on_error=task.on_error, on_truncate="warn", lexical=words)
        report = build_index(rows, out, lambda: embedder, settings)
        yield Index.open(out), {"documents truncated": report.truncated}


def collection_files(task: EvalTask, folder: Path) -> list[Path]:
    """Return the files of a BEIR folder on which the scores depend."""
    if not folder.is_dir():
        raise EvaluationError(
            f"{task.name}: there is no folder {folder}; point --data at the data sets."
        )
    tables = [*folder.glob("corpus.jsonl*"), *folder.glob("queries.jsonl*")]
    judgements = folder / "qrels" / f"{task.split}.tsv"
    return [*sorted(tables), *([judgements] if judgements.is_file() else [])]


def _judged(task: EvalTask, folder: Path, qrels: Qrels, encoding: str | None) -> list[Query]:
    queries = {query.query_id: query for query in read_queries(folder, encoding=encoding)}
    unknown = [query_id for query_id in qrels if query_id not in queries]
    if unknown:
        raise EvaluationError(
            f"{task.name}: {len(unknown)} of {len(qrels)} judged queries are not among the queries "
            f"of {folder}, the first is {unknown[0]!r}; the files do not belong together."
        )
    return [queries[query_id] for query_id in qrels]


def _counts(index: Index, qrels: Qrels, by: str | None) -> dict[str, int]:
    judged = sorted({doc_id for grades in qrels.values() for doc_id in grades})
    build = index.state.manifest.build
    return {
        "queries": len(qrels),
        "queries without a relevant document": sum(
            max(grades.values()) < 1 for grades in qrels.values()
        ),
        "judgements": sum(map(len, qrels.values())),
        "judged documents that are not in the index": int((~_are_in(index, judged, by)).sum()),
        "documents": index.state.n_docs,
        "passages": index.state.n_rows,
        "documents left out (bad rows)": build.counts.rejected if build else 0,
    }


# The fusions that are compared: weighted sums with dense weights from 0 to 1 in steps of 0.1, and
# reciprocal rank fusion.
CANDIDATES = (
    *(Fusion(dense_weight=tenths / 10) for tenths in range(11)),
    Fusion(method="rrf", dense_weight=0.5),
)


@dataclass(frozen=True, slots=True)
class FusionChoice:
    """The selected fusion and its scores.

    ``held_out`` is an estimate of the score on new queries: each query is scored with the fusion
    that is best on the folds without it.
    """

    fusion: Fusion  # the best over all queries if held_out is above default, else Fusion()
    scores: Mapping[str, float]  # mean of each fusion over all queries, by its name
    held_out: float  # cross-validated mean score
    default: float  # mean score of the default fusion over all queries
    folds: tuple[str, ...]  # for each fold, the fusion that is best on the other folds


def judged_queries(
    data: Path, index: Index, split: str, encoding: str | None = None
) -> tuple[list[Query], Qrels]:
    """Read the judged queries of a BEIR folder, or of a file of pairs over an index's documents."""
    if data.is_file():
        pairs = read_triplets(data, allow_pairs=True, encoding=encoding)
        _, queries, _ = collection_of_pairs(pairs)
        return queries, _qrels_in(index, pairs, queries)
    qrels = read_qrels(data, split)
    queries = read_queries(data, encoding=encoding)
    return [query for query in queries if query.query_id in qrels], qrels


def name_of(fusion: Fusion) -> str:
    """Return the name of a fusion for a table."""
    constant = f" k = {fusion.rrf_k}," if fusion.method == "rrf" else ""
    return f"{fusion.method},{constant} dense {fusion.dense_weight:g}"


def choose_fusion(
    index: Index,
    embedder: TextEmbedder,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    measure: str = "nDCG@10",
    folds: int = 5,
    seed: int = 0,
    group_by: str | None = None,
    where: Where | None = None,
) -> FusionChoice:
    """Compare fusions by cross-validation; dense and lexical search run only once for each query.

    Do not pass the queries of a test set, whose scores would then be too high. With ``group_by``,
    the judgements are of values of this column. ``where`` is the filter of the searches.
    """
    if len(queries) < 2:
        raise EvaluationError(
            f"The number of judged queries is {len(queries)}; choosing a fusion needs at least 2."
        )
    if not 2 <= folds <= len(queries):
        raise EvaluationError(
            f"folds is {folds}; it must be from 2 to the number of judged queries, {len(queries)}."
        )
    for query in queries:
        if query.query_id not in qrels:
            raise EvaluationError(f"The query {query.query_id!r} has no judgements; leave it out.")
    score_run({}, {}, [measure])  # an unknown metric is refused before the searches
    _warn_of_absent(index, qrels, SearchOptions(group_by=group_by, where=where))
    mask = None if where is None else index.state.filter_mask(where)
    # (n_candidates, n_queries)
    scores = _scores(index, embedder, queries, qrels, measure, group_by, mask)
    if not scores.any():
        raise EvaluationError(
            "No fusion finds a relevant document for any query, so none can be chosen. Name the "
            "judgements of this index."
        )
    fold = np.random.default_rng(seed).permutation(len(queries)) % folds
    best = [int(scores[:, fold != f].mean(axis=1).argmax()) for f in range(folds)]
    names = [name_of(fusion) for fusion in CANDIDATES]
    means = scores.mean(axis=1)
    held_out = float(scores[np.array(best)[fold], np.arange(len(queries))].mean())
    default = float(means[CANDIDATES.index(Fusion())])
    return FusionChoice(
        fusion=CANDIDATES[int(means.argmax())] if held_out > default else Fusion(),
        scores=dict(zip(names, means.tolist(), strict=True)),
        held_out=held_out,
        default=default,
        folds=tuple(names[i] for i in best),
    )


def _scores(
    index: Index,
    embedder: TextEmbedder,
    queries: Sequence[Query],
    qrels: Qrels,
    measure: str,
    group_by: str | None,
    mask: RowMask | None,
) -> np.ndarray:
    """Compute the score of each query with each fusion, (n_candidates, n_queries)."""
    snapshot, depth = index.state, Fusion().depth
    own = own_documents(index, queries, qrels, None if group_by is None else False)
    texts = [query.text for query in queries]
    found = list(candidates_of(snapshot, texts, embedder.encode_query(texts), depth, mask))
    values = []
    for fusion in CANDIDATES:
        run = {}
        for query, candidates in zip(queries, found, strict=True):
            ranking = fuse(candidates, fusion)
            ranked = enumerate(ids_of(snapshot, ranking.docs, group_by))
            # The first document of a group counts.
            run[query.query_id] = {name: -float(rank) for rank, name in reversed([*ranked])}
        per_query = score_run(without_own(run, own), qrels, [measure])[measure]
        values.append([per_query[query.query_id] for query in queries])
    return np.array(values)
