"""Make a map of an index from its stored vectors and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import memory
from sbert_search.base.progress import note, progress
from sbert_search.errors import EvaluationError
from sbert_search.index.index import Index
from sbert_search.index.norms import unit_vectors
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Metric
from sbert_search.lab.map.clusters import WordCounts, default_clusters, divide
from sbert_search.lab.map.layout import (
    STEPS,
    Floats,
    Neighbours,
    duplicate_groups,
    nearest,
    neighbour_layout,
    principal_axes,
    require_layout_library,
)
from sbert_search.lab.map.record import CorpusMap, MarkedQuery, gather
from sbert_search.lab.map.settings import FEWEST_DOCUMENTS, MapKeywords, MapSettings
from sbert_search.records import MetadataValue

BLOCK = 4096  # documents whose passages are averaged at a time


def choose_documents(snapshot: Snapshot, most: int, seed: int) -> NDArray[np.int64]:
    """Return the rows of the first passages of live documents, ascending, int64 (n,).

    If there are more than ``most`` documents, they are a random sample without repetition.
    """
    parts = [np.empty(0, np.int64)]
    for i, segment in enumerate(snapshot.segments):
        live, rows = snapshot.live_docs(i), segment.rows[segment.firsts]
        parts.append(rows if live is None else rows[live])
    docs = np.sort(np.concatenate(parts))
    if len(docs) <= most:
        return docs
    return np.sort(np.random.default_rng(seed).choice(docs, most, replace=False))


def document_vectors(snapshot: Snapshot, docs: NDArray[np.int64]) -> Floats:
    """Read the mean of the vectors of each document's passages, float32 (n, dim).

    ``docs`` are the rows of the first passages, ascending. With the metric cosine, means are scaled
    to norm 1, as are all vectors of such an index.
    """
    vectors = np.empty((len(docs), snapshot.settings.dim), np.float32)
    for start in range(0, len(docs), BLOCK):
        block = slice(start, start + BLOCK)
        vectors[block] = _means(snapshot, docs[block])
    return vectors


def _means(snapshot: Snapshot, docs: NDArray[np.int64]) -> Floats:
    if snapshot.n_rows == snapshot.n_docs:
        return snapshot.vectors(docs)
    rows = snapshot.rows_of(docs)  # the rows of a document are consecutive
    starts = np.searchsorted(rows, docs)
    counts = np.diff(starts, append=len(rows))
    means = np.add.reduceat(snapshot.vectors(rows).astype(np.float64), starts, axis=0)
    means /= counts[:, None]
    narrow: Floats = means.astype(np.float32)
    return unit_vectors(narrow) if snapshot.settings.metric == "cosine" else narrow


TEXT_CHARACTERS = 24_000_000  # characters of all texts on a page
LONGEST_TEXT, LONGEST_TITLE = 1000, 100  # characters of a text and of a title on a page
_BLOCK = 1024  # documents read at a time
_VECTOR_COPIES = 1.5  # memory for vectors, in sizes of their array; includes blocks in float64
_POINT_BYTES = 2_000  # bytes of a document in addition to its vector, neighbours and text


def map_index(
    index: Index | str | Path,
    *,
    settings: MapSettings | None = None,
    queries: Sequence[str] = (),
    **keywords: Unpack[MapKeywords],
) -> CorpusMap:
    """Make a two-dimensional map of an index from its stored vectors.

    Deleted documents are left out. The vector of a document with several passages is the mean of
    the vectors of its passages. If the map shows a sample of the documents, neighbours, outliers
    and near-duplicates are found within the sample.

    Args:
        index: An open index or its folder.
        settings: How the map is made; None: the defaults of `MapSettings`.
        queries: Queries whose best 50 documents are marked; the model of the index embeds them.
        keywords: Fields of ``settings`` to replace.

    Raises:
        ConfigError: A setting has a wrong value, openTSNE is not installed, or the map would exceed
            the memory limit of the process.
        EvaluationError: The index has fewer than 3 documents.
        IndexStoreError: The index cannot be opened, or is an unfinished build.
        ModelError: The model of the index, which ``queries`` need, cannot be loaded.

    Example:
        >>> drawn = map_index("my.index", neighbours=2, clusters=1)
        >>> drawn.layout.shape
        (3, 2)
    """
    settings = replace(settings or MapSettings(), **keywords)
    require_layout_library()
    opened = index if isinstance(index, Index) else Index.open(index)
    opened.require_finished()
    snapshot = opened.state
    metric, seed = snapshot.settings.metric, settings.seed
    lexical = snapshot.manifest.lexical or LexicalSettings()
    if settings.language is not None:
        lexical = LexicalSettings(language=settings.language)
        lexical.require_known_language()
    docs = choose_documents(snapshot, settings.points, seed)
    n = len(docs)
    _require_enough(opened, n)
    _require_memory(snapshot, n, settings)
    # The queries come first, before the long work: the model of the index may be missing.
    marked = _mark(queries, opened, snapshot, docs)
    vectors = document_vectors(snapshot, docs)
    with progress("Finding neighbours", n) as advance:
        near = nearest(vectors, min(settings.neighbours, n - 1), metric, advance)
    group = _duplicates(vectors, near, settings.duplicates, metric)
    with progress("Clustering", n) as advance:
        cluster = divide(vectors, settings.clusters or default_clusters(n), seed)
        advance(n)
    axes = principal_axes(vectors)
    del vectors
    counts = WordCounts(lexical, int(cluster.max()) + 1)
    titles, texts, metadata = _read(snapshot, docs, cluster, counts)
    words = counts.telling()
    columns, left_out = gather(metadata, snapshot.columns)
    del metadata, counts
    with progress("Laying out", STEPS, "steps") as advance:
        layout = neighbour_layout(near, axes, seed, advance)
    return CorpusMap(
        index=str(opened.path),
        model=opened.identity.name,
        metric=metric,
        settings=settings,
        n_indexed=snapshot.n_docs,
        doc_ids=snapshot.doc_ids(docs),
        titles=titles,
        texts=texts,
        columns=columns,
        left_out=left_out,
        axes=axes,
        layout=layout,
        cluster=cluster,
        words=words,
        neighbours=near,
        distances=near.distances(metric),
        group=group,
        queries=marked,
    )


def _mark(
    queries: Sequence[str], index: Index, snapshot: Snapshot, docs: NDArray[np.int64]
) -> list[MarkedQuery]:
    if not queries:
        return []
    from sbert_search.search.engine import SearchEngine  # imports torch

    engine, marked = SearchEngine(index), list[MarkedQuery]()
    for text in queries:
        hits = engine.search(text, k=50)
        rows = snapshot.lookup([hit.doc_id for hit in hits])
        on_map = np.isin(rows, docs)
        at = np.searchsorted(docs, rows[on_map]).tolist()
        scores = [hit.score for hit, drawn in zip(hits, on_map, strict=True) if drawn]
        marked.append(MarkedQuery(text, at, scores))
    return marked


def _duplicates(
    vectors: Floats, near: Neighbours, threshold: float, metric: Metric
) -> NDArray[np.int32]:
    if metric == "euclidean":
        note("No near-duplicates are searched, since the index has the metric euclidean.")
        return np.full(len(vectors), -1, np.int32)
    with progress("Finding near-duplicates", len(vectors)) as advance:
        return duplicate_groups(vectors, near, threshold, metric, advance)


def _read(
    snapshot: Snapshot,
    docs: NDArray[np.int64],
    cluster: NDArray[np.int32],
    counts: WordCounts,
) -> tuple[list[str], list[str], list[dict[str, MetadataValue]]]:
    """Read titles, beginnings of texts and metadata; count the words of each cluster."""
    titles, texts = list[str](), list[str]()
    metadata = list[dict[str, MetadataValue]]()
    length = min(LONGEST_TEXT, TEXT_CHARACTERS // len(docs))
    n_chars = 0  # of the metadata
    with progress("Reading documents", len(docs)) as advance:
        for start in range(0, len(docs), _BLOCK):
            passages = snapshot.fetch(docs[start : start + _BLOCK])
            for number, passage in enumerate(passages, start):
                document = passage.document
                counts.add(document.full_text, int(cluster[number]))
                titles.append(_begin(document.title or document.text, LONGEST_TITLE))
                texts.append(_begin(document.text, length))
                metadata.append(dict(document.metadata))
                n_chars += sum(len(str(value)) for value in document.metadata.values())
            counts.drop_rare()
            rest = n_chars * (len(docs) / len(metadata) - 1)
            memory.require(int(rest), "The metadata of the other documents")
            advance(len(passages))
    return titles, texts, metadata


def _begin(text: str, length: int) -> str:
    """Return the first characters of a text, without line breaks and repeated blanks."""
    words = " ".join(text[: 2 * length].split())
    return words if len(words) <= length else f"{words[: length - 1]}…"


def _require_enough(index: Index, n: int) -> None:
    if n < FEWEST_DOCUMENTS:
        holds = {0: "no documents", 1: "1 document"}.get(n, f"{n} documents")
        raise EvaluationError(
            f"{index.path} holds {holds}; a map needs at least {FEWEST_DOCUMENTS}. Add documents "
            "with `sbert-search index add`."
        )


def _require_memory(snapshot: Snapshot, n: int, settings: MapSettings) -> None:
    vector = _VECTOR_COPIES * 4 * snapshot.settings.dim
    neighbours = 60 * settings.neighbours  # bytes: rows, scores and the sparse matrix of t-SNE
    needed = int(n * (vector + neighbours + _POINT_BYTES) + 3 * TEXT_CHARACTERS)
    memory.require(needed, f"A map of {n:,} documents (--points)")
