"""How far an index has moved from what it was built for, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense.faiss_runtime import import_faiss
from sbert_search.index.maintenance.merge_policy import advice
from sbert_search.index.snapshot import Snapshot

N_PROBES = 200
K = 10
TARGET_RECALL = 0.95
MAX_IMBALANCE = 2.5  # k-means on what it was trained on gives about 1.1 to 1.6


@dataclass(frozen=True, slots=True)
class DriftReport:
    """What a look at a living index found.

    Attributes:
        segments: Parts that the rows lie in.
        dead_share: Rows deleted or replaced, of all that take space.
        scanned_share: Live rows that no FAISS file holds, though the spec asks for one, of all.
        imbalance: Of the inverted lists, the worst of all segments: 1 when all are equally long,
            n when a search reads n times as much as then; None without such lists.
        probes: Documents whose vectors were searched for.
        recall: Share of the 10 nearest others that a search finds, mean over the probes; None
            when every search is exact.
        target: Recall that is wanted.
        actions: What to do, the most useful first; empty when all is well.

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
    """Look how balanced, how dead and how exact an index is.

    Args:
        snapshot: The state to look at.
        target: Recall at 10 below which something is to be done; None: what the index was tuned
            for, else `TARGET_RECALL`.
    """
    manifest = snapshot.manifest
    if target is None:
        target = manifest.tuning.recall if manifest.tuning else TARGET_RECALL
    with_faiss = [i for i, found in enumerate(snapshot.anns) if found and found.index is not None]
    in_faiss = sum(snapshot.n_live(i) for i in with_faiss)
    imbalance = max(filter(None, (_imbalance(snapshot.anns[i]) for i in with_faiss)), default=None)
    probes = _probes(snapshot) if with_faiss else np.empty(0, np.int64)
    recall = _recall(snapshot, probes) if len(probes) else None
    flat = manifest.settings.spec.is_flat
    return DriftReport(
        segments=len(manifest.segments),
        dead_share=manifest.n_dead_rows / max(1, manifest.n_rows + manifest.n_dead_rows),
        scanned_share=0.0 if flat else 1.0 - in_faiss / max(1, manifest.n_rows),
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
            "search as equal ones, because the documents are no longer those they were trained on"
        )
    if recall is not None and recall < target:
        more = ", if that does not help" if unbalanced else ""
        actions.append(f"`index tune`{more}: recall is {recall:.3f}, and {target} is wanted")
    if why := advice(snapshot.manifest):
        actions.append(f"`index compact`: {why}")
    return actions


def _probes(snapshot: Snapshot) -> NDArray[np.int64]:
    """Choose the live rows with the smallest hashes: the same ones for as long as they live.

    Source: SplitMix64's finaliser (Steele et al. 2014, Fast splittable pseudorandom number
    generators, section 4).
    """
    rows = snapshot.live_rows()
    mixed = rows.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return rows[np.argsort(mixed ^ (mixed >> np.uint64(31)), kind="stable")[:N_PROBES]]


def _recall(snapshot: Snapshot, probes: NDArray[np.int64]) -> float:
    """Compare what a search finds with what there is, leaving out the probes themselves."""
    queries = snapshot.vectors(probes)
    found = snapshot.search(queries, K + 1)[1]
    nearest = snapshot.search(queries, K + 1, exact=True)[1]
    shares = []
    for probe, got, wanted in zip(probes.tolist(), found.tolist(), nearest.tolist(), strict=True):
        true = [row for row in wanted if row not in (probe, -1)][:K]
        shares.append(len(set(true) & set(got)) / max(1, len(true)))
    return float(np.mean(shares))


def _imbalance(found: Any) -> float | None:
    ivf = import_faiss().try_extract_index_ivf(found.index)
    return None if ivf is None else float(ivf.invlists.imbalance_factor())
