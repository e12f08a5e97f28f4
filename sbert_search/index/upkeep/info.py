"""A summary of an index, and how far updates have degraded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense.faiss_file import FaissFile
from sbert_search.index.dense.faiss_runtime import import_faiss
from sbert_search.index.settings import LexicalSettings, Tuning
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import ColumnType, Manifest, QueryModel
from sbert_search.index.upkeep.merge_policy import advice
from sbert_search.records import RowCounts


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexInfo:
    """A summary of one state of an index.

    Attributes:
        path: The folder.
        finished: Whether the build is complete; an unfinished index is not searched.
        documents: Number of live documents, which searches can find.
        passages: Number of live rows, one for each passage of these documents.
        dead_rows: Number of deleted or replaced rows that still take space.
        segments: Number of segments.
        size_bytes: Bytes of all files of this state.
        commits: Number of commits so far.
        dim: Dimensions of a vector.
        metric: How vectors are compared.
        dtype: Type in which vectors are stored.
        factory: FAISS factory string of the vector search.
        lexical: Settings of lexical search; None: the index has no lexical data.
        model: Identity of the model that made the vectors.
        query_models: Models for queries in the space of these vectors, by name.
        verdict: The measurement by which the model's precision was chosen for the build; empty if
            none was made.
        on_truncate: What is done with texts longer than the model reads; "" if not known.
        chunk_tokens: Maximum number of tokens of a passage; None: what the model reads.
        chunk_overlap: Maximum number of tokens that a passage shares with the passage before.
        columns: Metadata columns and their types.
        built: Number of input rows of the build, by outcome (indexed, rejected, ...).
        source_sha256: Hash of the sources of the build; "": the index was made empty.
        root: The folder with which `Index.sync` compares the index; the id of a file is its path
            relative to this folder. "": there is no such folder.
        tuning: Result of the last tuning; None if the index was not tuned.
        advice: The reason to compact the index, or "".
        shards: Number of shards; None: the index is not sharded.
        migrating_to: Name of the model of a migration that has not switched yet, or "".
        migrated_from: Name of the model before, whose vectors are still there, or "".
        without_vectors: Number of live passages without a vector of that other model.

    Example:
        >>> info = Index.open("my.index").info()
        >>> info.documents, info.factory
        (3, 'Flat')
    """

    path: str
    finished: bool
    documents: int
    passages: int
    dead_rows: int
    segments: int
    size_bytes: int
    commits: int
    dim: int
    metric: str
    dtype: str
    factory: str
    lexical: LexicalSettings | None
    model: Mapping[str, object]
    query_models: Mapping[str, QueryModel]
    verdict: Mapping[str, object]
    on_truncate: str
    chunk_tokens: int | None
    chunk_overlap: int
    columns: Mapping[str, ColumnType]
    built: RowCounts
    source_sha256: str
    root: str
    tuning: Tuning | None
    advice: str
    shards: int | None = None
    migrating_to: str = ""
    migrated_from: str = ""
    without_vectors: int = 0


def describe(snapshot: Snapshot) -> IndexInfo:
    """Summarise a state of an index."""
    manifest, settings = snapshot.manifest, snapshot.manifest.settings
    build = manifest.build
    stored = build.settings if build else {}
    return IndexInfo(
        path=str(snapshot.path),
        shards=snapshot.n_shards if snapshot.is_sharded else None,
        finished=build is None or build.finished,
        documents=manifest.n_docs,
        passages=manifest.n_rows,
        dead_rows=manifest.n_dead_rows,
        segments=len(manifest.segments),
        size_bytes=manifest.size_bytes,
        commits=manifest.generation,
        dim=settings.dim,
        metric=settings.metric,
        dtype=settings.dtype,
        factory=settings.spec.factory,
        lexical=manifest.lexical,
        model=settings.identity,
        query_models=manifest.active_query_models,
        verdict=settings.verdict,
        on_truncate=str(stored.get("on_truncate", "")),
        chunk_tokens=cast("int | None", stored.get("chunk_tokens")),
        chunk_overlap=cast("int", stored.get("chunk_overlap", 0)),
        columns=manifest.columns,
        built=build.counts if build else RowCounts(),
        source_sha256=build.source_sha256 if build else "",
        root=(build.root or "") if build else "",
        tuning=manifest.tuning,
        advice=advice(snapshot),
        migrating_to=model_name(manifest, manifest.pending),
        migrated_from=model_name(manifest, manifest.previous),
        without_vectors=without_vectors(snapshot),
    )


def without_vectors(snapshot: Snapshot) -> int:
    """Count the live passages that lack a vector of one of the models, during a migration."""
    count = 0
    for part in snapshot.parts:
        manifest = part.manifest
        for i, record in enumerate(manifest.segments):
            if len(record.vectors) < len(manifest.vectors):
                filling, live = manifest.filling, part.live(i)
                done = filling.n_rows if filling and filling.docs == record.docs.name else 0
                count += record.n_rows - done if live is None else int(live[done:].sum())
    return count


def model_name(manifest: Manifest, name: str | None) -> str:
    """Return the name of the model of a set of vectors, or "" for no set."""
    return str(manifest.vectors[name].identity.get("name", "")) if name else ""


N_PROBES = 200  # passages whose vectors are the queries that measure the recall
K = 10  # the k of recall@k
TARGET_RECALL = 0.95
MAX_IMBALANCE = 2.5  # imbalance factor at which to retrain; just after training it is 1.1 to 1.6


@dataclass(frozen=True, slots=True)
class DriftReport:
    """The condition of an index after updates.

    Attributes:
        segments: Number of segments.
        dead_share: Share of deleted or replaced rows among all stored rows.
        scanned_share: Share of the live rows that no FAISS file holds; 0 if the spec is Flat.
        imbalance: Imbalance factor of the inverted lists, the largest of all shards. It is 1 when
            all lists are equally long, and n when a search reads n times as many vectors as with
            equally long lists. None without inverted lists.
        probes: Number of passages whose vectors were the queries.
        recall: Mean recall@10 over these queries; a passage does not count as its own neighbour.
            None when every search is exact, or there is only one row.
        target: Target recall.
        actions: Recommended commands, the most useful first; empty if none is needed.

    Source: the imbalance factor of Jegou et al. 2011, Product quantization for nearest neighbor
    search, section IV-D.

    Example:
        >>> Index.open("my.index").drift().actions
        ()
    """

    segments: int
    dead_share: float
    scanned_share: float
    imbalance: float | None
    probes: int
    recall: float | None
    target: float
    actions: tuple[str, ...]


def measure_drift(snapshot: Snapshot, target: float | None = None) -> DriftReport:
    """Measure recall, dead rows and list balance of an index.

    ``target`` None: the recall for which the index was tuned, or else `TARGET_RECALL`.
    """
    manifest = snapshot.manifest
    if target is None:
        target = manifest.tuning.recall if manifest.tuning else TARGET_RECALL
    with_faiss = [i for i, ann in enumerate(snapshot.anns) if ann and ann.index is not None]
    in_faiss = sum(snapshot.n_live(i) for i in with_faiss)
    imbalance = max(filter(None, (_imbalance(part.anns) for part in snapshot.parts)), default=None)
    probes = probe_queries(snapshot) if with_faiss else np.empty(0, np.int64)
    recall = recall_of(snapshot, probes) if len(probes) else None
    flat = manifest.settings.spec.is_flat
    return DriftReport(
        segments=len(manifest.segments),
        dead_share=manifest.n_dead_rows / max(1, manifest.n_rows + manifest.n_dead_rows),
        scanned_share=0.0 if flat or not manifest.n_rows else 1.0 - in_faiss / manifest.n_rows,
        imbalance=imbalance,
        probes=len(probes),
        recall=recall,
        target=target,
        actions=tuple(_actions(snapshot, imbalance, recall, target)),
    )


def _actions(
    snapshot: Snapshot, imbalance: float | None, recall: float | None, target: float
) -> list[str]:
    actions = []
    unbalanced = imbalance is not None and imbalance > MAX_IMBALANCE
    if unbalanced:
        actions.append(
            f"`index compact --retrain`: the inverted lists are {imbalance:.1f} times as costly to "
            "search as lists of equal length, because they were trained on other documents"
        )
    if recall is not None and recall < target:
        more = ", if that does not help" if unbalanced else ""
        actions.append(f"`index tune`{more}: recall is {recall:.3f}, below the target of {target}")
    if why := advice(snapshot):
        actions.append(f"`index compact`: {why}")
    return actions


def probe_queries(snapshot: Snapshot) -> NDArray[np.int64]:
    """Return the live rows with the smallest hashes: a random sample that updates hardly change.

    Source: SplitMix64's finaliser (Steele et al. 2014, Fast splittable pseudorandom number
    generators, section 4).
    """
    rows = snapshot.live_rows()
    hashes = rows.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * np.uint64(factor)
    return rows[np.argsort(hashes ^ (hashes >> np.uint64(31)), kind="stable")[:N_PROBES]]


def recall_of(snapshot: Snapshot, probes: NDArray[np.int64]) -> float | None:
    """Return the mean recall@10 of searches for the probes, not counting the probes themselves.

    A row counts as correct if its score is at least that of the exact 10th neighbour, since of rows
    with equal vectors FAISS may return others. None if the index has only one row.
    """
    queries = snapshot.vectors(probes)
    found, exact = snapshot.search(queries, K + 1), snapshot.search(queries, K + 1, exact=True)
    recalls = []
    for i, probe in enumerate(probes.tolist()):
        got, nearest = (
            scores[i][(rows[i] != probe) & (rows[i] >= 0)][:K] for scores, rows in (found, exact)
        )
        if len(nearest):
            recalls.append(np.count_nonzero(got >= nearest[-1:]) / len(nearest))
    return float(np.mean(recalls)) if recalls else None


def _imbalance(anns: Sequence[FaissFile | None]) -> float | None:
    """Return the imbalance factor of inverted lists; a list has entries in each FAISS file."""
    indexes = [ann.index for ann in anns if ann]
    found = [import_faiss().try_extract_index_ivf(i) for i in indexes if i is not None]
    sizes = [[ivf.invlists.list_size(n) for n in range(ivf.nlist)] for ivf in found if ivf]
    if not sizes:
        return None
    lengths = np.sum(sizes, axis=0)
    return float(len(lengths) * (lengths**2).sum() / lengths.sum() ** 2)
