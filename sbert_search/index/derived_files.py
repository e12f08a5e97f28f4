"""The derived files of one state: what is damaged or gone costs speed, not answers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

from sbert_search.errors import CorruptIndex
from sbert_search.index.dense import faiss_file
from sbert_search.index.lexical.posting_files import LexicalFiles, count_segment
from sbert_search.index.lexical.postings import Postings, merged
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import Manifest, SegmentRecord
from sbert_search.index.storage.segments import Segment
from sbert_search.runtime.disk.folders import Folder

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
Found = LexicalFiles | Exception


class DerivedFiles:
    """FAISS indexes and postings, those of each segment, mapped.

    Args:
        folder: The index.
        manifest: The state.
        reuse: The files of another state, of which those that are in this one stay open.

    Attributes:
        anns: For each segment its FAISS file; None where it has none that can be used.

    Raises:
        FileNotFoundError: A file is gone, as after a compaction by another process.
    """

    def __init__(
        self, folder: Folder, manifest: Manifest, reuse: DerivedFiles | None = None
    ) -> None:
        self._folder, self._manifest = folder, manifest
        self.anns = [self._ann(segment, reuse) for segment in manifest.segments]
        self._lexical = [self._lexical_files(segment, reuse) for segment in manifest.segments]

    def postings(self, index: int, segment: Segment) -> Postings:
        """Read the postings of a segment; lost ones are counted again, with a warning.

        Raises:
            CorruptIndex: Its documents, too, cannot be read.
        """
        found = self._lexical[index]
        try:
            if isinstance(found, LexicalFiles):
                return found.postings
        except CorruptIndex as error:
            found = error
        settings = self._manifest.settings.lexical
        assert settings is not None
        _warn(f"The words of {segment.record.docs.name} are counted again", found)
        return merged([(postings, None) for postings in count_segment(segment, settings)])

    def _ann(
        self, segment: SegmentRecord, reuse: DerivedFiles | None
    ) -> faiss_file.FaissFile | None:
        if segment.ann is None:
            return None
        known = {found.record: found for found in reuse.anns if found} if reuse else {}
        shape = (segment.n_rows, self._manifest.settings.dim)
        found = known.get(segment.ann) or self._opened(faiss_file.FaissFile, segment.ann, shape)
        if isinstance(found, faiss_file.FaissFile):
            return found
        _warn(f"{segment.docs.name} is scanned exactly", found)
        return None

    def _lexical_files(self, segment: SegmentRecord, reuse: DerivedFiles | None) -> Found | None:
        if segment.lexical is None:
            return None
        before = reuse._lexical if reuse else []
        known = {found.record: found for found in before if isinstance(found, LexicalFiles)}
        return known.get(segment.lexical) or self._opened(
            LexicalFiles, segment.lexical, segment.n_docs
        )

    def _opened(self, kind: Callable[[Folder, R, S], T], record: R, shape: S) -> T | Exception:
        try:
            return kind(self._folder, record, shape)
        except (CorruptIndex, FileNotFoundError) as error:
            if manifests.read(self._folder) != self._manifest:
                raise FileNotFoundError(
                    None, str(error), str(self._folder / manifests.NAME)
                ) from error
            return error


def _warn(what: str, problem: object) -> None:
    why = f" ({problem})" if problem else ""
    warnings.warn(
        f"{what}, since a derived file cannot be used{why}; make it again with "
        "`sbert-search index repair`.",
        stacklevel=4,
    )
