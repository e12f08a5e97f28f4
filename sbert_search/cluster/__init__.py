"""Embed and search on several machines with Ray; needs the optional dependency ``ray``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbert_search.wings import Wing

if TYPE_CHECKING:
    from sbert_search.cluster.runner import RayRunner as RayRunner

WING = Wing(
    public={"sbert_search.cluster.runner": ["RayRunner"]},
    parts={"runners": "sbert_search.cluster.options"},
)
