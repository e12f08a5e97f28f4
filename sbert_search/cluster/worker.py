"""The object in a worker process: it opens the model and embeds batches of texts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.processor import requested_threads
from sbert_search.cluster.connection import host_and_python
from sbert_search.embed.pipeline import EmbeddedBatch, OnTruncate, encode_batch, tokenize_batch
from sbert_search.embed.protocol import TextEmbedder, TokenizedTexts, Vectors
from sbert_search.errors import ClusterError, ModelError, SbertSearchError
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.records import Document
from sbert_search.text.tokens.chunking import Chunking


class OpenModel(NamedTuple):
    """How a worker opens the model.

    Attributes:
        make: Opens the model.
        identity: Identity of the model in the main process, which the model of a worker must match
            (see `_require_equal`).
        versions: Versions that the worker must have, see `host_and_python`.
        threads: CPU threads of the model, unless OMP_NUM_THREADS is set for the worker.
    """

    make: Callable[[], TextEmbedder]
    identity: ModelIdentity
    versions: str
    threads: int


class Opened(NamedTuple):
    """The machine and the device of a worker, and the number of its CPU threads."""

    host: str
    device: str
    threads: int


class Texts(NamedTuple):
    """The texts of a batch, and how they are split into passages.

    Attributes:
        ids: Ids of the documents, for messages.
        sources: Where the documents were read, for messages.
        texts: What is embedded: titles and texts.
        on_truncate: What to do with texts longer than the model reads.
        chunking: How texts are split.
    """

    ids: list[str]
    sources: list[str]
    texts: list[str]
    on_truncate: OnTruncate
    chunking: Chunking


class Passages(NamedTuple):
    """The passages of a batch and their vectors; the fields are those of `EmbeddedBatch`."""

    doc_of: NDArray[np.int64]
    chunk: NDArray[np.int32]
    char_start: NDArray[np.int64]
    char_end: NDArray[np.int64]
    n_tokens: NDArray[np.int32]
    lost_tokens: NDArray[np.int32]
    vectors: Vectors


class EmbeddingWorker:
    """Embeds batches; several threads may call `embed`, and another one `n_calls`.

    While one batch is encoded, the threads of other calls tokenise theirs. Only one thread encodes,
    since each thread that runs the model would have its own pool of CPU threads.
    """

    def __init__(self) -> None:
        self._encoder = ThreadPoolExecutor(1)
        self._n_calls = 0

    def open(self, model: OpenModel) -> Opened:
        """Open the model.

        Raises:
            ClusterError: This machine has other versions or another model, or cannot open it.
        """
        host, versions = host_and_python()
        if versions != model.versions:
            raise ClusterError(
                f"{host} has {versions}, and the machine of the command has {model.versions}. "
                "Install the same versions on all machines."
            )
        try:
            self._embedder = model.make()
            identity = self._embedder.identity
        except (SbertSearchError, OSError, RuntimeError, ImportError) as error:
            raise ClusterError(f"{host}: {error}") from error
        _require_equal(model.identity, identity, host)
        threads = requested_threads() or model.threads
        self._encoder.submit(_use_threads, threads).result()
        return Opened(host, str(getattr(self._embedder, "device", "cpu")), threads)

    def embed(self, texts: Texts) -> Passages:
        """Embed a batch; the vectors are those of `embed_batches` for these documents.

        Raises:
            CorpusError: As for `embed_batches`.
            ClusterError: The model fails on this machine, such as for lack of memory.
        """
        parts = zip(texts.ids, texts.texts, texts.sources, strict=True)
        documents = [Document(doc_id, text, source=source) for doc_id, text, source in parts]
        batch, tokens = tokenize_batch(
            documents,
            None,
            0,
            self._embedder,
            on_truncate=texts.on_truncate,
            chunking=texts.chunking,
        )
        try:
            self._encoder.submit(self._encode, batch, tokens).result()
        except (ModelError, OSError, RuntimeError) as error:
            raise ClusterError(f"{host_and_python()[0]}: {error}") from error
        return Passages(*(getattr(batch, name) for name in Passages._fields))

    def n_calls(self) -> int:
        """Return how many calls of the model have ended, so that a worker that hangs is noticed."""
        return self._n_calls

    def _encode(self, batch: EmbeddedBatch[None], tokens: TokenizedTexts) -> None:
        for _ in encode_batch(batch, tokens, self._embedder):
            self._n_calls += 1


def _use_threads(threads: int) -> None:
    """Let torch compute with this number of threads, if the model has imported torch."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)


def _require_equal(wanted: ModelIdentity, found: ModelIdentity, host: str) -> None:
    if differing := found.differences(wanted, computed=True):
        raise ClusterError(
            f"{host} opens {found.name} with other settings than the machine of the command "
            f"({'; '.join(differing)}). Copy the same model folder to all machines, under the same "
            "path."
        )
