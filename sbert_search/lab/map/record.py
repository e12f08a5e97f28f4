"""The data of a map, from which its page, summary and table are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.storage.manifest import Metric
from sbert_search.lab.map.columns import MapColumn
from sbert_search.lab.map.neighbours import Neighbours
from sbert_search.lab.map.settings import MapSettings

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MarkedQuery:
    """The hits of a query that are on a map.

    Attributes:
        text: The query.
        at: Numbers of the hits among the documents of the map, best first.
        scores: Scores of these hits.
    """

    text: str
    at: list[int]
    scores: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusMap:
    """A two-dimensional map of the documents of an index.

    Document i is described by the i-th entry of each list and array.

    Attributes:
        index: Path of the index.
        model: Name of the model that made the vectors.
        metric: Metric of the index.
        settings: How the map was made.
        n_indexed: Number of documents of the index, of which the map may show only a sample.
        doc_ids: Ids of the documents.
        titles: Titles; for a document without a title, the beginning of its text.
        texts: The beginning of each text.
        columns: Metadata columns.
        left_out: Metadata columns that are not in ``columns``, since their values are too long in
            total even if each value is cut.
        axes: Coordinates on the two principal axes, float32 (n, 2).
        layout: Coordinates of t-SNE, which keeps neighbours together, float32 (n, 2).
        cluster: Number of each document's cluster, int32 (n,); cluster 0 is the largest.
        words: Words that are frequent in each cluster and rare in others.
        neighbours: The nearest documents of each document.
        distances: Mean distance of each document to its neighbours, float32 (n,); outliers have the
            largest distances.
        group: Number of each document's group of near-duplicates, int32 (n,); -1 for a
            document without near-duplicates.
        queries: Hits of the queries that are marked on the map.
    """

    index: str
    model: str
    metric: Metric
    settings: MapSettings
    n_indexed: int
    doc_ids: list[str]
    titles: list[str]
    texts: list[str]
    columns: list[MapColumn]
    left_out: list[str]
    axes: Floats
    layout: Floats
    cluster: NDArray[np.int32]
    words: list[list[str]]
    neighbours: Neighbours
    distances: Floats
    group: NDArray[np.int32]
    queries: Sequence[MarkedQuery] = ()

    def __len__(self) -> int:
        return len(self.doc_ids)

    def outliers(self, most: int = 20) -> list[int]:
        """Return the numbers of the documents that are farthest from their neighbours."""
        order: list[int] = np.argsort(-self.distances, kind="stable")[:most].tolist()
        return order

    @property
    def has_groups(self) -> bool:
        """Whether near-duplicates were looked for: always, except with the metric euclidean."""
        return self.metric != "euclidean"

    def groups(self) -> list[list[int]]:
        """Return the numbers of the documents of each group of near-duplicates, largest first."""
        order = np.argsort(self.group, kind="stable")
        order = order[self.group[order] >= 0]
        borders = np.flatnonzero(np.diff(self.group[order])) + 1
        return [part.tolist() for part in np.split(order, borders) if len(part)]
