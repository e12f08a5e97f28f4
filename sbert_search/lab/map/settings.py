"""The settings of a map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

from sbert_search.errors import ConfigError

MOST_POINTS = 100_000  # points that the page draws fluently without a graphics card
FEWEST_DOCUMENTS = 3  # a map of fewer documents would show nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class MapSettings:
    """How a map is made.

    Attributes:
        points: Maximum number of documents on the map. If the index has more, the map shows a
            random sample of this size.
        neighbours: Number of nearest documents of each document. They determine the layout and the
            outliers.
        clusters: Number of clusters; None: the cube root of the number of documents on the map, at
            most 50.
        duplicates: Lowest score at which two documents are near-duplicates.
        language: Language of the stop words and the stemmer for the names of clusters; None: the
            language of the index, or English if the index has none.
        seed: Seed of the sample, the clusters and the layout.

    Raises:
        ConfigError: A value is out of range.
    """

    points: int = MOST_POINTS
    neighbours: int = 15
    clusters: int | None = None
    duplicates: float = 0.95
    language: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        ranges: list[tuple[str, int | None, int, int]] = [
            ("points", self.points, FEWEST_DOCUMENTS, 1_000_000),
            ("neighbours", self.neighbours, 2, 200),
            ("clusters", self.clusters, 1, 1000),
            ("seed", self.seed, 0, 2**32 - 1),  # the range of scikit-learn
        ]
        for name, value, low, high in ranges:
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} is {value}; it must be from {low:,} to {high:,}.")
        if not math.isfinite(self.duplicates):
            raise ConfigError(f"duplicates is {self.duplicates}; pass a score such as 0.95.")


class MapKeywords(TypedDict, total=False):
    """The fields of `MapSettings`."""

    points: int
    neighbours: int
    clusters: int | None
    duplicates: float
    language: str | None
    seed: int
