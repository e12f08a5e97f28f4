"""`ShardedIndex`, an `Index` made of several ordinary indexes (shards) in one folder.

`open_index` opens an index with or without shards.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from sbert_search.embed.arguments import ModelLike
from sbert_search.errors import ConfigError, NotAnIndex
from sbert_search.index.index import GivenToBuild, Index
from sbert_search.index.shards.manifest import require_number
from sbert_search.index.shards.snapshot import ShardedSnapshot, is_sharded
from sbert_search.index.shards.store import ShardedStore, ShardedStores

# A search must not wait for the import of code that writes indexes, so the methods that need this
# code import it.
if TYPE_CHECKING:
    from sbert_search.embed.pipeline import EmbedBatches
    from sbert_search.index.building.build import BuildKeywords, BuildSettings
    from sbert_search.index.tuning.measuring import Floats
    from sbert_search.index.tuning.settings import TuneSettings
    from sbert_search.index.tuning.tune import TuneReport
    from sbert_search.index.upkeep.check import CheckReport
    from sbert_search.index.upkeep.info import IndexInfo
    from sbert_search.text.ids import IdsLike
    from sbert_search.text.spool import Sources
    from sbert_search.text.vectors import VectorsLike

DEFAULT_SHARDS = 4


class ShardedIndex(Index):
    """Several indexes (shards) in one folder that are searched, changed and stored as one index.

    The id of a document decides which shard holds it. All methods of `Index` work on all shards,
    except `from_vectors`, which raises an error. A commit that changes several shards is durable
    and visible in all of them or in none.
    """

    store: ShardedStore

    def __init__(self, store: ShardedStore) -> None:
        super().__init__(store)

    @property
    def state(self) -> ShardedSnapshot:
        """The state that this object reads."""
        return self.store.snapshot

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return self.state.n_shards

    @classmethod
    def open(cls, path: str | Path, *, wait_s: float = 0.0) -> Self:
        """Open a sharded index and verify its files.

        Args:
            path: The folder.
            wait_s: Seconds that a writer waits for another process's lock.

        Raises:
            NotAnIndex: The folder holds no sharded index.
            CorruptIndex: A file or a shard differs from what was committed.
            IndexStoreError: A shard has another model or other settings than the first one, or
                this process may not read a file.
        """
        return cls(ShardedStore.open(path, wait_s=wait_s))

    @classmethod
    def build(
        cls,
        sources: Sources,
        *,
        out: str | Path | None = None,
        model: ModelLike | None = None,
        vectors: VectorsLike | None = None,
        settings: BuildSettings | None = None,
        memory_bytes: int | None = None,
        runner: EmbedBatches | None = None,
        n_shards: int = DEFAULT_SHARDS,
        **keywords: Unpack[BuildKeywords],
    ) -> Self:
        """Build a sharded index, or resume a build that was stopped.

        Args:
            sources: As for `Index.build`.
            out: As for `Index.build`.
            model: As for `Index.build`.
            vectors: As for `Index.build`.
            settings: As for `Index.build`.
            memory_bytes: As for `Index.build`.
            runner: As for `Index.build`.
            n_shards: Number of shards, from 1 to 128. It cannot be changed later.
            keywords: As for `Index.build`.

        Raises:
            TypeError, CorpusError, ModelMismatch: As for `Index.build`.
            ConfigError: As for `Index.build`, or ``n_shards`` is out of range.
            IndexStoreError: As for `Index.build`, or the folder holds an index with another number
                of shards.
        """
        require_number(n_shards)
        given: GivenToBuild = {
            "model": model,
            "vectors": vectors,
            "memory_bytes": memory_bytes,
            "runner": runner,
        }
        return cls._build(ShardedStores(n_shards), sources, out, settings, keywords, given)

    @classmethod
    def create(
        cls,
        out: str | Path,
        *,
        model: ModelLike | None = None,
        dim: int | None = None,
        settings: BuildSettings | None = None,
        n_shards: int = DEFAULT_SHARDS,
        **keywords: Unpack[BuildKeywords],
    ) -> Self:
        """Make a sharded index without documents; see `Index.create` and `build`."""
        require_number(n_shards)
        cls._create(ShardedStores(n_shards), out, model, dim, settings, keywords)
        return cls.open(out)

    @classmethod
    def from_vectors(
        cls,
        vectors: VectorsLike,
        *,
        ids: IdsLike | None = None,
        out: str | Path | None = None,
        model: ModelLike | None = None,
        **keywords: Unpack[BuildKeywords],
    ) -> Self:
        """Refuse to build from vectors and ids alone; use `build` with ``vectors`` instead.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "from_vectors makes no sharded index. Use ShardedIndex.build(ROWS, vectors=VECTORS), "
            "where ROWS may have ids and no texts."
        )

    def info(self) -> IndexInfo:
        """Describe the contents of all shards together, and how they were made."""
        return replace(super().info(), shards=self.n_shards)

    def check(self) -> CheckReport:
        """Read every file of every shard and verify its checksum and structure."""
        from sbert_search.index.shards.upkeep import check_shards

        return check_shards(self.path)

    def _tune(
        self, settings: TuneSettings, queries: Floats | None, origin: str, dry_run: bool
    ) -> TuneReport:
        from sbert_search.index.shards.upkeep import tune_shards

        return tune_shards(self.store, settings, queries, origin=origin, dry_run=dry_run)


def open_index(path: str | Path, *, wait_s: float = 0.0) -> Index:
    """Open the index of a folder: a `ShardedIndex` if the folder holds shards, else an `Index`.

    Args:
        path: The folder.
        wait_s: Seconds that a writer waits for another process's lock.

    Raises:
        NotAnIndex: The folder holds no index.
        CorruptIndex: A file differs from what was committed.
        IndexStoreError: As for `ShardedIndex.open`.
    """
    try:
        return Index.open(path, wait_s=wait_s)
    except NotAnIndex:
        if not is_sharded(path):
            raise
    return ShardedIndex.open(path, wait_s=wait_s)
