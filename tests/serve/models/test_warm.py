"""The exported graph answers until torch is open."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from sbert_search.embed.engines.graph import GraphEngine
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ModelError
from sbert_search.serve.access import ServerLimits
from sbert_search.serve.embedder import ServedEmbedder, WarmEmbedder
from sbert_search.serve.metrics import Metrics


def test_a_large_batch_opens_the_other_embedder_beside_the_requests() -> None:
    quick, full = HashingEmbedder(8), HashingEmbedder(8)
    may_open = threading.Event()

    def open_full() -> TextEmbedder:
        assert may_open.wait(30)
        return full

    warm = WarmEmbedder(quick, open_full)
    np.testing.assert_array_equal(warm.encode_query(["a b"]), quick.encode(["a b"]))
    assert warm.inner is quick
    large = ["word " * 200] * 2
    np.testing.assert_array_equal(warm.encode(large), quick.encode(large))
    assert warm.inner is quick  # still, since the other is not open
    may_open.set()
    for thread in threading.enumerate():
        if thread.name == "open model":
            thread.join()
    assert warm.inner is full
    np.testing.assert_array_equal(warm.encode_document(large), full.encode(large))
    assert (warm.dim, warm.max_len, warm.batch_tokens) == (8, 512, full.batch_tokens)


def test_if_the_other_cannot_be_opened_the_first_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def open_full() -> TextEmbedder:
        raise ModelError("no torch here")

    warm = WarmEmbedder(HashingEmbedder(8), open_full)
    warm.encode(["word " * 200] * 2)
    for thread in threading.enumerate():
        if thread.name == "open model":
            thread.join()
    assert warm.encode(["a"]).shape == (1, 8)
    assert "no torch here" in capsys.readouterr().err


def test_batches_of_the_queue_are_large_enough_to_open_the_other() -> None:
    """The graph takes batches of 256 tokens, into which the queue cuts a large request."""
    quick, full = HashingEmbedder(8), HashingEmbedder(8)
    quick.batch_tokens = GraphEngine.batch_tokens
    warm = WarmEmbedder(quick, lambda: full)
    served = ServedEmbedder("x", warm, ServerLimits(), Metrics())
    served.encode(["seven words are in this short text"] * 64)
    served.queue.close()
    for thread in threading.enumerate():
        if thread.name == "open model":
            thread.join()
    assert warm.inner is full
