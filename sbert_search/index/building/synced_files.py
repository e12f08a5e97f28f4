"""The files of a folder that an index follows: those it holds, and waiting for changes.

Changes are found by polling, which works on every file system, even on network mounts, where the
operating system does not notify a program of changes that another machine makes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.columns import PREFIX
from sbert_search.records import PAGE_MARK, Document
from sbert_search.text.formats.files import list_files
from sbert_search.text.formats.rows import printable

PATH = "path"  # column with the path of a document's file, a string


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """The documents read from files, by the file's path relative to the root."""

    # By path: content hash of each document of the file, by id.
    contents: dict[str, dict[str, int]] = field(default_factory=dict)
    # By path: ids of the documents that partial updates changed.
    updated: dict[str, set[str]] = field(default_factory=dict)
    # Paths of files in the folder that are also ids of documents from other sources; the files must
    # not replace these documents. With the column `PATH` of the document, which is an absolute path
    # if it was read from a file before the folder became the root.
    taken: dict[str, str | None] = field(default_factory=dict)


def stored_files(snapshot: Snapshot, below: str, wanted: Collection[str]) -> StoredFiles:
    """Find the documents that were read from files of the root.

    A document belongs to a file of the root if its id is the path of the file, or the path and a
    page such as ``a.pdf#page=2``; it has this path as metadata; and its source is a file of this
    name. The row of a table may have such an id and path, but its source is the table. A document
    of a file outside the root has an absolute path as metadata, which differs from its id.

    Only files below the folder ``below``, a path relative to the root, are returned; "": all.
    ``wanted`` are the files that are in the folder now.
    """
    found = StoredFiles()
    for doc_id, path, source, content in _documents(snapshot):
        whole = doc_id.partition(PAGE_MARK)[0]  # wrong if the file's own name contains the mark
        if path is None or not _is_of_file(doc_id, path, source):
            found.taken.update({each: path for each in (whole, doc_id) if each in wanted})
        elif not below or path.startswith(f"{below}/"):
            mark = _MARK.search(source)
            found.contents.setdefault(path, {})[doc_id] = int(mark[1], 16) if mark else content
            if mark:
                found.updated.setdefault(path, set()).add(doc_id)
    return found


def ids_of_files(snapshot: Snapshot) -> set[str]:
    """Return the ids of the documents that are files or pages, of the root or of other folders."""
    documents = _documents(snapshot)
    return {doc_id for doc_id, path, source, _ in documents if path and _is_read_from(path, source)}


# After a partial update, the content hash of a document is that of its values, and no longer that
# of its file, which then stands at the end of the source.
_MARK = re.compile(" ([0-9a-f]{16})$")


def source_after_update(document: Document, content: int) -> str:
    """Return the source of a document after a partial update; "": it was not read from a file."""
    path, source = document.metadata.get(PATH), document.source
    if not (isinstance(path, str) and _is_read_from(path, source)):
        return ""
    return source if _MARK.search(source) else f"{source} {content:016x}"


def _is_of_file(doc_id: str, path: str, source: str) -> bool:
    named = doc_id == path or doc_id.startswith(f"{path}{PAGE_MARK}")
    return named and _is_read_from(path, source)


def _is_read_from(path: str, source: str) -> bool:
    name = printable(path).rpartition("/")[2]
    return source.rpartition("/")[2].startswith(f"{name}:")


def _documents(snapshot: Snapshot) -> Iterator[tuple[str, str | None, str, int]]:
    """Yield the id, the path, the source and the content hash of each live document."""
    for index, segment in enumerate(snapshot.segments):
        live = snapshot.live_docs(index)
        firsts = segment.firsts if live is None else segment.firsts[live]
        contents = segment.ids[2][np.argsort(segment.ids[1])]  # in the order of the rows
        contents = contents if live is None else contents[live]
        has_path = segment.record.columns.get(PATH) == "string"
        names = ["doc_id", "source", *([f"{PREFIX}{PATH}"] if has_path else [])]
        doc_ids, sources, *paths = (
            column.to_pylist() for column in segment.table(names).select(names).take(firsts).columns
        )
        yield from zip(
            doc_ids,
            paths[0] if has_path else [None] * len(firsts),
            [source or "" for source in sources],
            contents.tolist(),
            strict=True,
        )


INTERVAL_S = 2.0
_LONGEST_UNREST = 15  # polls with changes after which `wait` returns although files still change

# Size in bytes, modification time and status change time in ns, and inode number of each file.
_State = dict[str, tuple[int, int, int, int]]


class FolderWatch:
    """Waits for changes of the files of a folder since this object was made.

    It watches the files whose content is a document, and not tables. The folder may be absent.
    """

    def __init__(self, folder: Path, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._folder, self._sleep = folder, sleep
        self._seen = _state_of(folder)
        self._to_confirm = False

    def wait(self) -> None:
        """Return when files have changed and the last two polls show the same state.

        If files keep changing, return after 15 polls with changes.

        If the first poll of the next call shows no change, that call returns nevertheless. The
        reason: a file may have changed again after it was read, but within the same tick of the
        file system's clock, so that its time is the same.
        """
        unrest = 0
        while True:
            self._sleep(INTERVAL_S)
            now = _state_of(self._folder)
            if now != self._seen:
                unrest += 1
            elif unrest:
                unrest = _LONGEST_UNREST
            elif self._to_confirm:
                self._to_confirm = False
                return
            self._seen = now
            if unrest >= _LONGEST_UNREST:
                self._to_confirm = True
                return

    def retry(self) -> None:
        """Make the next `wait` return even if nothing changes, so that failed work is repeated."""
        self._to_confirm = True


def _state_of(folder: Path) -> _State:
    state: _State = {}
    for name in list_files(folder, on_unlisted=lambda path, error: None).names:
        try:
            status = os.stat(folder / name)
        except OSError:
            continue
        state[name] = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
    return state
