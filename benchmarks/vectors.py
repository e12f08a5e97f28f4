"""Random vectors in clusters, and indexes of them without real texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.pipeline import EmbeddedBatch
from sbert_search.index.storage.manifest import BuildCursor, Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.records import Document

DIM = 384
ROWS_PER_CLUSTER = 1000
INNER, INNER_SCALE = 32, 0.1  # number and scale of the directions of the largest spread
NOISE = 0.1  # spread in every dimension
BLOCK = 50_000  # vectors drawn at once

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Clusters:
    """Points around random centres, spread most along a few directions, as embeddings are.

    Attributes:
        centres: Centre of each cluster, float32 (n_clusters, dim).
        directions: Directions of the largest spread, equal for all clusters, float32 (INNER, dim).
        seed: Seed of all draws.
    """

    centres: Floats
    directions: Floats
    seed: int

    @classmethod
    def of(cls, seed: int, n_rows: int, dim: int = DIM) -> Clusters:
        """Make clusters for a number of rows."""
        rng = np.random.default_rng(seed)
        n_clusters = max(n_rows // ROWS_PER_CLUSTER, 20)
        centres = rng.normal(size=(n_clusters, dim)).astype(np.float32)
        directions = INNER_SCALE * rng.normal(size=(INNER, dim)).astype(np.float32)
        return cls(centres, directions, seed)

    def draw(self, count: int, stream: int) -> Floats:
        """Draw unit vectors, (count, dim); different values of ``stream`` give other vectors."""
        rng = np.random.default_rng([self.seed, stream])
        cluster_of = rng.integers(0, len(self.centres), count)
        inner = rng.normal(size=(count, len(self.directions))).astype(np.float32)
        points: Floats = self.centres[cluster_of] + inner @ self.directions
        points += NOISE * rng.standard_normal(points.shape, dtype=np.float32)
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        return points

    def blocks(self, count: int) -> Iterator[Floats]:
        """Draw the vectors of an index, `BLOCK` at a time."""
        for stream, start in enumerate(range(0, count, BLOCK), 1):
            yield self.draw(min(BLOCK, count - start), stream)

    def queries(self, count: int) -> Floats:
        """Draw vectors that are not in the index."""
        return self.draw(count, stream=0)


def one_passage_each(documents: list[Document], vectors: Floats) -> EmbeddedBatch[None]:
    """Make a batch of documents of one passage each."""
    zeros, small = np.zeros(len(documents), np.int64), np.zeros(len(documents), np.int32)
    return EmbeddedBatch(
        documents=documents,
        doc_of=np.arange(len(documents)),
        chunk=small,
        char_start=zeros,
        char_end=zeros,
        n_tokens=small,
        lost_tokens=small,
        vectors=vectors,
        stored_row=zeros - 1,
        payload=None,
        held_bytes=0,
    )


def write_index(path: Path, clusters: Clusters, count: int) -> IndexStore:
    """Write an index of ``count`` vectors with an integer column ``part`` to filter by.

    The values of the column are 0 to 999, over and over.
    """
    dim = clusters.centres.shape[1]
    start = BuildCursor(source_sha256="drawn", rows=0)
    store = IndexStore.create(
        path, Manifest.new(VectorSettings(dim=dim), {"part": "int64"}, build=start)
    )
    with store.writer() as writer:
        row = 0
        for vectors in clusters.blocks(count):
            documents = [
                Document(f"d{i}", "-", metadata={"part": i % 1000})
                for i in range(row, row + len(vectors))
            ]
            row += len(vectors)
            writer.commit(one_passage_each(documents, vectors))
        writer.finish_build()
    return store
