import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.pipeline import EmbeddedBatch, embed_batches
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import CorpusError
from sbert_search.records import Document
from sbert_search.text.tokens.chunking import Chunking

Batches = list[tuple[list[Document], int]]


def documents(*texts: str) -> list[Document]:
    return [Document(str(n), text, source=f"f:{n}") for n, text in enumerate(texts)]


class SmallSteps(HashingEmbedder):
    batch_tokens = 2


@given(st.lists(st.lists(st.text("ab ", min_size=1, max_size=30), max_size=6), max_size=4))
@settings(max_examples=30, deadline=None)
def test_batches_come_out_as_they_went_in(texts: list[list[str]]) -> None:
    batches: Batches = [(documents(*some), n) for n, some in enumerate(texts)]
    embedder = SmallSteps(16)
    out = list(embed_batches(batches, embedder))
    assert [batch.payload for batch in out] == list(range(len(texts)))
    for batch, some in zip(out, texts, strict=True):
        assert [document.text for document in batch.documents] == some
        np.testing.assert_array_equal(batch.vectors, embedder.encode(some))
        assert batch.doc_of.tolist() == list(range(len(some)))


@given(st.lists(st.text("ab, ", min_size=1, max_size=60), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_chunks_cover_each_document_and_lose_nothing(texts: list[str]) -> None:
    embedder = HashingEmbedder(16, max_len=3)
    (batch,) = embed_batches([(documents(*texts), None)], embedder, on_truncate="chunk")
    assert batch.lost_tokens.sum() == 0
    assert np.all(np.diff(batch.doc_of) >= 0)
    for n, text in enumerate(texts):
        rows = np.flatnonzero(batch.doc_of == n)
        assert batch.chunk[rows].tolist() == list(range(len(rows)))
        passages = [text[batch.char_start[row] : batch.char_end[row]] for row in rows]
        assert "".join(passages) == text
        np.testing.assert_array_equal(batch.vectors[rows], embedder.encode(passages))


def test_passages_have_at_most_the_tokens_that_the_model_reads() -> None:
    embedder = HashingEmbedder(16, max_len=3)
    batches: Batches = [(documents("a b c d e"), 0)]
    (batch,) = embed_batches(
        batches, embedder, on_truncate="chunk", chunking=Chunking(tokens=1_000)
    )
    assert batch.n_tokens.tolist() == [3, 2]
    assert batch.lost_tokens.sum() == 0


def test_truncation_is_counted_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    embedder = HashingEmbedder(16, max_len=2)
    (batch,) = embed_batches([(documents("a b c d", "a", "a b c"), None)], embedder)
    assert batch.lost_tokens.tolist() == [2, 0, 1]
    assert batch.n_tokens.tolist() == [2, 1, 2]
    assert "2 of 3 texts (66.7%)" in (told := capsys.readouterr().err)
    assert "3 tokens were cut off" in told


def test_truncation_can_be_an_error_naming_the_document() -> None:
    stream = embed_batches(
        [(documents("a", "a b c"), None)], HashingEmbedder(16, max_len=2), on_truncate="error"
    )
    with pytest.raises(CorpusError, match=r"f:1: document '1' has 3 tokens and the model reads 2"):
        list(stream)


def test_progress_counts_each_document_once() -> None:
    seen: list[int] = []
    docs = documents("a b c d e", "a", "b c d")
    embedder = SmallSteps(16, max_len=2)
    list(embed_batches([(docs, None)], embedder, on_truncate="chunk", advance=seen.append))
    assert sum(seen) == 3


def test_a_failing_stage_stops_all_threads() -> None:
    class Broken(HashingEmbedder):
        def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
            raise MemoryError("no memory left")

    with pytest.raises(MemoryError, match="no memory left"):
        list(embed_batches([(documents("a"), None)] * 5, Broken(16)))
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_closing_early_stops_all_threads_and_the_source() -> None:
    closed = []

    def source() -> Iterator[tuple[Sequence[Document], int]]:
        try:
            for n in range(10_000):
                yield documents("a b"), n
        finally:
            closed.append(True)

    with closing(embed_batches(source(), HashingEmbedder(16))) as stream:
        first: EmbeddedBatch[int] = next(stream)
    assert first.payload == 0
    assert closed == [True]
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]
