from __future__ import annotations

import pytest

from sbert_search.errors import ConfigError
from sbert_search.lab.map.settings import MapKeywords, MapSettings


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("points", MapKeywords(points=2)),
        ("neighbours", MapKeywords(neighbours=1)),
        ("clusters", MapKeywords(clusters=0)),
        ("seed", MapKeywords(seed=-1)),
        ("seed", MapKeywords(seed=2**32)),
        ("duplicates", MapKeywords(duplicates=float("nan"))),
        ("duplicates", MapKeywords(duplicates=float("inf"))),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, keywords: MapKeywords) -> None:
    with pytest.raises(ConfigError, match=name):
        MapSettings(**keywords)
