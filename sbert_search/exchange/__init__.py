"""Export an index to other search engines; build an index from vectors of another engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbert_search.wings import Command, Wing

if TYPE_CHECKING:
    from sbert_search.exchange.export import export_index as export_index
    from sbert_search.exchange.import_index import import_index as import_index
    from sbert_search.exchange.plan import ExportReport as ExportReport

WING = Wing(
    public={
        "sbert_search.exchange.export": ["export_index"],
        "sbert_search.exchange.import_index": ["import_index"],
        "sbert_search.exchange.plan": ["ExportReport"],
    },
    commands={
        "index export": Command(
            "sbert_search.exchange.commands:export",
            examples=(
                "sbert-search index export my.index --to parquet --out my.parquet",
                "sbert-search index export my.index --to faiss --out my.faiss",
                "sbert-search index export my.index --to qdrant --url http://localhost:6333",
            ),
        ),
        "index import": Command(
            "sbert_search.exchange.commands:import_",
            examples=(
                "sbert-search index import vectors.parquet --out new.index",
                "sbert-search index import a.npy --ids ids.txt --out new.index --metric dot",
                "sbert-search index import chroma --out new.index --model my-model",
            ),
        ),
    },
)
