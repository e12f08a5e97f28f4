"""A reranker of a server; a queue collects the pairs of all requests and scores them in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.protocol import Vectors
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.search.rerankers import Pair, Reranker
from sbert_search.serve.access import ServerLimits
from sbert_search.serve.metrics import Metrics
from sbert_search.serve.queue import Computed, Work, WorkQueue, in_thread
from sbert_search.text.tokens.tokenizer import EncodedPairs, TextTokenizer


@dataclass(slots=True)
class _Pair:
    pair: Pair
    ids: list[int]
    types: list[int]


@dataclass(eq=False, slots=True)
class _Reranking:
    """The pairs that one search has submitted to the queue."""

    scored: list[tuple[EncodedPairs, Future[Computed]]] = field(default_factory=list)
    ended: bool = False

    def add(self, encoded: EncodedPairs, future: Future[Computed]) -> None:
        self.scored.append((encoded, future))
        if self.ended:  # checked after the append: an `end` in between may have missed the future
            future.cancel()

    def end(self) -> None:
        self.ended = True
        for _, future in self.scored:
            future.cancel()


_reranking: ContextVar[_Reranking | None] = ContextVar("reranking", default=None)


@contextmanager
def reranking_for(work: Work, metrics: Metrics) -> Iterator[None]:
    """Add the cost of the pairs that a search scores in this context to the work of its request.

    Pairs that still wait when the context ends are cancelled: the client has hung up.
    """
    reranking = _Reranking()
    token = _reranking.set(reranking)
    try:
        yield
        for encoded, future in reranking.scored:
            work.add(future.result(), encoded.lengths, encoded.lost, metrics)
    finally:
        _reranking.reset(token)
        reranking.end()


@dataclass(eq=False)
class ServedReranker:
    """A reranker with a queue; because it has `predict`, a `SearchEngine` can rerank with it."""

    name: str  # in answers
    reranker: Reranker  # one score for a pair; only the queue's thread computes with it
    limits: ServerLimits
    metrics: Metrics
    is_logit: bool = False  # whether the reranker returns logits, to which a sigmoid belongs
    queue: WorkQueue[_Pair] = field(init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(
            f"rerank {self.name}",
            self._compute,
            batch_tokens=lambda: self.reranker.batch_tokens,
            limits=self.limits,
            metrics=self.metrics,
        )

    async def score(
        self,
        pairs: Sequence[Pair],
        work: Work,
        cut: Sequence[bool],
        *,
        cuts: bool = True,
        param: str = "documents",
        raw: bool = False,
    ) -> NDArray[np.float32]:
        """Score pairs of query and text, float32 (n,), higher is better; add the cost to ``work``.

        A text that has been ``cut`` already counts as truncated, once. A pair that is too long is
        truncated or, without ``cuts``, refused. ``param`` is the field of the request that holds
        the texts. With ``raw``, scores are those before a sigmoid.
        """
        encoded, done = await self.queue.encode(
            partial(self.tokenizer.encode_pairs, pairs),
            partial(_items, pairs),
            work,
            n_chars=sum(len(query) + len(text) for query, text in pairs),
            n_special=3 * len(pairs),
            max_len=None if cuts else self.reranker.max_len,
            param=param,
        )
        lost = np.maximum(encoded.lost, np.array(cut, np.int32))
        work.add(done, encoded.lengths, lost, self.metrics)
        return done.rows if raw else self._activated(done.rows)

    async def shortened(self, texts: Sequence[str], tokens: int) -> list[str]:
        """Cut each text after its first ``tokens`` tokens."""
        encode = partial(self.tokenizer.encode_offsets, texts)
        encoded = await in_thread(sum(map(len, texts)), encode)
        return [
            text[: offsets[tokens - 1][1]] if len(offsets) > tokens else text
            for text, (_, offsets) in zip(texts, encoded, strict=True)
        ]

    @property
    def num_labels(self) -> int:
        """Number of scores of a pair."""
        return self.reranker.num_labels

    @property
    def identity(self) -> ModelIdentity:
        """Identity of the model."""
        return self.reranker.identity

    @property
    def tokenizer(self) -> TextTokenizer:
        """Tokenizer that truncates pairs."""
        return self.reranker.tokenizer

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn scores of `predict` (n,) into probabilities."""
        return scores if self.is_logit else self.reranker.probabilities(scores)

    def _activated(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self.is_logit:
            return rows
        return self.reranker.probabilities(rows.astype(float)).astype(np.float32)

    def predict(self, pairs: list[Pair], /) -> NDArray[np.float32]:
        """Score pairs in the queue and wait for the scores; the event loop must not call this.

        `concurrent.futures.CancelledError` is raised if the client of the search has hung up.
        """
        if not pairs:
            return np.empty(0, np.float32)
        encoded = self.tokenizer.encode_pairs(pairs)
        future = self.queue.submit(_items(pairs, encoded), encoded.lengths.tolist(), urgent=True)
        if reranking := _reranking.get():
            reranking.add(encoded, future)
        return self._activated(future.result().rows)

    def _compute(self, items: Sequence[_Pair]) -> Vectors:
        encoded = EncodedPairs(
            [item.ids for item in items],
            [item.types for item in items],
            np.zeros(len(items), np.int32),
        )
        return self.reranker.predict_tokens([item.pair for item in items], encoded)


def _items(pairs: Sequence[Pair], encoded: EncodedPairs) -> list[_Pair]:
    triples = zip(pairs, encoded.ids, encoded.types, strict=True)
    return [_Pair(pair, ids, types) for pair, ids, types in triples]
