"""A summary of an index: its size, settings, model, columns and condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from sbert_search.index.lexical_settings import LexicalSettings
from sbert_search.index.maintenance.merge_policy import advice
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import ColumnType
from sbert_search.index.trials import Tuning
from sbert_search.records import RowCounts


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexInfo:
    """A summary of one state of an index.

    Attributes:
        path: The folder.
        finished: Whether the build is complete; an unfinished index is not searched.
        documents: Number of live documents, which searches can find.
        passages: Number of live rows, one for each passage of these documents.
        dead_rows: Number of deleted or replaced rows that still take space.
        segments: Number of segments.
        size_bytes: Bytes of all files of this state.
        commits: Number of commits so far.
        dim: Dimensions of a vector.
        metric: How vectors are compared.
        dtype: Type in which vectors are stored.
        factory: FAISS factory string of the vector search.
        lexical: Settings of lexical search; None: the index has no lexical data.
        model: Identity of the model that made the vectors.
        verdict: The measurement by which the model's precision was chosen for the build; empty if
            none was made.
        on_truncate: What is done with texts longer than the model reads; "" if not known.
        chunk_tokens: Maximum number of tokens of a passage; None: what the model reads.
        chunk_overlap: Maximum number of tokens that a passage shares with the passage before.
        columns: Metadata columns and their types.
        built: Number of input rows of the build, by outcome (indexed, rejected, ...).
        source_sha256: Hash of the sources of the build; "": the index was made empty.
        root: The folder with which `Index.sync` compares the index; the id of a file is its path
            relative to this folder. "": there is no such folder.
        tuning: Result of the last tuning; None if the index was not tuned.
        advice: The reason to compact the index, or "".
        shards: Number of shards; None: the index is not sharded.
    """

    path: str
    finished: bool
    documents: int
    passages: int
    dead_rows: int
    segments: int
    size_bytes: int
    commits: int
    dim: int
    metric: str
    dtype: str
    factory: str
    lexical: LexicalSettings | None
    model: Mapping[str, object]
    verdict: Mapping[str, object]
    on_truncate: str
    chunk_tokens: int | None
    chunk_overlap: int
    columns: Mapping[str, ColumnType]
    built: RowCounts
    source_sha256: str
    root: str
    tuning: Tuning | None
    advice: str
    shards: int | None = None


def describe(snapshot: Snapshot) -> IndexInfo:
    """Summarise a state of an index."""
    manifest, settings = snapshot.manifest, snapshot.manifest.settings
    build = manifest.build
    stored = build.settings if build else {}
    return IndexInfo(
        path=str(snapshot.path),
        finished=build is None or build.finished,
        documents=manifest.n_docs,
        passages=manifest.n_rows,
        dead_rows=manifest.n_dead_rows,
        segments=len(manifest.segments),
        size_bytes=manifest.size_bytes,
        commits=manifest.generation,
        dim=settings.dim,
        metric=settings.metric,
        dtype=settings.dtype,
        factory=settings.spec.factory,
        lexical=settings.lexical,
        model=settings.identity,
        verdict=settings.verdict,
        on_truncate=str(stored.get("on_truncate", "")),
        chunk_tokens=cast("int | None", stored.get("chunk_tokens")),
        chunk_overlap=cast("int", stored.get("chunk_overlap", 0)),
        columns=manifest.columns,
        built=build.counts if build else RowCounts(),
        source_sha256=build.source_sha256 if build else "",
        root=(build.root or "") if build else "",
        tuning=manifest.tuning,
        advice=advice(snapshot),
    )
