"""The part of `Index` that describes, checks, repairs, compacts and copies an index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sbert_search.index.readable import ReadableIndex

# A search must not wait for the import of code that maintains indexes, so each method below imports
# the code that it calls.
if TYPE_CHECKING:
    from sbert_search.index.lexical_settings import LexicalSettings
    from sbert_search.index.maintenance.check import CheckReport
    from sbert_search.index.maintenance.drift import DriftReport
    from sbert_search.index.maintenance.info import IndexInfo


class MaintainedIndex(ReadableIndex):
    """Methods that keep an index sound and fast; none of them adds a document."""

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
        """Delete damaged derived files and unreferenced files, and make missing derived files.

        Derived files are FAISS indexes, postings and word lists. They are made from the stored
        vectors and documents. An unreferenced file belongs to no committed state.

        Returns:
            Names of the deleted files.
        """
        with self.store.writer() as writer:
            return writer.repair()

    def compact(self, *, memory_bytes: int | None = None, retrain: bool = False) -> None:
        """Merge segments, drop deleted and replaced rows, and make missing FAISS files.

        A segment is an immutable set of files for consecutive rows.

        Args:
            memory_bytes: Memory limit of the process in bytes, without memory-mapped files. None:
                no limit.
            retrain: Train FAISS again on the current vectors, and rebuild all FAISS files.

        Raises:
            ConfigError: A FAISS index, or the work memory of a merge, would exceed
                ``memory_bytes``.
        """
        from sbert_search.base import memory
        from sbert_search.index.maintenance import compaction

        memory.give_back_freed(memory_bytes)
        memory.require(memory_bytes, compaction.WORK_BYTES, "Compaction")
        with self.store.writer() as writer:
            writer.compact(memory_bytes=memory_bytes, retrain=retrain)

    def set_lexical(self, settings: LexicalSettings | None) -> None:
        """Change the settings of lexical search, and make or delete its postings accordingly.

        Args:
            settings: The new settings; None: the index is left without lexical search.
        """
        with self.store.writer() as writer:
            self.require_finished()
            writer.set_lexical(settings)

    def backup(self, target: str | Path) -> None:
        """Copy the newest state to a new folder; on the same disk, as hard links if possible.

        Raises:
            ConfigError: The target lies in the folder of this index.
            IndexStoreError: The target exists already, or cannot be written.
        """
        from sbert_search.base.folders import require_apart

        require_apart(Path(target), [self.path], "The backup")
        self.store.backup_to(target)
