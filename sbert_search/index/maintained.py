"""The part of `Index` that describes, checks, repairs, compacts and copies an index."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from sbert_search.index.readable import ReadableIndex

# A search must not wait for the import of code that maintains indexes, so the methods import it.
if TYPE_CHECKING:
    from sbert_search.index.lexical_settings import LexicalSettings
    from sbert_search.index.maintenance.check import CheckReport
    from sbert_search.index.maintenance.drift import DriftReport
    from sbert_search.index.maintenance.info import IndexInfo


class MaintainedIndex(ReadableIndex):
    """Keeps an index sound and fast, without new documents."""

    def info(self) -> IndexInfo:
        """Describe the contents of the index and how it was made."""
        from sbert_search.index.maintenance.info import describe

        return describe(self.state)

    def check(self) -> CheckReport:
        """Read every file and verify its checksum and structure."""
        from sbert_search.index.maintenance.check import check

        return check(self.path)

    def drift(self, target: float | None = None) -> DriftReport:
        """Measure how far updates have degraded the index since it was built or tuned.

        Args:
            target: Recall@10 below which the report recommends actions; None: the recall for which
                the index was tuned, or 0.95.
        """
        from sbert_search.index.maintenance.drift import measure_drift

        return measure_drift(self.state, target)

    def repair(self) -> list[str]:
        """Delete damaged derived files and unreferenced files, and make derived files again.

        Derived files are FAISS indexes and postings. Vectors and documents suffice to make them.

        Returns:
            Names of the deleted files.
        """
        with self.store.writer() as writer:
            return writer.repair()

    def compact(self, *, memory_bytes: int | None = None, retrain: bool = False) -> None:
        """Rewrite segments without their deleted and replaced rows, and add missing FAISS files.

        Args:
            memory_bytes: Memory limit of the process; mapped files do not count. None: no limit.
            retrain: Train FAISS again on the current vectors, and rebuild all FAISS files.

        Raises:
            ConfigError: A FAISS index or the rows of a merge would exceed ``memory_bytes``.
        """
        from sbert_search.index.maintenance import compaction
        from sbert_search.runtime import memory

        memory.give_back_freed(memory_bytes)
        memory.require(memory_bytes, compaction.WORK_BYTES, "Compaction")
        with self.store.writer() as writer:
            writer.compact(memory_bytes=memory_bytes, retrain=retrain)

    def set_lexical(self, settings: LexicalSettings | None) -> None:
        """Add postings for lexical search, change their settings, or delete them (None)."""
        with self.store.writer() as writer:
            self.require_finished()
            writer.set_lexical(settings)

    def backup(self, target: str | Path) -> None:
        """Copy the newest state to a new folder; on the same disk, files become hard links.

        Raises:
            ConfigError: The target lies in this index.
            IndexStoreError: The target exists already, or cannot be written.
        """
        from sbert_search.runtime.disk.same_file import require_apart

        require_apart(Path(target), [self.path], "The backup")
        self.store.backup_to(target)

    def snapshot(self, target: str | Path) -> None:
        """Call `backup`; this is its old name.

        .. deprecated:: 0.2
            Use `backup`; version 0.3 removes this name.
        """
        warnings.warn("Index.snapshot is now Index.backup.", DeprecationWarning, stacklevel=2)
        self.backup(target)
