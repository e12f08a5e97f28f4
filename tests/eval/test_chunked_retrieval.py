"""The comparison of long texts that are cut with long texts that are split."""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sbert_search.embed.hashing import HashingEmbedder


@pytest.fixture
def script() -> ModuleType:
    return importlib.import_module("chunked_retrieval")


def paragraph(topic: str, n: int) -> str:
    filler = " ".join(f"{topic}{i % 7} word{i} stands here." for i in range(n * 40, n * 40 + 40))
    return f"{filler} The {topic} secret {n} is key{n}."


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    """Two articles of four paragraphs; each paragraph is asked about once."""
    rows: list[dict[str, Any]] = []
    for title in ("mill", "sea"):
        for n in range(4):
            context = paragraph(title, n)
            answer = f"key{n}"
            rows.append(
                {
                    "id": f"{title}-{n}",
                    "title": title,
                    "context": context,
                    "question": f"What is the {title} secret {n}, key{n}?",
                    "answers": [[answer, context.index(f" {answer}.") + 1]],
                    "is_impossible": False,
                }
            )
    rows.append({**rows[0], "id": "no", "answers": [], "is_impossible": True})
    file = tmp_path / "dev_a.jsonl.gz"
    file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return file


def test_answers_keep_their_places_in_the_joined_article(script: ModuleType, squad: Path) -> None:
    articles = script.read_articles(squad)
    assert list(articles.texts) == ["mill", "sea"]
    assert articles.texts["sea"].count("\n\n") == 3
    assert len(articles.questions) == 8
    for question, places in articles.answers.items():
        text = articles.texts[articles.article_of[question]]
        assert {text[start:end] for start, end in places} == {f"key{question[-1]}"}


def test_split_articles_hold_answers_that_cut_ones_lose(script: ModuleType, squad: Path) -> None:
    embedder = HashingEmbedder(1024, max_len=256)
    record = script.evaluate_squad(squad, embedder, list(script.SYSTEMS))
    by_system = {row["system"]: row for row in record["squad"]}
    cut = by_system["cut"]["measures"]["answer@1"]["value"]
    assert cut <= 0.25  # the model reads the first paragraph and a part of the second
    split = by_system["64 tokens, overlap 0"]
    assert split["measures"]["answer@3"]["value"] == 1.0
    assert split["passages"] > by_system["256 tokens, overlap 0"]["passages"] > 2
    assert [pair["b"] for pair in record["pairs"]] == [b for _, b in script.PAIRS]
    shown = script.markdown({**record, "collections": [], **script.made_with()})
    assert "2 articles of SQuAD, 8 questions" in shown
