"""How a map is made; the command line takes its options from here, so this loads no NumPy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, TypedDict

from sbert_search.declared import Bounds, check

FEWEST_DOCUMENTS = 3  # a map of fewer documents would show nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class MapSettings:
    """How a map is made.

    Attributes:
        points: Maximum number of documents on the map; if there are more, a random sample is drawn.
            The page draws 100,000 points fluently without a graphics card.
        neighbours: Number of nearest documents that determine the place of a document. They also
            determine the outliers.
        clusters: Number of clusters. None: the cube root of the number of documents on the map, at
            most 50.
        duplicates: Minimum score of near-duplicates.
        language: Language of the words that name clusters. None: the language of the index, or
            English if the index has none.
        seed: Seed of the sample, the clusters and the layout, in the range of scikit-learn.

    Raises:
        ConfigError: A value is out of range.

    Example:
        >>> MapSettings(clusters=8, neighbours=30).duplicates
        0.95
    """

    points: Annotated[int, Bounds(FEWEST_DOCUMENTS, 1_000_000)] = 100_000
    neighbours: Annotated[int, Bounds(2, 200)] = 15
    clusters: Annotated[int | None, Bounds(1, 1000)] = None
    duplicates: Annotated[float, Bounds(above=-math.inf, below=math.inf)] = 0.95
    language: Annotated[str | None, Bounds(metavar="NAME")] = None
    seed: Annotated[int, Bounds(0, 2**32 - 1)] = 0

    def __post_init__(self) -> None:
        check(self)


class MapKeywords(TypedDict, total=False):
    """The fields of `MapSettings`."""

    points: int
    neighbours: int
    clusters: int | None
    duplicates: float
    language: str | None
    seed: int
