"""Read token shards: tokenised documents in memory-mapped arrays, which may be larger than memory.

    MANIFEST.json           vocabulary size, identity (such as hashes of the source and the
                            tokenizer), number of input rows in the shards, all shards and files
    000003.tokens.npy       uint16, or uint32 if the vocabulary has over 65,536 tokens: the token
                            ids of all sentences, concatenated
    000003.sentences.npy    int32: number of tokens of each sentence
    000003.documents.npy    int32: number of sentences of each document

Shard files never change. The manifest is replaced after each new shard, so an interrupted run
resumes after the last complete shard.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import arrays as npy
from sbert_search.base import files
from sbert_search.base.arrays import Ints
from sbert_search.config import from_mapping
from sbert_search.errors import ConfigError, CorpusError

NAME = "MANIFEST.json"
FORMAT = "sbert-search token shards"
VERSION = 1

_BLOCK_TOKENS = 1 << 22  # tokens counted at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFile:
    """Name, size in bytes and xxh3_128 digest of a shard file when it was written."""

    name: str
    size_bytes: int
    xxh3_128: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """Counts and files of one shard, which holds consecutive documents."""

    n_documents: int
    n_sentences: int
    n_tokens: int
    tokens: ShardFile
    sentences: ShardFile
    documents: ShardFile

    @property
    def files(self) -> tuple[ShardFile, ShardFile, ShardFile]:
        """The three files of the shard."""
        return self.tokens, self.sentences, self.documents


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardManifest:
    """The content of ``MANIFEST.json``, which describes a folder of shards."""

    format: str = FORMAT
    version: int = VERSION
    vocab_size: int  # every token id is below it
    # Everything that determines the tokens. A writer resumes only if it has an equal identity.
    identity: Mapping[str, object] = field(default_factory=dict)
    rows: int = 0  # input rows whose documents are in the shards
    finished: bool = False  # whether the source was read to its end
    shards: tuple[Shard, ...] = ()  # in the order of the source

    def __post_init__(self) -> None:
        if (self.format, self.version) != (FORMAT, VERSION):
            raise ConfigError(
                f"the format is {self.format!r} version {self.version}, not {FORMAT!r} version "
                f"{VERSION}"
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the stored token ids."""
        return np.dtype("u2" if self.vocab_size <= 1 << 16 else "u4")


class TokenShards:
    """The shards of a finished folder as one memory-mapped sequence of token ids.

    ``sentence_starts`` has the index of the first token of each sentence, then the number of
    tokens; ``document_starts`` the index of the first sentence of each document, then the number of
    sentences; ``document_token_starts`` the index of the first token of each document, then that of
    tokens.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, read_manifest(folder)
        if not self.manifest.finished:
            raise CorpusError(
                f"{folder}: the token shards are not finished; run the command that writes them "
                "again."
            )
        shards = self.manifest.shards
        dtype = self.manifest.dtype
        self._tokens = [self._map(s.tokens, dtype, s.n_tokens) for s in shards]
        self._starts = _starts(np.array([s.n_tokens for s in shards]))
        sentences = [self._map(s.sentences, "i4", s.n_sentences) for s in shards]
        documents = [self._map(s.documents, "i4", s.n_documents) for s in shards]
        self.sentence_starts = _starts(np.concatenate(sentences))
        self.document_starts = _starts(np.concatenate(documents))
        ends = self.sentence_starts[-1], self.document_starts[-1]
        if ends != (self._starts[-1], len(self.sentence_starts) - 1):
            raise CorpusError(
                f"{folder}: the token shards are damaged, since their numbers of documents, "
                "sentences and tokens do not agree. Make the shards again in an empty folder."
            )
        self.document_token_starts: Ints = self.sentence_starts[self.document_starts]

    @property
    def n_tokens(self) -> int:
        """Number of tokens in all shards."""
        return int(self._starts[-1])

    def tokens(self, start: int, end: int) -> Ints:
        """Read the token ids of a range that is not empty, int64 (end - start,)."""
        first, last = np.searchsorted(self._starts, [start, end - 1], side="right") - 1
        parts = [
            self._tokens[n][max(start - self._starts[n], 0) : end - self._starts[n]]
            for n in range(first, last + 1)
        ]
        return np.concatenate(parts).astype(np.int64)

    def counts(self) -> Ints:
        """Count the occurrences of each token id, int64 (vocab_size,)."""
        counts = np.zeros(self.manifest.vocab_size, np.int64)
        for tokens in self._tokens:
            for start in range(0, len(tokens), _BLOCK_TOKENS):
                block = np.asarray(tokens[start : start + _BLOCK_TOKENS])
                counts += np.bincount(block, minlength=len(counts))
        return counts

    def verify(self) -> None:
        """Compare the digest of every file with the manifest."""
        for file in (file for shard in self.manifest.shards for file in shard.files):
            got = files.xxh3_128_of(self.folder / file.name)
            if got != file.xxh3_128:
                raise _damaged(self.folder / file.name, f"xxh3_128 {file.xxh3_128}", got)

    def _map(self, file: ShardFile, dtype: Any, n: int) -> NDArray[Any]:
        path = self.folder / file.name
        try:
            return npy.read(files.map_file(path), dtype, (n,))
        except npy.AnotherArray as error:
            raise _damaged(path, error.expected, error.got) from error
        except OSError as error:
            if not files.is_fault_of_file(error):
                raise
            raise _damaged(path, "a file that can be read", str(error)) from error


def read_manifest(folder: Path) -> ShardManifest:
    """Read the manifest of a folder of shards."""
    try:
        return from_mapping(ShardManifest, json.loads((folder / NAME).read_text("utf-8")))
    except FileNotFoundError as error:
        raise CorpusError(f"{folder} holds no token shards: it has no {NAME}.") from error
    except (OSError, ValueError, ConfigError) as error:
        stop = "" if str(error).endswith((".", "?")) else "."
        raise CorpusError(
            f"{folder / NAME} cannot be used as the manifest of token shards: {error}{stop} "
            "Restore it, or make the shards again in an empty folder."
        ) from error


def _starts(sizes: NDArray[np.integer]) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _damaged(path: Path, expected: str, got: str) -> CorpusError:
    return CorpusError(
        f"{path} is damaged: expected {expected}, got {got}. Make the shards again in an empty "
        "folder."
    )
