"""Sentence embeddings and semantic search, from raw text to a search index you can trust.

The names below load their rooms on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["Embedder", "Index", "Reranker", "SearchEngine"]

_HOMES = {
    "Embedder": "sbert_search.embedding.embedder",
    "Index": "sbert_search.index.index",
    "Reranker": "sbert_search.search.reranker",
    "SearchEngine": "sbert_search.search.engine",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
