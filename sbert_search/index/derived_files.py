"""The derived files of a state of an index: FAISS indexes, postings and word lists.

They can be made again from documents and vectors. Without a FAISS file, a search scans the vectors
of a segment (consecutive rows) exactly. Without postings, it counts the terms of the documents
again. Both are only slower, so a damaged file causes a warning and no error. Fuzzy search and
spelling suggestions, however, need the word list of each large segment.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
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
    """The memory-mapped FAISS index, postings and word list of a segment in one state.

    Opening a file checks its size; the first search that uses the file checks its hash. The files
    in ``known`` are not opened again.

    A file that cannot be opened raises `FileNotFoundError` if a newer state was committed
    meanwhile: for example, another process compacted the index and removed the file.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        segment: Segment,
        record: SegmentRecord,
        known: Mapping[object, object],
    ) -> None:
        self._folder, self._manifest, self._segment = folder, manifest, segment
        # None: the segment has no such file, or the file cannot be opened.
        self.ann = self._ann(record, known)
        self.lexical = self._lexical_files(record, known)

    def postings(self) -> Postings:
        """Read the postings; if they are damaged, count the terms again and warn."""
        opened = self.lexical
        try:
            if isinstance(opened, LexicalFiles):
                return opened.postings
        except CorruptIndex as error:
            opened = error
        settings, segment = self._manifest.lexical, self._segment
        assert settings is not None
        _warn(
            f"The words of {segment.record.docs.name} are counted again, because its file of "
            "postings",
            opened,
            self._folder.path,
        )
        return merge_in_memory([(postings, None) for postings in count_segment(segment, settings)])

    def words(self) -> WordList | None:
        """Read the words; None if the word list is absent or damaged."""
        settings = self._manifest.lexical
        assert settings is not None
        if not lists_words(self._segment.record.n_docs):  # a small segment
            return words_of(self._segment, settings)
        try:
            return self.lexical.words if isinstance(self.lexical, LexicalFiles) else None
        except CorruptIndex:
            return None

    def _ann(self, record: SegmentRecord, known: Mapping[object, object]) -> FaissFile | None:
        file = record.vectors[self._manifest.active].ann
        if file is None:
            return None
        from sbert_search.index.dense.faiss_file import FaissFile  # not for small segments

        shape = (record.n_rows, self._manifest.settings.dim)
        opened = known.get(file) or self._open(FaissFile, file, shape)
        if isinstance(opened, FaissFile):
            return opened
        what = f"{record.docs.name} is scanned exactly, because its FAISS file"
        _warn(what, opened, self._folder.path)
        return None

    def _lexical_files(
        self, record: SegmentRecord, known: Mapping[object, object]
    ) -> LexicalFiles | Exception | None:
        if record.lexical is None:
            return None
        if isinstance(earlier := known.get(record.lexical), LexicalFiles):
            return earlier
        opened = self._open(LexicalFiles, record.lexical, record.n_docs)
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


def known_files(derived: Iterable[DerivedFiles]) -> Mapping[object, object]:
    """Map the records of open files to these files, which `DerivedFiles` can use again."""
    opened = (file for of_segment in derived for file in (of_segment.ann, of_segment.lexical))
    return {file.record: file for file in opened if file and not isinstance(file, Exception)}


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
