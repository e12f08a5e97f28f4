"""Measuring how far updates have degraded an index, and naming the commands that help."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense.faiss_runtime import FaissIndex, import_faiss
from sbert_search.index.maintenance.merge_policy import advice
from sbert_search.index.snapshot import Snapshot

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
        imbalance: Imbalance factor of the inverted lists, the largest of all segments. It is 1 when
            all lists are equally long, and n when a search reads n times as many vectors as with
            equally long lists. None without inverted lists.
        probes: Number of passages whose vectors were the queries.
        recall: Mean recall@10 over these queries; a passage does not count as its own neighbour.
            None when every search is exact, or there is only one row.
        target: Target recall.
        actions: Recommended commands, the most useful first; empty if none is needed.

    Source: the imbalance factor of Jegou et al. 2011, Product quantization for nearest neighbor
    search, section IV-D.
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

    Args:
        snapshot: The state to measure.
        target: Recall@10 below which `index tune` is recommended. None: the recall for which the
            index was tuned, or `TARGET_RECALL` if it was not tuned.
    """
    manifest = snapshot.manifest
    if target is None:
        target = manifest.tuning.recall if manifest.tuning else TARGET_RECALL
    with_faiss = [i for i, ann in enumerate(snapshot.anns) if ann and ann.index is not None]
    in_faiss = sum(snapshot.n_live(i) for i in with_faiss)
    imbalance = max(filter(None, (_imbalance(snapshot.anns[i]) for i in with_faiss)), default=None)
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

    A row counts as correct if its score is at least that of the exact 10th neighbour, as in
    `index tune`: of rows with equal vectors, FAISS may return others than an exact search. None if
    the index has only one row.
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


def _imbalance(ann: FaissIndex) -> float | None:
    ivf = import_faiss().try_extract_index_ivf(ann.index)
    return None if ivf is None else float(ivf.invlists.imbalance_factor())
