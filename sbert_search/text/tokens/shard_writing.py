"""Tokenise documents into shards for pre-training; an interrupted run can be resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from sbert_search.base import arrays as npy
from sbert_search.base import files, locks
from sbert_search.base.progress import progress
from sbert_search.config import to_mapping
from sbert_search.errors import CorpusError
from sbert_search.records import Document
from sbert_search.text.documents import CorpusReader
from sbert_search.text.tokens.chunking import split_sentences
from sbert_search.text.tokens.shards import (
    NAME,
    Shard,
    ShardFile,
    ShardManifest,
    TokenShards,
    read_manifest,
)

SHARD_TOKENS = 1 << 24  # default number of tokens that ends a shard


class ShardWriter:
    """Writes documents into shards, or continues after the last complete shard of the folder.

    The context holds the folder's lock. To resume, the caller skips the first ``rows`` input rows,
    since their documents are in complete shards. Without `finish`, the documents after the last
    complete shard are not stored. A resumed run writes the same shards as an uninterrupted one if
    it adds the same batches. A shard ends with the batch that reaches ``shard_tokens``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        vocab_size: int,
        identity: Mapping[str, object],
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        self._folder, self._shard_tokens = folder, shard_tokens
        self._manifest = ShardManifest(vocab_size=vocab_size, identity=dict(identity))
        self._lock = contextlib.ExitStack()
        self._clear()

    def __enter__(self) -> ShardWriter:
        if not self._folder.is_dir():
            files.disk.make_folder(self._folder)
            files.disk.fsync_folder(self._folder.parent)
        with contextlib.ExitStack() as lock:  # an error below releases the lock
            try:
                lock.enter_context(locks.exclusive_lock(self._folder / "LOCK"))
            except locks.LockHeld as error:
                raise CorpusError(f"Another process writes token shards: {error}") from error
            if (self._folder / NAME).exists():
                self._resume(read_manifest(self._folder))
            self._remove_strays()
            self._lock = lock.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    @property
    def rows(self) -> int:
        """Number of input rows whose documents are in complete shards."""
        return self._manifest.rows

    @property
    def finished(self) -> bool:
        """Whether the source was read to its end and all shards are written."""
        return self._manifest.finished

    def add(self, documents: Iterable[Sequence[Sequence[int]]], rows_end: int) -> None:
        """Add the documents of one batch, lists of sentences; empty ones are left out."""
        for document in documents:
            if filled := [sentence for sentence in document if sentence]:
                self._add_document(filled)
        if self._n_tokens >= self._shard_tokens:
            self._commit(rows_end, finished=False)

    def finish(self, rows_end: int) -> None:
        """Write the last shard and mark the folder as complete."""
        if not self._documents and not self._manifest.shards:
            raise CorpusError(
                f"The source of {self._folder} holds no text with a token; name another source."
            )
        self._commit(rows_end, finished=True)

    def _add_document(self, sentences: list[Sequence[int]]) -> None:
        tokens = np.array(list(chain.from_iterable(sentences)), np.int64)
        lowest, highest = int(tokens.min()), int(tokens.max())
        if lowest < 0 or highest >= self._manifest.vocab_size:
            raise CorpusError(
                f"Token {lowest if lowest < 0 else highest} is outside a vocabulary of "
                f"{self._manifest.vocab_size:,}; token ids must be from 0 to "
                f"{self._manifest.vocab_size - 1:,}."
            )
        self._tokens.append(tokens.astype(self._manifest.dtype))
        self._n_tokens += len(tokens)
        self._sentences.extend(map(len, sentences))
        self._documents.append(len(sentences))

    def _commit(self, rows_end: int, *, finished: bool) -> None:
        shards = self._manifest.shards
        if self._documents:
            shards += (self._write_shard(len(shards)),)
        manifest = dataclasses.replace(
            self._manifest, rows=rows_end, finished=finished, shards=shards
        )
        text = json.dumps(to_mapping(manifest), indent=1, sort_keys=True) + "\n"
        files.disk.fsync_folder(self._folder)
        files.replace_file(self._folder / NAME, text.encode("utf-8"))
        self._manifest = manifest
        self._clear()

    def _clear(self) -> None:
        self._tokens: list[NDArray[Any]] = []
        self._n_tokens = 0
        self._sentences, self._documents = array("i"), array("i")

    def _write_shard(self, number: int) -> Shard:
        return Shard(
            n_documents=len(self._documents),
            n_sentences=len(self._sentences),
            n_tokens=self._n_tokens,
            tokens=self._write(number, "tokens", np.concatenate(self._tokens)),
            sentences=self._write(number, "sentences", np.array(self._sentences, np.int32)),
            documents=self._write(number, "documents", np.array(self._documents, np.int32)),
        )

    def _write(self, number: int, kind: str, values: NDArray[Any]) -> ShardFile:
        file = npy.write(self._folder / f"{number:06d}.{kind}.npy", values)
        return ShardFile(name=file.place.name, size_bytes=file.n_bytes, xxh3_128=file.digest)

    def _resume(self, existing: ShardManifest) -> None:
        expected = self._manifest
        if (existing.vocab_size, existing.identity) != (expected.vocab_size, expected.identity):
            raise CorpusError(
                f"{self._folder} holds token shards of another origin: a vocabulary of "
                f"{existing.vocab_size:,} tokens and {existing.identity}, not "
                f"{expected.vocab_size:,} tokens and {expected.identity}. Name another folder."
            )
        self._manifest = existing

    def _remove_strays(self) -> None:
        """Remove the files of an unfinished shard, which an interrupted run left."""
        kept = {file.name for shard in self._manifest.shards for file in shard.files}
        for path in self._folder.glob("[0-9]*.npy"):
            if path.name not in kept:
                files.disk.unlink(path)


def write_token_shards(
    reader: CorpusReader,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    wrapped: bool = False,
    shard_tokens: int = SHARD_TOKENS,
) -> TokenShards:
    """Split documents into sentences, tokenise the sentences, and write the tokens to shards.

    An interrupted run resumes after the last complete shard; a complete folder is only opened. A
    title is used only for a document without a text. A special token that is spelled out in a text,
    such as "[SEP]", is tokenised as text. Sentences are neither padded nor truncated. ``wrapped``
    is that of `split_sentences`.
    """
    survey = reader.survey()
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_padding()
    plain.no_truncation()
    tokenizer_json = plain.to_str()
    identity: dict[str, object] = {
        "source_sha256": survey.sha256,
        "tokenizer_sha256": hashlib.sha256(tokenizer_json.encode("utf-8")).hexdigest(),
        "wrapped": wrapped,
    }
    if reader.fields.texts:  # if empty, the reader detects the text field
        identity["text_fields"] = list(reader.fields.texts)
    vocab_size = tokenizer.get_vocab_size()
    plain.encode_special_tokens = True
    with (
        ShardWriter(
            folder, vocab_size=vocab_size, identity=identity, shard_tokens=shard_tokens
        ) as writer,
        progress("Tokenising", survey.rows) as advance,
    ):
        rows = writer.rows
        advance(rows)
        for batch in [] if writer.finished else reader.batches(skip_rows=rows):
            writer.add(_tokenised(batch.documents, plain, wrapped), batch.rows_end)
            advance(batch.rows_end - rows)
            rows = batch.rows_end
        if not writer.finished:
            writer.finish(rows)
    return TokenShards(folder)


def _tokenised(
    documents: Sequence[Document], tokenizer: Tokenizer, wrapped: bool
) -> list[list[list[int]]]:
    sentences = [split_sentences(d.text or d.title, wrapped=wrapped) for d in documents]
    flat = [sentence for document in sentences for sentence in document]
    ids = (encoding.ids for encoding in tokenizer.encode_batch_fast(flat, add_special_tokens=False))
    return [list(islice(ids, len(document))) for document in sentences]
