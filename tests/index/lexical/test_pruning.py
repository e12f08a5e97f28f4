"""Pruned BM25 finds the same documents with the same scores, to the bit, as scoring all of them."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.lexical import bm25
from sbert_search.index.lexical.bm25 import LexicalPart, LexicalSearch, Matches
from sbert_search.index.lexical.postings import count_terms
from sbert_search.index.settings import LexicalSettings
from tests.faults import FULL

PROGRAMS = 2_000 if FULL else 40
WORDS = [f"w{number}x" for number in range(60)]
SHARE = [1 / (1 + number) for number in range(60)]  # Zipf's law
SETTINGS = LexicalSettings()


def text(rng: random.Random, n_words: int) -> str:
    return " ".join(rng.choices(WORDS, SHARE, k=n_words))


def part(rng: random.Random, first: int) -> LexicalPart:
    n_docs = rng.randint(0, 300)
    texts = [("", text(rng, rng.randint(0, 30))) for _ in range(n_docs)]
    live = random_marks(rng, n_docs) if rng.random() < 0.5 else None
    rows = np.arange(first, first + n_docs)
    return LexicalPart(count_terms(texts, SETTINGS), np.arange(n_docs), rows, live)


def random_marks(rng: random.Random, n: int) -> NDArray[np.bool_]:
    return np.array([rng.random() < 0.8 for _ in range(n)], bool)


def near(word: str) -> Sequence[tuple[str, int]]:
    return [(other, 1) for other in WORDS if other != word and other[:2] == word[:2]]


def as_lists(found: Sequence[Matches]) -> list[tuple[object, ...]]:
    return [(m.docs.tolist(), m.scores.tolist(), m.also.tolist(), m.most) for m in found]


@pytest.mark.thorough
def test_random_programs_find_what_an_exhaustive_search_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, pruned = random.Random(53), 0
    candidates = bm25._Lists._candidates

    def counted(self: bm25._Lists, *given: object) -> object:
        nonlocal pruned
        pruned += 1
        return candidates(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(bm25._Lists, "_candidates", counted)
    monkeypatch.setattr(bm25, "SAMPLE", 4)
    for _ in range(PROGRAMS):
        parts = [part(rng, 1000 * number) for number in range(rng.randint(1, 3))]
        if not any(len(each.rows) for each in parts):
            continue
        rows = np.concatenate([each.rows for each in parts])
        queries = [text(rng, rng.randint(1, 6)) for _ in range(3)]
        also = [np.array(rng.sample(rows.tolist(), min(3, len(rows)))) for _ in queries]
        marks = tuple(random_marks(rng, len(each.rows)) for each in parts)
        n_live = tuple(map(len, marks))
        masks = (None, RowMask(marks, n_live, len(rows), len(rows)))
        k, mask, words = rng.choice((1, 3, 10, 50)), rng.choice(masks), rng.choice((None, near))
        found = []
        for pruned_from, long_from in ((sys.maxsize, 1), (0, 1), (0, 20)):
            monkeypatch.setattr(bm25, "PRUNED_FROM", pruned_from)
            monkeypatch.setattr(bm25, "LONG_FROM", long_from)
            lexical = LexicalSearch(parts, SETTINGS)
            found += [as_lists(lexical.search(queries, k, mask, words, also)) for _ in range(2)]
        assert all(other == found[0] for other in found), queries
    assert pruned > PROGRAMS


def test_documents_with_only_a_common_word_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [("", "common filler words " + "rare " * (number % 100 == 0)) for number in range(1000)]
    rows = np.arange(1000)
    postings = count_terms(texts, SETTINGS)
    monkeypatch.setattr(bm25, "PRUNED_FROM", 100)
    lexical = LexicalSearch([LexicalPart(postings, rows, rows, None)], SETTINGS)
    scored: list[int] = []
    scores_of = bm25._Lists.scores_of

    def spied(self: bm25._Lists, docs: NDArray[np.int64], *known: object) -> object:
        scored.extend(docs.tolist())
        return scores_of(self, docs, *known)  # type: ignore[arg-type]

    monkeypatch.setattr(bm25._Lists, "scores_of", spied)
    monkeypatch.setattr(bm25, "_scores", None)  # would score every document
    [found] = lexical.search(["common rare"], 10)
    assert found.docs.tolist() == list(range(0, 1000, 100))
    assert set(scored) == set(found.docs.tolist())
