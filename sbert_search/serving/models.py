"""The models of a server: each has a queue, in which the texts of all requests share batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.embedding.protocol import Task, TextEmbedder, TokenizedTexts, Vectors
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.search.rerankers.reranker import Pair, Reranker
from sbert_search.serving.limits import ServerLimits
from sbert_search.serving.metrics import Metrics
from sbert_search.serving.problems import invalid, too_large
from sbert_search.serving.work_queue import Arrival, Computed, WorkQueue
from sbert_search.tokens.chunking import WHOLE_WORDS, Chunking
from sbert_search.tokens.tokenizer import EncodedPairs, TextTokenizer

T = TypeVar("T")

_INLINE_CHARS = 1024  # texts of up to this many characters are tokenised without another thread
_CHARS_A_TOKEN = 3  # for the estimate of a text's tokens before it is tokenised

_tokenizers = ThreadPoolExecutor(2, thread_name_prefix="sbert-search-tokenize")


@dataclass(slots=True)
class Work:
    """What a request has cost so far, for headers, the log and metrics.

    Attributes:
        texts: Number of texts or pairs.
        tokens: Tokens that the model read.
        truncated: Number of texts that were cut.
        tokenization_s: Seconds to tokenise.
        queue_s: Seconds in the queue of a model.
        inference_s: Seconds of batches.
        search_s: Seconds of searching.
    """

    texts: int = 0
    tokens: int = 0
    truncated: int = 0
    tokenization_s: float = 0.0
    queue_s: float = 0.0
    inference_s: float = 0.0
    search_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of texts.

    Attributes:
        vectors: Float32 (n, dim).
        lengths: Number of tokens of each text that the model read, (n,).
        lost: Number of tokens of each text that were cut off, (n,).
    """

    vectors: Vectors
    lengths: NDArray[np.int32]
    lost: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Text:
    """A tokenised text."""

    text: str
    prompt: str
    ids: Sequence[int]


@dataclass(slots=True)
class _Pair:
    """A tokenised pair."""

    pair: Pair
    ids: list[int]
    types: list[int]


@dataclass(eq=False)
class ServedEmbedder:
    """An embedder behind a queue; it is a `TextEmbedder` too, whose calls go through the queue.

    Args:
        name: Name of the model in answers.
        embedder: The model; only the thread of the queue computes with it.
        limits: Limits of a request.
        metrics: Where tokens and seconds are counted.
    """

    name: str
    embedder: TextEmbedder
    limits: ServerLimits
    metrics: Metrics
    queue: WorkQueue[_Text] = field(init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(
            f"embed {self.name}",
            self._compute,
            batch_tokens=lambda: self.embedder.batch_tokens,
            max_tokens=self.limits.queue_tokens,
            window_s=self.limits.window_s,
            metrics=self.metrics,
        )

    async def embed(
        self,
        texts: Sequence[str],
        work: Work,
        *,
        task: Task | None = None,
        prompt_name: str | None = None,
        cuts: bool = True,
        param: str = "input",
    ) -> Embedded:
        """Compute the vectors of texts.

        Args:
            texts: The texts, at least one.
            work: Where the cost is added.
            task: The kind of the texts, which chooses the prompt.
            prompt_name: The prompt to use instead.
            cuts: Whether a text that is too long is cut; if not, it is a problem.
            param: Field of the texts, for messages.

        Raises:
            Problem: There are too many tokens, or a text is too long.
        """
        chars = sum(map(len, texts))
        with self.queue.arriving(chars // _CHARS_A_TOKEN + 2 * len(texts)) as arrival:
            started_s = perf_counter()
            tokenize = partial(self.embedder.tokenize, task=task, prompt_name=prompt_name)
            tokens = await in_thread(chars, partial(tokenize, texts))
            work.tokenization_s += perf_counter() - started_s
            if not cuts and tokens.lost.any():
                at = int(np.argmax(tokens.lost > 0))
                n_tokens = int(tokens.lengths[at] + tokens.lost[at])
                raise too_large(
                    f"{param}[{at}]",
                    f"The text has {n_tokens:,} tokens, and the model reads {self.max_len:,}; "
                    "shorten it, or let it be truncated.",
                )
            future = self._submit(tokens, param, arrival=arrival)
        return await self._result(tokens, future, work)

    async def embed_ids(
        self, ids: Sequence[Sequence[int]], work: Work, *, param: str = "input"
    ) -> Embedded:
        """Compute the vectors of texts that are given as token ids, special tokens included.

        Raises:
            Problem: An id is not in the vocabulary, a text has no or too many ids, or the model
                reads texts only.
        """
        tokenizer = self.tokenizer
        if tokenizer is None or self.identity.engine not in ("native", "onnx"):
            raise invalid(param, f"The model {self.name} reads texts and no token ids.")
        for at, each in enumerate(ids):
            if not each:
                raise invalid(f"{param}[{at}]", "There are no token ids.")
            if len(each) > self.max_len:
                raise too_large(
                    f"{param}[{at}]",
                    f"There are {len(each):,} token ids, and the model reads {self.max_len:,}.",
                )
            wrong = [token for token in each if not 0 <= token < tokenizer.vocab_size]
            if wrong:
                raise invalid(
                    f"{param}[{at}]",
                    f"{wrong[0]} is no token id of the model {self.name}, whose ids are from 0 to "
                    f"{tokenizer.vocab_size - 1:,}. Ids of another model's tokenizer do not fit; "
                    "send texts.",
                )
        tokens = TokenizedTexts([""] * len(ids), "", ids, np.zeros(len(ids), np.int32))
        return await self._result(tokens, self._submit(tokens, param), work)

    def _submit(
        self,
        tokens: TokenizedTexts,
        param: str = "",
        *,
        arrival: Arrival | None = None,
        urgent: bool = False,
    ) -> Future[Computed]:
        lengths = tokens.lengths.tolist()
        if not urgent and (total := sum(lengths)) > self.limits.request_tokens:
            raise too_large(
                param,
                f"The texts have {total:,} tokens; a request may have "
                f"{self.limits.request_tokens:,}. Send several requests.",
            )
        items = [
            _Text(text, tokens.prompt, ids)
            for text, ids in zip(tokens.texts, tokens.ids, strict=True)
        ]
        return self.queue.submit(items, lengths, arrival=arrival, urgent=urgent)

    async def _result(
        self, tokens: TokenizedTexts, future: Future[Computed], work: Work
    ) -> Embedded:
        done = await asyncio.wrap_future(future)
        _count(work, done, tokens.lengths, tokens.lost, self.metrics)
        return Embedded(done.rows, tokens.lengths, tokens.lost)

    def _compute(self, items: Sequence[_Text]) -> Vectors:
        """Compute a batch; only models of sentence-transformers read texts and their prompt."""
        prompts = {item.prompt for item in items}
        if len(prompts) > 1 and self.identity.engine not in ("native", "onnx"):
            rows = np.empty((len(items), self.dim), np.float32)
            for prompt in prompts:
                at = [i for i, item in enumerate(items) if item.prompt == prompt]
                rows[at] = self._compute([items[i] for i in at])
            return rows
        tokens = TokenizedTexts(
            [item.text for item in items],
            items[0].prompt,
            [item.ids for item in items],
            np.zeros(len(items), np.int32),
        )
        return self.embedder.encode_tokens(tokens)

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer of the model; None: the model has none."""
        tokenizer: TextTokenizer | None = getattr(self.embedder, "tokenizer", None)
        return tokenizer

    # The interface `TextEmbedder`, for the engine of a search and for updates of an index.

    @property
    def dim(self) -> int:
        """Number of dimensions of a vector."""
        return self.embedder.dim

    @property
    def max_len(self) -> int:
        """Maximum tokens of a text."""
        return self.embedder.max_len

    @property
    def identity(self) -> ModelIdentity:
        """Identity of the model."""
        return self.embedder.identity

    @property
    def batch_tokens(self) -> int:
        """Maximum tokens of one batch."""
        return self.embedder.batch_tokens

    def tokenize(
        self, texts: Sequence[str], *, task: Task | None = None, prompt_name: str | None = None
    ) -> TokenizedTexts:
        """Turn texts into token ids."""
        return self.embedder.tokenize(texts, task=task, prompt_name=prompt_name)

    def split(
        self, text: str, *, task: Task | None = None, chunking: Chunking = WHOLE_WORDS
    ) -> list[tuple[int, int]]:
        """Cut a text into passages."""
        return self.embedder.split(text, task=task, chunking=chunking)

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors in the queue and wait for them; not in the event loop."""
        if not len(tokens):
            return np.empty((0, self.dim), np.float32)
        return self._submit(tokens, urgent=True).result().rows

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of texts that are neither queries nor documents."""
        return self.encode_tokens(self.tokenize(texts))

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of queries."""
        return self.encode_tokens(self.tokenize(texts, task="query"))

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of documents."""
        return self.encode_tokens(self.tokenize(texts, task="document"))


@dataclass(eq=False)
class ServedReranker:
    """A reranker behind a queue; `predict` makes it a reranker for the engine of a search.

    Args:
        name: Name of the model in answers.
        reranker: The model; only the thread of the queue computes with it.
        limits: Limits of a request.
        metrics: Where tokens and seconds are counted.
    """

    name: str
    reranker: Reranker
    limits: ServerLimits
    metrics: Metrics
    queue: WorkQueue[_Pair] = field(init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(
            f"rerank {self.name}",
            self._compute,
            batch_tokens=lambda: self.reranker.batch_tokens,
            max_tokens=self.limits.queue_tokens,
            window_s=self.limits.window_s,
            metrics=self.metrics,
        )

    async def score(
        self, pairs: Sequence[Pair], work: Work, *, cuts: bool = True, param: str = "documents"
    ) -> NDArray[np.float32]:
        """Score pairs of query and text, float32 (n,); higher is better.

        Raises:
            Problem: There are too many tokens, or a pair is too long and ``cuts`` is false.
        """
        chars = sum(len(query) + len(text) for query, text in pairs)
        with self.queue.arriving(chars // _CHARS_A_TOKEN + 3 * len(pairs)) as arrival:
            started_s = perf_counter()
            encode = partial(self.reranker.tokenizer.encode_pairs, pairs)
            encoded = await in_thread(chars, encode)
            work.tokenization_s += perf_counter() - started_s
            if not cuts and encoded.lost.any():
                at = int(np.argmax(encoded.lost > 0))
                raise too_large(
                    f"{param}[{at}]",
                    f"The query and the text have more than the {self.reranker.max_len:,} tokens "
                    "that the model reads; shorten them, or let them be truncated.",
                )
            if (total := int(encoded.lengths.sum())) > self.limits.request_tokens:
                raise too_large(
                    param,
                    f"The pairs have {total:,} tokens; a request may have "
                    f"{self.limits.request_tokens:,}. Send several requests.",
                )
            future = self._submit(pairs, encoded, arrival=arrival)
        done = await asyncio.wrap_future(future)
        _count(work, done, encoded.lengths, encoded.lost, self.metrics)
        return done.rows

    async def shortened(self, texts: Sequence[str], tokens: int) -> list[str]:
        """Cut each text after its first tokens."""
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

    def predict(self, pairs: list[Pair], /) -> NDArray[np.float32]:
        """Score pairs in the queue and wait for the scores; not in the event loop."""
        if not pairs:
            return np.empty(0, np.float32)
        encoded = self.reranker.tokenizer.encode_pairs(pairs)
        return self._submit(pairs, encoded, urgent=True).result().rows

    def _submit(
        self,
        pairs: Sequence[Pair],
        encoded: EncodedPairs,
        *,
        arrival: Arrival | None = None,
        urgent: bool = False,
    ) -> Future[Computed]:
        items = [
            _Pair(pair, ids, types)
            for pair, ids, types in zip(pairs, encoded.ids, encoded.types, strict=True)
        ]
        lengths = encoded.lengths.tolist()
        return self.queue.submit(items, lengths, arrival=arrival, urgent=urgent)

    def _compute(self, items: Sequence[_Pair]) -> Vectors:
        encoded = EncodedPairs(
            [item.ids for item in items],
            [item.types for item in items],
            np.zeros(len(items), np.int32),
        )
        return self.reranker.predict_tokens([item.pair for item in items], encoded)


async def in_thread(chars: int, tokenize: Callable[[], T]) -> T:
    """Tokenise short texts at once, and others in a thread, so that the event loop goes on."""
    if chars <= _INLINE_CHARS:
        return tokenize()
    return await asyncio.get_running_loop().run_in_executor(_tokenizers, tokenize)


def _count(
    work: Work,
    done: Computed,
    lengths: NDArray[np.int32],
    lost: NDArray[np.int32],
    metrics: Metrics,
) -> None:
    truncated = int(np.count_nonzero(lost))
    work.texts += len(lengths)
    work.tokens += int(lengths.sum())
    work.truncated += truncated
    work.queue_s += done.queue_s
    work.inference_s += done.inference_s
    for length in lengths.tolist():
        metrics.input_lengths.observe(length)
    if truncated:
        metrics.truncated.add(truncated)
