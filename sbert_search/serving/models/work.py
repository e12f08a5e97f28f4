"""The cost of a request, and tokenising without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.serving.metrics import Metrics
from sbert_search.serving.models.queue import Computed

T = TypeVar("T")

_INLINE_CHARS = 1024  # texts of up to this many characters are tokenised without another thread
_CHARS_A_TOKEN = 3  # to estimate the tokens of a text

_tokenizers = ThreadPoolExecutor(2, thread_name_prefix="sbert-search-tokenize")


@dataclass(slots=True)
class Work:
    """The cost of a request so far, for headers, the log and metrics.

    Attributes:
        texts: Number of texts or pairs.
        tokens: Tokens that the model read.
        truncated: Number of texts that were truncated.
        tokenization_s: Seconds that tokenising took.
        queue_s: Seconds from the submission of texts to a queue until their first batch began,
            summed over all submissions of the request.
        inference_s: Seconds that the batches with its texts took.
        search_s: Seconds that searching took.
    """

    texts: int = 0
    tokens: int = 0
    truncated: int = 0
    tokenization_s: float = 0.0
    queue_s: float = 0.0
    inference_s: float = 0.0
    search_s: float = 0.0

    def add(
        self,
        done: Computed,
        lengths: NDArray[np.int32],
        lost: NDArray[np.int32],
        metrics: Metrics,
    ) -> None:
        """Add computed texts, here and to the metrics.

        Args:
            done: The result of the queue.
            lengths: Number of tokens of each text that the model read, (n,).
            lost: Number of tokens of each text that were cut off, (n,).
            metrics: Metrics of the server.
        """
        truncated = int(np.count_nonzero(lost))
        self.texts += len(lengths)
        self.tokens += int(lengths.sum())
        self.truncated += truncated
        self.queue_s += done.queue_s
        self.inference_s += done.inference_s
        for length in lengths.tolist():
            metrics.input_lengths.observe(length)
        if truncated:
            metrics.truncated.add(truncated)


def estimated_tokens(chars: int, n_special: int) -> int:
    """Estimate the tokens of texts before they are tokenised.

    Args:
        chars: Number of characters of all texts.
        n_special: Number of special tokens of all texts.
    """
    return chars // _CHARS_A_TOKEN + n_special


async def in_thread(chars: int, tokenize: Callable[[], T]) -> T:
    """Tokenise texts without blocking the event loop for long.

    Texts of few characters are tokenised in the thread of the event loop, since a switch to another
    thread would take longer; other texts are tokenised in another thread.

    Args:
        chars: Number of characters of all texts.
        tokenize: Tokenises them.
    """
    if chars <= _INLINE_CHARS:
        return tokenize()
    return await asyncio.get_running_loop().run_in_executor(_tokenizers, tokenize)
