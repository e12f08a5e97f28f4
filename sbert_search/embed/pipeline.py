"""Embed batches of documents; reading, tokenising and encoding run at the same time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.memory import MAX_WAITING_BYTES
from sbert_search.base.options import if_offered
from sbert_search.base.progress import warn
from sbert_search.base.threads import Allowance, end_idle_workers, prefetch
from sbert_search.embed.arguments import OnTruncate as OnTruncate
from sbert_search.embed.delegation import LazyEmbedder
from sbert_search.embed.protocol import TextEmbedder, TokenizedTexts, Vectors
from sbert_search.errors import CorpusError
from sbert_search.records import Document
from sbert_search.text.tokens.batching import token_batches
from sbert_search.text.tokens.chunking import AT_BORDERS, Chunking

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_STEPS_A_CALL = 4  # forward passes of the model in one call of the embedder
_CALLS_AHEAD = 64  # results that may wait until the caller of `embed_batches` takes them
_CHARS_AT_ONCE = 1 << 20  # characters of the texts that are tokenised together
# Memory of the passages of a text together with their token ids, divided by the memory of the
# passages alone.
_CHUNK_COPIES = 5


@dataclass(frozen=True, slots=True)
class EmbeddedBatch(Generic[T_co]):
    """A batch of documents with the vectors of its passages; each row is one passage."""

    documents: Sequence[Document]  # in input order
    doc_of: NDArray[np.int64]  # index into ``documents``, (rows,), ascending
    chunk: NDArray[np.int32]  # number of the passage in its document, from 0
    char_start: NDArray[np.int64]  # in ``Document.full_text``
    char_end: NDArray[np.int64]  # exclusive
    n_tokens: NDArray[np.int32]  # that the model read, special tokens and prompt included
    lost_tokens: NDArray[np.int32]  # cut off at the end of the passage
    vectors: Vectors  # (rows, dim)
    # The row of an index whose stored vectors the passage gets as they are; -1: a new vector.
    stored_row: NDArray[np.int64]
    payload: T_co  # came with the batch, such as a position in the source
    held_bytes: int  # approximate memory of the documents and of the passages of split texts
    # Whether the user supplied the vectors. A document then also counts as changed if only its
    # vector differs from the vector in the index.
    given: bool = False

    def take(self, docs: NDArray[np.int64], at: NDArray[np.int64]) -> EmbeddedBatch[T_co]:
        """Take documents and all of their passages, both by ascending positions."""
        return replace(
            self,
            documents=[self.documents[i] for i in docs.tolist()],
            doc_of=np.searchsorted(docs, self.doc_of[at]),
            **self._passages(at),
        )

    def reordered(
        self, documents: Sequence[Document], places: NDArray[np.int64]
    ) -> EmbeddedBatch[T_co]:
        """Put the documents in the order ``documents``; ``places`` are their indices there."""
        at = np.argsort(places[self.doc_of], kind="stable")
        doc_of = places[self.doc_of][at]
        return replace(self, documents=documents, doc_of=doc_of, **self._passages(at))

    def _passages(self, at: NDArray[np.int64]) -> dict[str, Any]:
        return {name: getattr(self, name)[at] for name in _OF_PASSAGES}


_OF_PASSAGES = (
    "chunk",
    "char_start",
    "char_end",
    "n_tokens",
    "lost_tokens",
    "vectors",
    "stored_row",
)


def join_batches(batches: Sequence[EmbeddedBatch[T]]) -> EmbeddedBatch[T]:
    """Join one or more batches, in order, to one batch with the payload of the last batch."""
    parts = [batch for batch in batches if len(batch.documents)] or batches[-1:]
    if len(parts) == 1:
        return replace(parts[0], payload=batches[-1].payload)
    starts = np.cumsum([0, *(len(part.documents) for part in parts[:-1])])
    return EmbeddedBatch(
        documents=[document for part in parts for document in part.documents],
        doc_of=np.concatenate([p.doc_of + start for p, start in zip(parts, starts, strict=True)]),
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _OF_PASSAGES},
        payload=batches[-1].payload,
        held_bytes=sum(part.held_bytes for part in parts),
        given=parts[0].given,
    )


class EmbedBatches(Protocol):
    """A function that embeds batches of documents, such as `embed_batches`."""

    def __call__(
        self,
        batches: Iterable[tuple[Sequence[Document], T]],
        embedder: TextEmbedder,
        *,
        on_truncate: OnTruncate = "warn",
        chunking: Chunking = AT_BORDERS,
        advance: Callable[[int], None] = lambda n: None,
        waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> Generator[EmbeddedBatch[T]]:
        """Yield the batches in input order, with the vectors that `embed_batches` would compute."""


def embed_batches(
    batches: Iterable[tuple[Sequence[Document], T]],
    embedder: TextEmbedder,
    *,
    on_truncate: OnTruncate = "warn",
    chunking: Chunking = AT_BORDERS,
    advance: Callable[[int], None] = lambda n: None,
    waiting_bytes: int = MAX_WAITING_BYTES,
) -> Generator[EmbeddedBatch[T]]:
    """Embed documents batch by batch; reading, tokenising, encoding and the caller run in parallel.

    The rounding of a vector depends on the other texts in its forward pass. Texts of different
    batches therefore never share a forward pass. A batch then has the same vectors in a resumed run
    as in an uninterrupted run.

    A payload, and an empty batch, comes back as it was; its ``held_bytes``, if it has this
    attribute, count as memory of the batch. ``on_truncate`` says what is done with a
    text longer than the model's limit: ``warn`` cuts it and prints the number of such texts at the
    end, ``error`` stops, ``chunk`` splits it into passages; a text of at most ``chunking.tokens``
    tokens then stays whole. ``advance`` is called after each call of the embedder, with the number
    of documents whose first passage was embedded in that call. ``waiting_bytes`` limits the memory
    of all batches that were read and that the caller has not finished. The caller finishes a batch
    by asking for the next. A single batch may have more.
    """
    lost = TruncatedTexts()
    allowance = Allowance(waiting_bytes)
    end_idle_workers()  # idle OpenMP threads of this thread would slow the encoding thread
    with (
        closing(prefetch(_admitted(batches, allowance, on_truncate, chunking))) as read,
        closing(prefetch(_tokenize(read, embedder, on_truncate, chunking))) as tokenized,
        closing(prefetch(_encode(tokenized, embedder), _CALLS_AHEAD)) as results,
        closing(allowance),
    ):
        for result in results:
            if isinstance(result, int):
                advance(result)
                continue
            lost.add(result.lost_tokens)
            yield result
            allowance.give_back(result.held_bytes)
            del result
    lost.report(embedder)


@dataclass(slots=True)
class TruncatedTexts:
    """Counts the texts that the model does not read to their end."""

    texts: int = 0  # all, truncated or not
    truncated: int = 0
    tokens: int = 0  # cut off

    def add(self, lost_tokens: NDArray[np.int32]) -> None:
        """Count the texts of a batch by their tokens that were cut off, int32 (n,)."""
        self.texts += len(lost_tokens)
        self.truncated += int(np.count_nonzero(lost_tokens))
        self.tokens += int(lost_tokens.sum())

    def report(self, embedder: TextEmbedder) -> None:
        """Print a warning if a text was truncated."""
        if self.truncated:
            chunk = " --on-truncate chunk splits such texts into passages instead."
            warn(
                f"{self.truncated:,} of {self.texts:,} texts ({self.truncated / self.texts:.1%}) "
                f"are longer than the {embedder.max_len} tokens the model reads; {self.tokens:,} "
                f"tokens were cut off.{if_offered('--on-truncate', chunk)}"
            )


def _admitted(
    batches: Iterable[tuple[Sequence[Document], T]],
    allowance: Allowance,
    on_truncate: OnTruncate,
    chunking: Chunking,
) -> Iterator[tuple[Sequence[Document], T, int]]:
    """Yield each batch, with its size in bytes, as soon as the memory limit allows it."""
    copies = 1 + (_CHUNK_COPIES * chunking.growth if on_truncate == "chunk" else 0)
    for documents, payload in batches:
        n_bytes = copies * sum(document.held_bytes for document in documents)
        n_bytes += getattr(payload, "held_bytes", 0)
        allowance.take(n_bytes)
        yield documents, payload, n_bytes
        del documents, payload


def _tokenize(
    batches: Iterable[tuple[Sequence[Document], T, int]],
    embedder: TextEmbedder,
    on_truncate: OnTruncate,
    chunking: Chunking,
) -> Iterator[tuple[EmbeddedBatch[T], TokenizedTexts]]:
    """Yield batches whose vectors are not computed yet, and the tokens to compute them from."""
    for documents, payload, held_bytes in batches:
        if not documents and isinstance(embedder, LazyEmbedder) and not embedder.is_open:
            no_tokens = TokenizedTexts([], "", [], np.zeros(0, np.int32))
            yield _without_vectors([], [], no_tokens, 0, payload, held_bytes), no_tokens
            continue
        yield tokenize_batch(
            documents, payload, held_bytes, embedder, on_truncate=on_truncate, chunking=chunking
        )
        del documents, payload


def tokenize_batch(
    documents: Sequence[Document],
    payload: T,
    held_bytes: int,
    embedder: TextEmbedder,
    *,
    on_truncate: OnTruncate,
    chunking: Chunking,
) -> tuple[EmbeddedBatch[T], TokenizedTexts]:
    """Return a batch whose vectors are not computed yet, and the tokens for `encode_batch`."""
    texts = [document.full_text for document in documents]
    spans = [[(0, len(text))] for text in texts]
    tokens = _tokens_of(texts, embedder)
    if tokens.lost.any() and on_truncate == "error":
        raise _too_long(documents, tokens, embedder.max_len)
    most = min(chunking.tokens or embedder.max_len, embedder.max_len)
    too_long = tokens.lengths + tokens.lost > most
    if on_truncate == "chunk" and too_long.any():
        for row in np.flatnonzero(too_long).tolist():
            spans[row] = embedder.split(texts[row], task="document", chunking=chunking)
        passages = [
            text[start:end] for text, cuts in zip(texts, spans, strict=True) for start, end in cuts
        ]
        tokens = _tokens_of(passages, embedder)
    batch = _without_vectors(documents, spans, tokens, embedder.dim, payload, held_bytes)
    return batch, tokens


def _tokens_of(texts: Sequence[str], embedder: TextEmbedder) -> TokenizedTexts:
    """Tokenise texts, about a million characters at a time."""
    prompt = ""
    ids: list[Sequence[int]] = []
    lost = []
    for part in _slices(texts):
        tokens = embedder.tokenize(part, task="document")
        prompt = tokens.prompt
        # An id takes 8 bytes in an array and 40 in a list.
        ids += [array("Q", of_text) for of_text in tokens.ids]
        lost.append(tokens.lost)
    return TokenizedTexts(texts, prompt, ids, np.concatenate(lost))


def _slices(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut a list into parts of about `_CHARS_AT_ONCE` characters; an empty list is one part."""
    start = n_chars = 0
    for end, text in enumerate(texts):
        if n_chars and n_chars + len(text) > _CHARS_AT_ONCE:
            yield texts[start:end]
            start, n_chars = end, 0
        n_chars += len(text)
    yield texts[start:]


def _without_vectors(
    documents: Sequence[Document],
    spans: Sequence[Sequence[tuple[int, int]]],
    tokens: TokenizedTexts,
    dim: int,
    payload: T,
    held_bytes: int,
) -> EmbeddedBatch[T]:
    n_chunks = [len(cuts) for cuts in spans]
    flat = np.array([span for cuts in spans for span in cuts], dtype=np.int64).reshape(-1, 2)
    return EmbeddedBatch(
        documents=documents,
        doc_of=np.repeat(np.arange(len(documents)), n_chunks),
        chunk=np.array([chunk for n in n_chunks for chunk in range(n)], dtype=np.int32),
        char_start=flat[:, 0].copy(),
        char_end=flat[:, 1].copy(),
        n_tokens=tokens.lengths,
        lost_tokens=tokens.lost,
        vectors=np.empty((len(tokens), dim), dtype=np.float32),
        stored_row=np.full(len(tokens), -1),
        payload=payload,
        held_bytes=held_bytes,
    )


def _encode(
    tokenized: Iterable[tuple[EmbeddedBatch[T], TokenizedTexts]], embedder: TextEmbedder
) -> Iterator[int | EmbeddedBatch[T]]:
    """Compute vectors: yield what `encode_batch` yields for each batch, then the batch."""
    for batch, tokens in tokenized:
        yield from encode_batch(batch, tokens, embedder)
        yield batch
        del batch, tokens


def encode_batch(
    batch: EmbeddedBatch[T], tokens: TokenizedTexts, embedder: TextEmbedder
) -> Iterator[int]:
    """Compute the vectors of a batch and write them into ``batch.vectors``.

    The order and the groups in which passages are encoded depend only on the lengths of the
    passages and on ``embedder.batch_tokens``. After each call of the embedder, the number of
    documents whose first passage was embedded in that call is yielded.
    """
    limit = _STEPS_A_CALL * embedder.batch_tokens if len(tokens) else 1
    for rows in token_batches(tokens.lengths, limit):
        batch.vectors[rows] = embedder.encode_tokens(tokens.take(rows))
        yield int(np.count_nonzero(batch.chunk[rows] == 0))


def _too_long(documents: Sequence[Document], tokens: TokenizedTexts, max_len: int) -> CorpusError:
    row = int(np.flatnonzero(tokens.lost)[0])
    document, n_tokens = documents[row], int(tokens.lengths[row] + tokens.lost[row])
    where = f"{document.source}: " if document.source else ""
    return CorpusError(
        f"{where}document {document.doc_id!r} has {n_tokens:,} tokens and the model reads "
        f"{max_len}; shorten it, or pass --on-truncate chunk or warn. An index build that has "
        "begun must then start again: remove its folder, or name another one."
    )
