"""Search of segments that have FAISS files: by FAISS, or by an exact scan if that is cheaper.

Segments whose inverted lists have the same centroids are joined: one call of FAISS searches them.

For a single query, a short code path keeps the latency low: while FAISS walks an HNSW graph, it
fills the CPU caches with vectors, so the code that runs next takes twice as long as usual. Results
equal those of `offer_approximate` bit for bit. A position is the index of a row in the segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import warn
from sbert_search.index.dense import faiss_file, faiss_runtime
from sbert_search.index.dense.exact import (
    PAIR_ELEMENTS,
    Rows,
    TopK,
    exact_scores,
    offer_nearest,
)
from sbert_search.index.dense.faiss_file import FaissFile
from sbert_search.index.dense.faiss_runtime import FaissIndex, FaissParameters
from sbert_search.index.dense.query_plan import NEARLY_ALL, Plan, Selection, plan
from sbert_search.index.norms import Vectors
from sbert_search.index.storage.manifest import VectorSettings

if TYPE_CHECKING:
    from sbert_search.index.dense.faiss_gpu import GpuIndex

JOINED_ROWS = 1 << 21  # rows that may be joined; each takes 13 bytes of memory

# A segment, its FAISS file if it has one, and its live rows (None: all). Joined segments stand in
# the first two places.
Part: TypeAlias = tuple[Rows, "FaissFile | JoinedSegments | None", Selection | None]
_WithFile: TypeAlias = tuple[Rows, FaissFile, Selection | None]


def offer_approximate(
    top: TopK,
    queries: NDArray[np.float32],
    part: Rows,
    index: FaissIndex,
    selection: Selection | None,
    settings: VectorSettings,
    on_gpu: GpuIndex | None = None,
    *,
    fill: bool = True,
) -> None:
    """Offer `top` the rows that a FAISS index finds, scored with their stored vectors.

    If ``selection`` leaves few rows, they are scanned exactly. Queries for which FAISS returns too
    few rows are searched again with raised parameters, and at last by an exact scan, so every query
    gets k rows if k rows are selected. Without ``fill``, that is done only where rows that are not
    selected took the places of others.
    """
    search = _Search(part, index, selection, settings, on_gpu, fill)
    search.offer(top, queries, search.plan(top.k, len(queries)))


@dataclass(frozen=True, slots=True)
class _Search:
    part: Rows
    index: FaissIndex
    selection: Selection | None
    settings: VectorSettings
    on_gpu: GpuIndex | None
    fill: bool

    @property
    def n_selected(self) -> int:
        return self.part.n_rows if self.selection is None else self.selection.n_selected

    def plan(self, k: int, n_queries: int) -> Plan:
        return plan(
            self.settings.spec,
            self.part.n_rows,
            self.n_selected,
            n_live=self.part.n_rows if self.selection is None else self.selection.n_live,
            k=k,
            n_queries=n_queries,
            takes_bitmap=self.selection is not None and faiss_file.takes_bitmap(self.index),
        )

    def offer(self, top: TopK, queries: NDArray[np.float32], plan: Plan) -> None:
        """Search by a plan; queries that get too few rows are searched by its fallback plan."""
        if plan.fallback is None:
            offer_nearest(top, queries, self.part, None, self.selection, self.settings)
            return
        at = self.candidates(queries, plan)
        query, at, short = _pairs(at, min(top.k, self.n_selected), fill=self.fill)
        scores = exact_scores(queries, self.part.vectors, query, at, self.settings.metric)
        top.offer(query, self.part.rows[at], scores)
        if short is not None:
            rest = top.take(short)
            self.offer(rest, queries[short], plan.fallback)
            top.scores[short], top.rows[short] = rest.scores, rest.rows

    def candidates(self, queries: NDArray[np.float32], plan: Plan) -> NDArray[np.int64]:
        """Find positions as `faiss_file.search` does; on the CPU if the GPU fails."""
        if self.on_gpu is not None:
            try:
                return self._candidates_on_gpu(self.on_gpu, queries, plan)
            except RuntimeError as error:
                warn(f"A search failed on the GPU and is repeated on the CPU: {error}")
        return faiss_file.search(self.index, plan, queries, self.selection)

    def _candidates_on_gpu(
        self, on_gpu: GpuIndex, queries: NDArray[np.float32], plan: Plan
    ) -> NDArray[np.int64]:
        from sbert_search.index.dense import faiss_gpu

        if faiss_gpu.supports(plan):
            return on_gpu.search(plan, queries, self.selection)
        euclidean = self.settings.metric == "euclidean"
        vectors, n_candidates = self.part.vectors, plan.n_candidates
        return faiss_gpu.exact_candidates(
            queries, vectors, n_candidates, self.selection, euclidean=euclidean
        )


def _pairs(
    at: NDArray[np.int64], needed: int, *, fill: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_] | None]:
    """Turn what `faiss_file.search` returns into pairs of query and position, each (n_found,).

    Queries with fewer than ``needed`` candidates are left out; without ``fill``, only those for
    which FAISS had more candidates. The third result is their mask, bool (n_queries,), or None.
    """
    n_queries, n = at.shape
    if n >= needed and at.min(initial=0) >= 0:
        return np.arange(n_queries).repeat(n), at.ravel(), None
    has_row = at >= 0
    short = has_row.sum(axis=1) < needed
    if not fill:
        short &= (at != -1).all(axis=1)
    has_row[short] = False
    return np.nonzero(has_row)[0], at[has_row], short if short.any() else None


class _Stacked:
    """The rows of several arrays as those of one; enough of an array for `exact`."""

    def __init__(self, arrays: Sequence[Vectors]) -> None:
        self._arrays, self.dtype = arrays, arrays[0].dtype
        self._firsts = np.cumsum([0, *map(len, arrays)])
        self.shape = (int(self._firsts[-1]), *arrays[0].shape[1:])

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, at: slice | NDArray[np.int64]) -> Vectors:
        return self.take(np.arange(*at.indices(len(self))) if isinstance(at, slice) else at)

    def take(self, at: NDArray[np.int64], axis: int = 0) -> Vectors:
        order = at.argsort()
        at, taken = at[order], np.empty((len(at), *self.shape[1:]), self.dtype)
        stops = at.searchsorted(self._firsts).tolist()
        for array, first, i, j in zip(self._arrays, self._firsts, stops, stops[1:], strict=False):
            if i < j:
                taken[order[i:j]] = array.take(at[i:j] - first, axis=axis)
        return taken


class JoinedSegments:
    """Segments that one call of FAISS searches; in place of a segment's `Rows` and `FaissFile`."""

    on_gpu = None

    def __init__(self, parts: Sequence[_WithFile]) -> None:
        self.vectors = cast(Vectors, _Stacked([segment.vectors for segment, _, _ in parts]))
        self.rows = np.concatenate([segment.rows for segment, _, _ in parts])
        self.n_rows = len(self.rows)
        self.max_norm: float = max(segment.max_norm for segment, _, _ in parts)
        self.index = faiss_file.JoinedLists([ann for _, ann, _ in parts])
        marks = [live.marks if live else np.ones(s.n_rows, bool) for s, _, live in parts]
        self.live = Selection(np.concatenate(marks))


def joined(parts: Sequence[tuple[Rows, FaissFile | None, Selection | None]]) -> list[Part]:
    """Join the newest segments with the same centroids, except where many rows are dead."""
    others: list[Part] = []
    alike: dict[bytes, list[_WithFile]] = {}
    n_rows = Counter[bytes]()
    for segment, ann, live in reversed(parts):
        few_dead = live is None or live.n_selected >= NEARLY_ALL * segment.n_rows
        if ann and few_dead and (name := ann.centroids):
            n_rows[name] += segment.n_rows
            if n_rows[name] <= JOINED_ROWS and ann.entries:
                alike.setdefault(name, []).insert(0, (segment, ann, live))
                continue
        others.append((segment, ann, live))
    for members in alike.values():
        if len(members) > 1:
            one = JoinedSegments(members)
            others.append((one, one, one.live))
        else:
            others += members
    return others


@dataclass(slots=True)
class _Searched:
    segment: Rows
    index: FaissIndex
    marks: NDArray[np.bool_] | None = None  # the live rows; None: all
    # for each k of an earlier search: n_candidates and FAISS's parameters
    plans: dict[int, tuple[int, FaissParameters]] = field(default_factory=dict)


class SingleQuerySearch:
    """CPU search for one query without a filter: by FAISS files, and scans of other segments."""

    __slots__ = ("_parts", "_scanned", "_settings")

    def __init__(
        self,
        parts: Sequence[_Searched],
        settings: VectorSettings,
        scanned: Sequence[tuple[Rows, Selection | None]] = (),
    ) -> None:
        self._parts, self._settings, self._scanned = parts, settings, scanned

    @classmethod
    def of(cls, given: Sequence[Part], settings: VectorSettings) -> SingleQuerySearch | None:
        """Return a search; None if there is no readable FAISS file, or if a GPU searches one."""
        parts, scanned = [], []
        for segment, ann, selection in given:
            if ann is None or ann.index is None:
                scanned.append((segment, selection))
            elif ann.on_gpu is not None:
                return None
            else:
                marks = selection.marks if selection else None
                parts.append(_Searched(segment, ann.index, marks))
        return cls(parts, settings, scanned) if parts else None

    def nearest(
        self, query: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """Find the best rows of a query (1, dim): scores, best first, and row numbers, each (1, k).

        None if a segment has many dead rows, or if FAISS finds too few live ones. The caller has
        normalised the query if the metric is cosine.
        """
        faiss_runtime.require_not_forked()
        plans = [part.plans.get(k) or self._plan(part, k) for part in self._parts]
        if not all(n_candidates for n_candidates, _ in plans):
            return None
        places = []
        for part, (n_candidates, parameters) in zip(self._parts, plans, strict=True):
            [at] = part.index.search(query, n_candidates, params=parameters)[1]
            # at.min() would call the same `reduce` through two Python functions.
            is_full = np.minimum.reduce(at) >= 0
            if part.marks is not None:
                kept = part.marks.take(at, mode="wrap")  # -1 reads the last mark
                at = at[kept]
                if is_full and len(at) < k:
                    return None
            if not is_full:
                at = at[at >= 0]
            places.append(at)
        if sum(map(len, places)) < k:
            return None
        rows = [part.segment.rows.take(at) for part, at in zip(self._parts, places, strict=True)]
        row = rows[0] if len(rows) == 1 else np.concatenate(rows)
        score = self._scores(query, places)
        best = np.lexsort((row, -score))[:k]
        top = TopK(score.take(best)[None], row.take(best)[None])
        for segment, selection in self._scanned:
            offer_nearest(top, query, segment, None, selection, self._settings)
        return top.scores, top.rows

    def _scores(
        self, query: NDArray[np.float32], places: Sequence[NDArray[np.int64]]
    ) -> NDArray[np.float32]:
        metric, found = self._settings.metric, [part.segment.vectors for part in self._parts]
        if len(places) > 1 and sum(map(len, places)) * query.shape[1] <= PAIR_ELEMENTS:
            # For few rows, one call for all segments is faster than one call for each segment.
            taken = [vectors.take(at, axis=0) for vectors, at in zip(found, places, strict=True)]
            found = [np.concatenate(taken)]
            places = [np.arange(len(found[0]))]
        # `exact_scores` does not read its third argument, query indices, if there is one query.
        scores = [
            exact_scores(query, vectors, at, at, metric)
            for vectors, at in zip(found, places, strict=True)
        ]
        return scores[0] if len(scores) == 1 else np.concatenate(scores)

    def _plan(self, part: _Searched, k: int) -> tuple[int, FaissParameters]:
        n, spec = part.segment.n_rows, self._settings.spec
        n_live = n if part.marks is None else int(np.count_nonzero(part.marks))
        planned = plan(spec, n, n_live, n_live=n_live, k=k, n_queries=1, takes_bitmap=False)
        parameters = faiss_file.parameters(part.index, planned.spec, planned.n_candidates)
        part.plans[k] = planned.n_candidates, parameters
        return part.plans[k]
