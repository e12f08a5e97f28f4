"""A cache of vectors on disk; the key of a vector is a hash of the token ids of its text.

The cache of a model is a folder of files, called blocks, in the user's cache folder. A block holds
a 16-byte key for each vector and then the vectors. The name of a block has the number of vectors
and the checksum of the file. Blocks are written whole and never changed. A damaged block is
removed, and its texts are embedded again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from sbert_search.base import files
from sbert_search.base.cache import cache_folder, digest_of, write_cached
from sbert_search.base.progress import warn
from sbert_search.embed.delegation import DelegatingEmbedder
from sbert_search.embed.protocol import TextEmbedder, TokenizedTexts, Vectors

# Largest size of the caches of all models together; the least recently used blocks are removed.
MAX_BYTES = 4 << 30
_KEY_BYTES = 16
_BLOCK_ROWS = 8192
_NAME = re.compile(r"(\d+)-([0-9a-f]{32})\.vectors")


class VectorCache:
    """Vectors of one model by key; a crash loses only vectors that are not yet in a block."""

    def __init__(self, folder: Path, dim: int) -> None:
        self.folder, self.dim = folder, dim
        self._locations: dict[bytes, tuple[int, int]] = {}  # key -> block, row
        self._blocks: list[Vectors] = []
        self._unwritten: dict[bytes, NDArray[np.float32]] = {}
        for path in sorted(folder.glob("*.vectors")):
            self._open(path)

    def __len__(self) -> int:
        return len(self._locations) + len(self._unwritten)

    def get(self, key: bytes) -> NDArray[np.float32] | None:
        """Return the vector of a key, float32 (dim,), or None."""
        if key in self._unwritten:
            return self._unwritten[key]
        if key not in self._locations:
            return None
        block, row = self._locations[key]
        vector: NDArray[np.float32] = self._blocks[block][row]
        return vector

    def put(self, key: bytes, vector: NDArray[np.float32]) -> None:
        """Store a vector; it is written when a block is full or when `flush` is called."""
        self._unwritten[key] = vector
        if len(self._unwritten) >= _BLOCK_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the unwritten vectors as a block; a disk error is printed and not raised."""
        if not self._unwritten:
            return
        vectors = np.stack(list(self._unwritten.values())).astype("<f4")
        data = b"".join(self._unwritten) + vectors.tobytes()
        path = self.folder / f"{len(vectors)}-{xxhash.xxh3_128_hexdigest(data)}.vectors"
        self._index(list(self._unwritten), vectors)
        self._unwritten = {}
        try:
            write_cached(path, data)
        except OSError as error:
            warn(f"{path} could not be written: {error}.")

    def _open(self, path: Path) -> None:
        """Open a block as a mapped file, or remove it if its bytes do not match its checksum."""
        match = _NAME.fullmatch(path.name)
        with contextlib.suppress(OSError):
            rows, digest = (int(match[1]), match[2]) if match else (0, "")
            view = files.map_file(path)
            expected = rows * (_KEY_BYTES + 4 * self.dim)
            if not rows or len(view) != expected or files.xxh3_128_of_view(view) != digest:
                warn(f"{path} is damaged; its texts are embedded again.")
                files.disk.unlink(path)
                return
            with contextlib.suppress(OSError):  # the block may belong to another user
                os.utime(path)  # `evict` removes the blocks that were opened least recently
            keys = bytes(view[: rows * _KEY_BYTES])
            vectors = np.frombuffer(view, "<f4", offset=rows * _KEY_BYTES).reshape(rows, self.dim)
            starts = range(0, len(keys), _KEY_BYTES)
            self._index([keys[start : start + _KEY_BYTES] for start in starts], vectors)

    def _index(self, keys: Sequence[bytes], vectors: Vectors) -> None:
        self._blocks.append(vectors)
        self._locations |= {key: (len(self._blocks) - 1, row) for row, key in enumerate(keys)}


class CachedEmbedder(DelegatingEmbedder):
    """An embedder that reads vectors from a cache and computes only the missing ones."""

    def __init__(self, embedder: TextEmbedder, *, max_bytes: int = MAX_BYTES) -> None:
        self._embedder = embedder
        # A model has the same cache under each of its names.
        identity = {**embedder.identity.to_mapping(), "name": ""}
        self.cache = VectorCache(_root() / digest_of(identity), embedder.dim)
        self.computed = self.cached = 0  # numbers of texts so far
        evict(_root(), max_bytes)  # of the caches of all models together

    @property
    def inner(self) -> TextEmbedder:
        """The embedder that computes the missing vectors."""
        return self._embedder

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Look vectors up and compute the missing ones, float32 (n, dim), rows in input order."""
        keys = [xxhash.xxh3_128_digest(np.array(ids, "<u8").tobytes()) for ids in tokens.ids]
        missing = [row for row, key in enumerate(keys) if self.cache.get(key) is None]
        if missing:
            for row, vector in zip(
                missing, self._embedder.encode_tokens(tokens.take(missing)), strict=True
            ):
                self.cache.put(keys[row], vector)
        self.computed += len(missing)
        self.cached += len(keys) - len(missing)
        return np.stack([vector for key in keys if (vector := self.cache.get(key)) is not None])

    def close(self) -> None:
        """Write the new vectors; call it after an error too."""
        self.cache.flush()


def evict(root: Path, max_bytes: int) -> None:
    """Remove the least recently used blocks until all blocks fit into ``max_bytes``."""
    blocks = []
    for path in root.glob("*/*.vectors"):
        with contextlib.suppress(OSError):
            status = path.stat()
            blocks.append((status.st_mtime_ns, status.st_size, path))
    total = sum(n_bytes for _, n_bytes, _ in blocks)
    for _, n_bytes, path in sorted(blocks):
        if total <= max_bytes:
            return
        with contextlib.suppress(OSError):
            files.disk.unlink(path)
            total -= n_bytes


def _root() -> Path:
    return cache_folder("vectors")
