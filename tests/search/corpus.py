"""A small index for search tests: hashed words, so expected hits can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.index import Index

DOCUMENTS: list[dict[str, Any]] = [
    {
        "_id": "vaccines",
        "title": "Vaccines",
        "text": "They train immune cells. Germs lose.",
        "y": 1,
    },
    {"_id": "mill", "text": "The mill stands by the river. Water turns its wheel.", "y": 2},
    {
        "_id": "bread",
        "title": "Bread",
        "text": "Flour and water make dough. Yeast lifts it.",
        "y": 3,
    },
    {"_id": "twin-1", "text": "the same words", "y": 4},
    {"_id": "twin-2", "text": "the same words", "y": 5},
]


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def small_index(
    folder: Path,
    rows: Iterable[Mapping[str, Any]] = DOCUMENTS,
    *,
    embedder: TextEmbedder | None = None,
    settings: BuildSettings | None = None,
) -> Index:
    source = write_jsonl(folder / "corpus.jsonl", rows)
    model = embedder or HashingEmbedder()
    return Index.build(source, out=folder / "small.index", model=model, settings=settings)
