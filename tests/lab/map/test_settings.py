from __future__ import annotations

import pytest

from sbert_search.declared import described
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


def test_the_options_are_described_without_parsing_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbert_search.declared._comments", lambda base: 1 / 0)
    described.cache_clear()
    assert described(MapSettings)
    described.cache_clear()
