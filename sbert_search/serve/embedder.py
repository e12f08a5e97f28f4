"""An embedding model of a server; a queue embeds the texts of all requests in shared batches.

Until torch has loaded the model, its exported graph computes.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import warn
from sbert_search.embed.delegation import DelegatingEmbedder
from sbert_search.embed.protocol import Task, TextEmbedder, TokenizedTexts, Vectors
from sbert_search.errors import SbertSearchError
from sbert_search.serve.access import ServerLimits
from sbert_search.serve.metrics import Metrics
from sbert_search.serve.problems import Problem
from sbert_search.serve.queue import Computed, Work, WorkQueue, in_thread
from sbert_search.text.tokens.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of texts."""

    vectors: Vectors  # (n, dim)
    lengths: NDArray[np.int32]  # tokens of each text that the model read, (n,)
    lost: NDArray[np.int32]  # tokens of each text that were cut off, (n,)


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    prompt: str
    ids: Sequence[int]


@dataclass(eq=False)
class ServedEmbedder(DelegatingEmbedder):
    """An embedder with a queue; it is also a `TextEmbedder`, whose calls go through the queue."""

    name: str  # in answers
    embedder: TextEmbedder  # only the thread of the queue computes with it
    limits: ServerLimits
    metrics: Metrics
    for_queries: bool = False  # only a query model: a request must name it to get its vectors
    queue: WorkQueue[_Text] = field(init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(
            f"embed {self.name}",
            self._compute,
            batch_tokens=lambda: self.embedder.batch_tokens,
            limits=self.limits,
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
        """Compute the vectors of texts, at least one, and add their cost to ``work``.

        The prompt is that of ``prompt_name``, or else of ``task``, or else the model's default. A
        text that is too long is truncated or, without ``cuts``, refused. ``param`` is the field of
        the request that holds the texts.
        """
        tokens, done = await self.queue.encode(
            partial(self.embedder.tokenize, texts, task=task, prompt_name=prompt_name),
            _items,
            work,
            n_chars=sum(map(len, texts)),
            n_special=2 * len(texts),
            max_len=None if cuts else self.max_len,
            param=param,
        )
        return self._result(tokens, done, work)

    async def embed_ends(
        self,
        texts: Sequence[str],
        work: Work,
        *,
        task: Task | None,
        prompt_name: str | None,
        param: str,
    ) -> Embedded:
        """Do as `embed`, but of a text that is too long, cut the start with the prompt."""
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise Problem(400, f"The model {self.name} has no token ids to cut.", param)
        prompt = self.tokenize([""], task=task, prompt_name=prompt_name).prompt
        whole = partial(tokenizer.encode_offsets, [prompt + text for text in texts])
        encoded = await in_thread(sum(map(len, texts)), whole)
        before, after = tokenizer.single.before, tokenizer.single.after
        room = self.max_len - len(before) - len(after)
        ids = [[*before, *own[-room:], *after] for own, _ in encoded]
        lost = np.array([max(0, len(own) - room) for own, _ in encoded], np.int32)
        return await self.embed_ids(ids, work, param=param, lost=lost)

    async def embed_ids(
        self,
        ids: Sequence[Sequence[int]],
        work: Work,
        *,
        param: str = "input",
        lost: NDArray[np.int32] | None = None,
    ) -> Embedded:
        """Compute the vectors of texts that are given as token ids, special tokens included.

        ``lost`` is the number of tokens (n,) that were cut off before.
        """
        tokenizer = self.tokenizer
        if tokenizer is None or self.identity.engine not in ("native", "onnx"):
            raise Problem(400, f"The model {self.name} reads texts and no token ids.", param)
        for at, each in enumerate(ids):
            if not each:
                raise Problem(400, "There are no token ids.", f"{param}[{at}]")
            if len(each) > self.max_len:
                raise Problem(
                    413,
                    f"There are {len(each):,} token ids, and the model reads {self.max_len:,}.",
                    f"{param}[{at}]",
                )
            wrong = [token for token in each if not 0 <= token < tokenizer.vocab_size]
            if wrong:
                raise Problem(
                    400,
                    f"{wrong[0]} is no token id of the model {self.name}, whose ids are from 0 to "
                    f"{tokenizer.vocab_size - 1:,}. Ids of another model's tokenizer do not fit; "
                    "send texts.",
                    f"{param}[{at}]",
                )
        lost = np.zeros(len(ids), np.int32) if lost is None else lost
        tokens = TokenizedTexts([""] * len(ids), "", ids, lost)
        lengths = tokens.lengths.tolist()
        self.limits.require_tokens(sum(lengths), param)
        done = await asyncio.wrap_future(self.queue.submit(_items(tokens), lengths))
        return self._result(tokens, done, work)

    def _result(self, tokens: TokenizedTexts, done: Computed, work: Work) -> Embedded:
        work.add(done, tokens.lengths, tokens.lost, self.metrics)
        return Embedded(done.rows, tokens.lengths, tokens.lost)

    def _compute(self, items: Sequence[_Text]) -> Vectors:
        # Native and exported models read token ids, which contain the prompt. Other models read
        # texts and take one prompt for a call.
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

    @property
    def inner(self) -> TextEmbedder:
        """The model."""
        return self.embedder

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors in the queue and wait for them; the event loop must not call this."""
        if not len(tokens):
            return np.empty((0, self.dim), np.float32)
        future = self.queue.submit(_items(tokens), tokens.lengths.tolist(), urgent=True)
        return future.result().rows


def _items(tokens: TokenizedTexts) -> list[_Text]:
    texts = zip(tokens.texts, tokens.ids, strict=True)
    return [_Text(text, tokens.prompt, ids) for text, ids in texts]


# A batch with more tokens makes torch load. With the graph, a batch of several texts has at most
# 256 tokens. With a larger number here, only a single long text could make torch load.
_LARGE_TOKENS = 128


class WarmEmbedder(DelegatingEmbedder):
    """Computes with one embedder until a large batch comes and another embedder is open.

    The exported graph (``quick``) opens in a fraction of a second and embeds a lone query quickly;
    torch opens in seconds and embeds many texts faster. Torch is therefore loaded in another
    thread, after the first batch that it would embed faster. If loading fails, the graph stays in
    use.
    """

    def __init__(self, quick: TextEmbedder, open_full: Callable[[], TextEmbedder]) -> None:
        self._current, self._open_full = quick, open_full
        self._opening: threading.Thread | None = None

    @property
    def inner(self) -> TextEmbedder:
        """The embedder that computes now."""
        return self._current

    @property
    def tokenizer(self) -> object:
        """The tokenizer of the model."""
        return getattr(self._current, "tokenizer", None)

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors; a large batch starts to open the other embedder."""
        if self._opening is None and int(tokens.lengths.sum()) > _LARGE_TOKENS:
            self._opening = threading.Thread(target=self._open, name="open model", daemon=True)
            self._opening.start()
        return self._current.encode_tokens(tokens)

    def _open(self) -> None:
        try:
            self._current = self._open_full()
            gc.freeze()  # as at the start of the server: torch has a million objects
        except SbertSearchError as error:
            warn(f"The exported graph goes on computing, since torch cannot: {error}")
