"""Adapters for other frameworks: one subpackage for each, which needs the extra of its name."""

from __future__ import annotations

from sbert_search.wings import Command, Wing

WING = Wing(
    commands={
        "eval mteb": Command(
            "sbert_search.integrations.commands:mteb",
            examples=(
                "sbert-search eval mteb NFCorpus --mode hybrid --out results",
                "sbert-search eval mteb STSBenchmark --encoder --model my-model/model",
                "sbert-search eval mteb my-data --rerank my-reranker/model --json",
            ),
        ),
    },
)
