"""Postings: the four bytes of each, counts that do not fit, counting, merging and soundness."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sbert_search.base.folders import Folder
from sbert_search.errors import CorruptIndex
from sbert_search.index.lexical import bm25
from sbert_search.index.lexical import postings as posting_files
from sbert_search.index.lexical.analyzer import STOP_WORD, term_reader
from sbert_search.index.lexical.bm25 import LexicalPart, LexicalSearch
from sbert_search.index.lexical.postings import (
    Live,
    Postings,
    count_bits,
    count_terms,
    live_lengths,
    merge_in_memory,
)
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.storage import segments as npy
from sbert_search.index.storage.manifest import FileRecord, LexicalRecord
from sbert_search.index.upkeep.check import check
from sbert_search.records import Document
from tests.index.lexical.test_bm25 import DOCUMENTS, answers, new_store, put

pytestmark = pytest.mark.usefixtures("unpacked")

PLAIN = LexicalSettings(language="none", title_weight=3, stop_words=("the",))


def term(word: str) -> int:
    return int(term_reader(PLAIN).hashes([word])[0])


def counts_of(postings: Postings) -> Counter[tuple[int, int]]:
    """The count of each term (hash) in each document."""
    terms = postings.terms[0, :-1].tolist()
    counts: Counter[tuple[int, int]] = Counter()
    for each, span in zip(terms, postings.of(terms), strict=True):
        docs, found = postings.read([span])
        assert docs.tolist() == postings.docs(span).tolist() == sorted(set(docs.tolist()))
        counts.update(
            {(each, doc): n for doc, n in zip(docs.tolist(), found.tolist(), strict=True)}
        )
    return counts


def expected(texts: list[tuple[str, str]]) -> Counter[tuple[int, int]]:
    """The same by a plain loop."""
    counts: Counter[tuple[int, int]] = Counter()
    for doc, (title, text) in enumerate(texts):
        for word in title.split() * PLAIN.title_weight + text.split():
            counts[term(word), doc] += 1
    return Counter({key: n for key, n in counts.items() if key[0] != STOP_WORD})


@pytest.mark.parametrize(
    ("n_docs", "bits"),
    [(0, 16), (1, 16), (1 << 16, 16), ((1 << 16) + 1, 15), (10**6, 12), (1 << 31, 1)],
)
def test_a_document_takes_the_bits_it_needs_and_the_count_the_rest(n_docs: int, bits: int) -> None:
    assert count_bits(n_docs) == bits


def test_the_bytes_of_a_tiny_index(tmp_path: Path) -> None:
    store = new_store(tmp_path / "i", PLAIN)
    put(store, [Document("a", "mill the mill"), Document("b", "the"), Document("c", "x9", "mill")])
    (record,) = store.snapshot.manifest.segments
    assert record.lexical
    words = record.lexical
    assert (words.n_terms, words.n_pairs, words.n_large) == (2, 3, 0)
    first, second = sorted([term("mill"), term("x9")])
    of_mill, of_x9 = [0 << 16 | 2, 2 << 16 | 3], [2 << 16 | 1]
    pairs = of_mill + of_x9 if first == term("mill") else of_x9 + of_mill
    starts = [0, 2 if first == term("mill") else 1, 3]

    def content(file: FileRecord) -> bytes:
        return (tmp_path / "i" / file.name).read_bytes()

    assert content(words.pairs)[-12:] == b"".join(p.to_bytes(4, "little") for p in pairs)
    assert len(content(words.pairs)) == 128 + 12
    table = np.array([[first, second, 2**64 - 1], starts], "<u8")
    assert content(words.terms)[128:] == table.tobytes()
    assert content(words.lengths)[128:] == np.array([2, 0, 4], "<u4").tobytes()


def test_a_count_beyond_its_bits_follows_the_terms(tmp_path: Path) -> None:
    store = new_store(tmp_path / "i", PLAIN)
    n = 1 << 16
    put(store, [Document("a", "mill"), Document("b", "mill " * n), Document("c", "x " * (n - 1))])
    (record,) = store.snapshot.manifest.segments
    assert record.lexical
    assert (record.lexical.n_terms, record.lexical.n_large) == (2, 1)
    table = np.load(tmp_path / "i" / record.lexical.terms.name)
    at = 1 if term("mill") < term("x") else 2
    assert table.shape == (2, 4)
    assert table[:, -1].tolist() == [at, n]
    pairs = np.load(tmp_path / "i" / record.lexical.pairs.name)
    assert pairs[[at, 2 if at == 1 else 0]].tolist() == [1 << 16, 2 << 16 | n - 1]
    with store.writer() as writer:
        writer.delete(["a"])
        writer.compact()
    assert counts_of(store.snapshot.postings(0)) == {(term("mill"), 0): n, (term("x"), 1): n - 1}
    anew = new_store(tmp_path / "anew", PLAIN)
    put(anew, [Document("b", "mill " * n), Document("c", "x " * (n - 1))])
    assert answers(store.snapshot, ["mill", "x"]) == answers(anew.snapshot, ["mill", "x"])
    assert check(tmp_path / "i").problems == ()


@pytest.mark.parametrize("long_from", [1, 1 << 12])
def test_large_counts_score_like_others(monkeypatch: pytest.MonkeyPatch, long_from: int) -> None:
    """With 2 bits for a count the scores of all ways to search are those with 16 bits."""
    texts = [("", "mill " * (n % 9) + "river " * (n % 5) + "x ") for n in range(300)]
    rows = np.arange(300)
    monkeypatch.setattr(bm25, "LONG_FROM", long_from)

    def found(pruned_from: int) -> list[list[object]]:
        monkeypatch.setattr(bm25, "PRUNED_FROM", pruned_from)
        part = LexicalPart(count_terms(texts, PLAIN), rows, rows, None)
        also = [rows[:50], rows[::3], rows]
        lexical = LexicalSearch([part], PLAIN)
        matches = lexical.search(["mill", "x river", "mill x river"], 7, also=also)
        return [[m.docs.tolist(), m.scores.tolist(), m.also.tolist()] for m in matches]

    plain = found(10**9)
    assert found(0) == plain
    monkeypatch.setattr(posting_files, "MAX_COUNT_BITS", 2)
    assert count_terms(texts, PLAIN).large[1].tolist() != []
    assert found(0) == found(10**9) == plain


def test_documents_beyond_two_bytes_are_found_and_merged() -> None:
    n = (1 << 16) + 3
    texts = [("", "mill mill" if doc > n - 3 else "") for doc in range(n)]
    postings = count_terms(texts, PLAIN)
    assert postings.pairs.tolist() == [(n - 2) << 15 | 2, (n - 1) << 15 | 2]
    assert postings.docs(range(2)).tolist() == [n - 2, n - 1]
    few = count_terms([("", "mill"), ("mill", "")], PLAIN)
    assert few.pairs.tolist() == [1, 1 << 16 | 3]
    merged = merge_in_memory([(few, None), (postings, None)])
    assert merged.pairs.tolist() == [1, 1 << 15 | 3, n << 15 | 2, (n + 1) << 15 | 2]


def test_a_merge_gives_large_counts_the_bits_of_all_documents() -> None:
    many = Postings.of_blank(1 << 20)
    some = count_terms([("", "mill " * 2048), ("", "mill " * 2047)], PLAIN)
    assert some.large.shape == (2, 0)
    merged = merge_in_memory([(many, None), (some, None)])
    assert merged.large.tolist() == [[0], [2048]]  # 21 bits hold a document, 11 a count
    assert merged.pairs.tolist() == [1 << 31, ((1 << 20) + 1) << 11 | 2047]
    back = merge_in_memory([(merged, np.arange((1 << 20) + 2) >= 1 << 20)])
    assert back.large.shape == (2, 0)
    assert back.pairs.tolist() == some.pairs.tolist() == [2048, 1 << 16 | 2047]


WORDS = st.sampled_from(["the", "mill", "river", "x", "7", "wheel", "flour"])
TEXTS = st.lists(
    st.tuples(
        st.lists(WORDS, max_size=3).map(" ".join), st.lists(WORDS, max_size=12).map(" ".join)
    ),
    max_size=12,
)


@given(TEXTS, st.integers(1, 16))
def test_counts_are_those_of_a_counter(texts: list[tuple[str, str]], bits: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posting_files, "MAX_COUNT_BITS", bits)
        words: Counter[str] = Counter()
        postings = count_terms(texts, PLAIN, words)
        assert counts_of(postings) == expected(texts)
        assert words == Counter(word for text in texts for field in text for word in field.split())
        sums: Counter[int] = Counter()
        for (_, doc), n in expected(texts).items():
            sums[doc] += n
        assert postings.lengths.tolist() == [sums[doc] for doc in range(len(texts))]
        assert postings.is_sound or not texts


@given(st.lists(st.tuples(TEXTS, st.integers(0, 3)), min_size=1, max_size=4), st.integers(1, 6))
def test_a_merge_counts_what_the_live_documents_count(
    parts: list[tuple[list[tuple[str, str]], int]], bits: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posting_files, "MAX_COUNT_BITS", bits)
        patch.setattr(posting_files, "MERGE_POSTINGS", 4)
        sources: list[tuple[Postings, Live]] = []
        kept = []
        for texts, dead in parts:
            live: NDArray[np.bool_] = np.arange(len(texts)) % 4 >= dead
            sources.append((count_terms(texts, PLAIN), live if dead else None))
            kept += [text for text, lives in zip(texts, live.tolist(), strict=True) if lives]
        merged, anew = merge_in_memory(sources), count_terms(kept, PLAIN)
        assert live_lengths(sources).tolist() == anew.lengths.tolist()
        for name in Postings._fields:
            assert getattr(merged, name).tolist() == getattr(anew, name).tolist(), name


def test_postings_of_known_and_unknown_terms() -> None:
    terms = np.array([[10, 2**63, 2**64 - 1], [0, 2, 3]], np.uint64)
    pairs = np.array([1, 2 << 16 | 3, 1 << 16 | 1], np.uint32)
    made = Postings(terms, pairs, np.empty((2, 0), np.uint64), np.ones(3, np.uint32))
    asked = [2**63, 0, 10, 11, 2**64 - 2, 2**64 - 1]
    found = [[part.tolist() for part in made.read([span])] for span in made.of(asked)]
    nothing: list[list[float]] = [[], []]
    assert found == [[[1], [1]], nothing, [[0, 2], [1, 3]], nothing, nothing, nothing]
    assert made.of([]) == []
    assert list(map(len, Postings.of_blank(2).of([10]))) == [0]


@pytest.mark.parametrize(
    ("part", "place", "value"),
    [
        ("terms", (0, 0), 2**63),  # hashes that do not rise
        ("terms", (1, 1), 2**60),  # postings beyond the file
        ("terms", (1, -1), 0),
        ("pairs", 0, 50 << 16 | 1),  # a document that is not there
        ("large", (0, 0), 2**60),  # a posting beyond the file
        ("large", (0, 1), 0),  # postings that do not rise
        ("large", (1, 0), 1),  # a count that is not large
        ("large", (0, 0), 0),  # a posting that has its count
    ],
)
def test_sound_files_with_a_wrong_content_are_not_believed(
    tmp_path: Path, part: str, place: int | tuple[int, int], value: int
) -> None:
    store = new_store(tmp_path / "i")
    long = [Document(f"l{n}", "w " * 70_000) for n in range(2)]
    put(store, [*DOCUMENTS[:48], *long])
    (segment,) = store.snapshot.manifest.segments
    assert segment.lexical
    good = store.snapshot.postings(0)
    names = ("terms", "pairs", "large", "lengths")
    wrong = {name: np.array(getattr(good, name)) for name in names}
    assert wrong["large"][1].tolist() == [70_000, 70_000]
    wrong[part][place] = value
    wrong["terms"] = np.concatenate([wrong["terms"], wrong.pop("large")], axis=1)
    (tmp_path / "lex").mkdir()
    folder = Folder.open(tmp_path)
    files = {
        name: FileRecord.of(npy.write(folder / f"lex/000009.{name}.npy", array))
        for name, array in wrong.items()
    }
    known = segment.lexical
    record = LexicalRecord(n_terms=known.n_terms, n_pairs=known.n_pairs, n_large=2, **files)
    opened = posting_files.LexicalFiles(folder, record, 50)
    with pytest.raises(CorruptIndex, match="postings of the segment"):
        _ = opened.postings
