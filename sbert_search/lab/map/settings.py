"""The settings of a map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, TypedDict

from sbert_search.declared import Bounds, check
from sbert_search.errors import ConfigError

FEWEST_DOCUMENTS = 3  # a map of fewer documents would show nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class MapSettings:
    """How a map is made.

    Attributes:
        points: Maximum number of documents on the map; if there are more, a random sample is drawn.
        neighbours: Number of nearest documents that determine the place of a document. Outliers are
            far from these.
        clusters: Number of clusters; None: the cube root of the number of documents on the map, at
            most 50.
        duplicates: Minimum score of near-duplicates.
        language: Language of the stop words and the stemmer for the names of clusters; None: the
            language of the index, or English if the index has none.
        seed: Seed of the sample, the clusters and the layout.

    Raises:
        ConfigError: A value is out of range.
    """

    # 100,000 points are drawn fluently without a graphics card.
    points: Annotated[int, Bounds(FEWEST_DOCUMENTS, 1_000_000)] = 100_000
    neighbours: Annotated[int, Bounds(2, 200)] = 15
    clusters: Annotated[int | None, Bounds(1, 1000)] = None
    duplicates: float = 0.95
    language: str | None = None
    seed: Annotated[int, Bounds(0, 2**32 - 1)] = 0  # the range of scikit-learn

    def __post_init__(self) -> None:
        check(self, ConfigError)
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
