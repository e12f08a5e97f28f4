"""The mission's row of several machines; see `tests/test_mission.py`."""

from __future__ import annotations

import sys

import pytest

from sbert_search import ClusterError, ConfigError, Document, Index, RayRunner


def test_ray_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="RayRunner"):
        Index.build([Document("a", "germ")], model="hashing", runner=RayRunner())
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[ray\]'"), RayRunner():
        pass
