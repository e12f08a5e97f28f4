"""Files of words: when they are written, and what they hold after updates and damage."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sbert_search.errors import NoLexicalData
from sbert_search.index.lexical import postings as posting_files
from sbert_search.index.lexical import vocabulary as word_files
from sbert_search.index.lexical.analyzer import STOP_WORD, TermReader
from sbert_search.index.lexical.vocabulary import is_listed
from sbert_search.index.lexical.vocabulary import listed as listed_words
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest, SegmentRecord, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from sbert_search.records import Document
from tests.index.batches import make_batch
from tests.index.faults.trap import Trap, set_trap
from tests.index.lexical.test_bm25 import DOCUMENTS, new_store, put, some_text

pytestmark = pytest.mark.usefixtures("unpacked")

READER = TermReader(LexicalSettings())


def word_counts(documents: Sequence[Document]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(READER.words(document.title) + READER.words(document.text))
    return Counter({word: n for word, n in counts.items() if is_listed(word)})


def listed(snapshot: Snapshot) -> Counter[str]:
    """All words of an index with their counts."""
    lists = [snapshot.words(i) for i in range(len(snapshot.segments))]
    counts: Counter[str] = Counter()
    for words in lists:
        assert words is not None
        for batch in words.batches:
            counts.update({row["word"]: row["count"] for row in batch.to_pylist()})
    return counts


def terms_of(words: Counter[str]) -> set[int]:
    return set(READER.hashes(list(words)).tolist()) - {STOP_WORD}


def word_file_names(store: IndexStore) -> list[str]:
    return [s.lexical.words.name for s in segments(store) if s.lexical and s.lexical.words]


def segments(store: IndexStore) -> tuple[SegmentRecord, ...]:
    return store.snapshot.manifest.segments


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_after_any_updates_the_words_of_all_documents_are_listed(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(word_files, "LISTED_FROM", 4)
    rng = random.Random(seed)
    store = new_store(fast_path / "i")
    for number in range(80):
        known = [document.doc_id for document in store.snapshot.iter_documents()]
        if rng.random() < 0.3 and known:
            with store.writer() as writer:
                writer.delete(rng.sample(known, min(3, len(known))))
                writer.settle()
        else:
            ids = [f"n{number}-{i}" for i in range(rng.randint(1, 7))]
            ids += rng.sample(known, min(2, len(known)))
            put(store, [Document(i, some_text(rng), f"word{'xyz'[number % 3]}") for i in ids])
        documents = list(store.snapshot.iter_documents())
        assert word_counts(documents) <= listed(store.snapshot)
        if number % 20 == 19:
            with store.writer() as writer:
                writer.compact()
            assert terms_of(listed(store.snapshot)) == terms_of(word_counts(documents))
    assert word_file_names(store)
    assert check(fast_path / "i").problems == ()
    assert listed(IndexStore.open(fast_path / "i").snapshot) == listed(store.snapshot)


def test_small_segments_have_no_file_and_large_ones_do(tmp_path: Path) -> None:
    store = new_store(tmp_path / "i")
    put(store, DOCUMENTS[:100])
    assert word_file_names(store) == []
    assert listed(store.snapshot) == word_counts(DOCUMENTS[:100])
    put(store, DOCUMENTS[100:])
    assert len(word_file_names(store)) == 1
    with store.writer() as writer:
        writer.compact()
    assert len(word_file_names(store)) == len(segments(store)) == 1
    assert listed(store.snapshot) == word_counts(DOCUMENTS)


def test_words_of_deleted_documents_go_when_their_segment_is_rewritten(tmp_path: Path) -> None:
    store = new_store(tmp_path / "i")
    put(store, [*DOCUMENTS[:300], Document("x", "zebracorn the")])
    with store.writer() as writer:
        writer.delete(["x"])
        assert listed(store.snapshot)["zebracorn"] == 1
        writer.compact()
    words = listed(store.snapshot)
    assert "zebracorn" not in words
    assert "the" in words


@pytest.mark.parametrize("slices", [65_536, 60])
@pytest.mark.parametrize("remedy", ["repair", "compact"])
def test_a_segment_without_a_list_of_its_words_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remedy: str, slices: int
) -> None:
    monkeypatch.setattr(posting_files, "SLICE_DOCS", slices)
    store = new_store(tmp_path / "i")
    with monkeypatch.context() as unlisted:
        unlisted.setattr(word_files, "LISTED_FROM", 10**9)
        put(store, DOCUMENTS[:300])
    put(store, [Document("new", "an update, which merges nothing")])
    assert word_file_names(store) == []
    with pytest.raises(NoLexicalData, match=f"index repair {tmp_path / 'i'}"):
        _ = store.snapshot.vocabulary
    with store.writer() as writer:
        getattr(writer, remedy)()
    (name,) = word_file_names(store)
    assert listed(store.snapshot) == word_counts(list(store.snapshot.iter_documents()))
    assert [path.name for path in (tmp_path / "i/lex").glob("*.arrow")] == [name.split("/")[1]]
    assert check(tmp_path / "i").strays == ()


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_file_leaves_searches_and_is_repaired(tmp_path: Path, harm: str) -> None:
    store = new_store(tmp_path / "i")
    put(store, DOCUMENTS[:300])
    expected = store.snapshot.lexical.search(["read the file"], 5)
    (name,) = word_file_names(store)
    path = tmp_path / "i" / name
    data = bytearray(path.read_bytes())
    path.unlink()
    if harm != "remove":
        data[len(data) // 2] ^= 1
        path.write_bytes(data if harm == "flip" else data[:-1])
    opened = IndexStore.open(tmp_path / "i")
    found = opened.snapshot.lexical.search(["read the file"], 5)  # without a warning
    assert [match.docs.tolist() for match in found] == [match.docs.tolist() for match in expected]
    with pytest.raises(NoLexicalData, match="index repair"):
        _ = opened.snapshot.vocabulary
    assert [problem.file for problem in check(tmp_path / "i").problems] == [name]
    with opened.writer() as writer:
        assert name in writer.repair()
    assert listed(opened.snapshot) == word_counts(DOCUMENTS[:300])
    assert check(tmp_path / "i").problems == ()


def test_a_compaction_at_any_step_of_opening_loses_no_words(fast_path: Path) -> None:
    store = new_store(fast_path / "i")
    put(store, DOCUMENTS[:300])

    def rewrite() -> None:
        with IndexStore.open(fast_path / "i").writer() as writer:
            writer.commit(make_batch(DOCUMENTS[:1], np.zeros((1, 2), np.float32)))
            writer.compact()

    for number in range(1, 1_000):
        trap = Trap(number, rewrite)
        with set_trap(trap):
            snapshot = IndexStore.open(fast_path / "i").snapshot
        assert None not in [snapshot.words(i) for i in range(len(snapshot.segments))]
        if not trap.sprung:
            break
    assert number > 5


def test_an_index_without_lexical_data_has_no_words(tmp_path: Path) -> None:
    settings = VectorSettings(dim=2, metric="dot")
    store = IndexStore.create(tmp_path / "i", Manifest.new(settings, {"year": "int64"}))
    put(store, DOCUMENTS[:5])
    with pytest.raises(NoLexicalData, match="index lexical"):
        _ = store.snapshot.vocabulary


def test_words_are_listed_together_as_one_by_one() -> None:
    long = "l" * 64
    words = [
        "mill",
        "ab",
        "abc",
        "x_y",
        "b12",
        "größe",
        "हिन्दी",
        "東京都",
        "किता2",
        long,
        long + "l",
    ]
    assert listed_words(words) == ["mill", "abc", "x_y", "größe", "हिन्दी", long]
    assert [word for word in words if is_listed(word)] == listed_words(words)
    assert not is_listed("ab\nabc")
    assert listed_words([]) == []
