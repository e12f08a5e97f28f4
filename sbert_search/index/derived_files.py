"""The derived files of a state of an index: FAISS indexes, postings and word lists.

They can be made again from documents and vectors. Without a FAISS file, a search scans the vectors
of a segment (consecutive rows) exactly. Without postings, it counts the terms of the documents
again. Both are only slower, so a damaged file causes a warning and no error. Fuzzy search and
spelling suggestions, however, need the word list of each large segment.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sbert_search.base.folders import Folder
from sbert_search.errors import CorruptIndex
from sbert_search.index.lexical.postings import (
    LexicalFiles,
    Postings,
    count_segment,
    merge_in_memory,
    words_of,
)
from sbert_search.index.lexical.vocabulary import WordList, lists_words
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import Manifest, SegmentRecord
from sbert_search.index.storage.segments import Segment

if TYPE_CHECKING:
    from sbert_search.index.dense.faiss_file import FaissFile

Record = TypeVar("Record")
Shape = TypeVar("Shape")
File = TypeVar("File")


class DerivedFiles:
    """The memory-mapped FAISS indexes, postings and word lists of all segments of a state.

    Opening a file checks its size; the first search that uses the file checks its hash. Files that
    the state of ``reuse`` has too are not opened again.

    A file that cannot be opened raises `FileNotFoundError` if a newer state was committed
    meanwhile: for example, another process compacted the index and removed the file.
    """

    def __init__(
        self, folder: Folder, manifest: Manifest, reuse: DerivedFiles | None = None
    ) -> None:
        self._folder, self._manifest = folder, manifest
        # None: the segment has no such file, or the file cannot be opened.
        self.anns = [self._ann(segment, reuse) for segment in manifest.segments]
        self._lexical = [self._lexical_files(segment, reuse) for segment in manifest.segments]

    def postings(self, index: int, segment: Segment) -> Postings:
        """Read the postings of a segment; if they are damaged, count the terms again and warn."""
        opened = self._lexical[index]
        try:
            if isinstance(opened, LexicalFiles):
                return opened.postings
        except CorruptIndex as error:
            opened = error
        settings = self._manifest.lexical
        assert settings is not None
        _warn(
            f"The words of {segment.record.docs.name} are counted again, because its file of "
            "postings",
            opened,
            self._folder.path,
        )
        return merge_in_memory([(postings, None) for postings in count_segment(segment, settings)])

    def words(self, index: int, segment: Segment) -> WordList | None:
        """Read the words of a segment; None if its word list is absent or damaged."""
        settings = self._manifest.lexical
        assert settings is not None
        if not lists_words(segment.record.n_docs):  # a small segment
            return words_of(segment, settings)
        opened = self._lexical[index]
        try:
            return opened.words if isinstance(opened, LexicalFiles) else None
        except CorruptIndex:
            return None

    def _ann(self, segment: SegmentRecord, reuse: DerivedFiles | None) -> FaissFile | None:
        record = segment.vectors[self._manifest.active].ann
        if record is None:
            return None
        from sbert_search.index.dense.faiss_file import FaissFile  # not for small segments

        known = {ann.record: ann for ann in reuse.anns if ann} if reuse else {}
        shape = (segment.n_rows, self._manifest.settings.dim)
        opened = known.get(record) or self._open(FaissFile, record, shape)
        if isinstance(opened, FaissFile):
            return opened
        what = f"{segment.docs.name} is scanned exactly, because its FAISS file"
        _warn(what, opened, self._folder.path)
        return None

    def _lexical_files(
        self, segment: SegmentRecord, reuse: DerivedFiles | None
    ) -> LexicalFiles | Exception | None:
        if segment.lexical is None:
            return None
        before = reuse._lexical if reuse else []
        known = {files.record: files for files in before if isinstance(files, LexicalFiles)}
        if segment.lexical in known:
            return known[segment.lexical]
        opened = self._open(LexicalFiles, segment.lexical, segment.n_docs)
        if isinstance(opened, LexicalFiles) and opened.words_problem:
            self._require_newest(opened.words_problem)
        return opened

    def _open(
        self, kind: Callable[[Folder, Record, Shape], File], record: Record, shape: Shape
    ) -> File | Exception:
        """Open a file; if that fails and no newer state was committed, return the error."""
        try:
            return kind(self._folder, record, shape)
        except (CorruptIndex, FileNotFoundError) as error:
            self._require_newest(error)
            return error

    def _require_newest(self, problem: Exception) -> None:
        """Raise `FileNotFoundError` with ``problem`` if a newer state was committed meanwhile.

        The writer of that state may have removed the file, so this is no damage. The manifest in
        the folder may also be older than this state: a shard is opened before its new manifest gets
        its final name, and `index tune` opens states that it does not commit.
        """
        if manifests.read(self._folder).generation > self._manifest.generation:
            name = str(self._folder / manifests.NAME)
            raise FileNotFoundError(None, str(problem), name) from problem


def _warn(what: str, problem: object, path: Path) -> None:
    if isinstance(problem, CorruptIndex):  # its own remedy, restoring the file, is left out
        problem = f"{problem.file} is corrupt: expected {problem.expected}, got {problem.got}"
    why = f" ({problem})" if problem else ""
    whole = path.parent if (path.parent / manifests.SHARDS).is_file() else path
    warnings.warn(
        f"{what} is missing or damaged{why}. Searches are slower until you make it again with "
        f"`sbert-search index repair {whole}`.",
        stacklevel=4,
    )
