"""What an index is, in one record for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sbert_search.index.lexical_settings import LexicalSettings
from sbert_search.index.maintenance.merge_policy import advice
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import ColumnType
from sbert_search.index.trials import Tuning
from sbert_search.records import RowCounts


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexInfo:
    """One state of an index.

    Attributes:
        path: The folder.
        finished: False while its build is not complete; such an index is not searched.
        documents: That a search can find.
        passages: Rows that a search can find.
        dead_rows: Deleted or replaced rows that still take space.
        segments: Parts that the rows lie in.
        size_bytes: Of all files.
        commits: That led to this state.
        dim: Numbers in a vector.
        metric: How vectors compare.
        dtype: How vectors are stored.
        factory: How vectors are searched, as a FAISS factory string.
        lexical: How words are searched; None: not at all.
        model: Identity of the model that made the vectors.
        columns: Metadata columns and their types.
        built: Where the rows of the build ended.
        source_sha256: Of what the build read.
        tuning: Why vectors are searched so; None when it was not measured.
        advice: Why compaction is advised, or "".
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
    columns: Mapping[str, ColumnType]
    built: RowCounts
    source_sha256: str
    tuning: Tuning | None
    advice: str


def describe(snapshot: Snapshot) -> IndexInfo:
    """Gather what is known of a state."""
    manifest, settings = snapshot.manifest, snapshot.manifest.settings
    build = manifest.build
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
        columns=manifest.columns,
        built=build.counts if build else RowCounts(),
        source_sha256=build.source_sha256 if build else "",
        tuning=manifest.tuning,
        advice=advice(manifest),
    )
