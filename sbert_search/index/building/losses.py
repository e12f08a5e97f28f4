"""What documents lose that an update replaces by rows without some of their values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.options import if_offered
from sbert_search.base.progress import warn
from sbert_search.index.building.ingest import listed
from sbert_search.index.building.synced_files import PATH
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.columns import PREFIX
from sbert_search.index.storage.segments import Segment
from sbert_search.records import Document
from sbert_search.text.documents import CorpusReader, Unread
from sbert_search.text.fields import DOCUMENT_FIELDS, TEXT_FIELDS, FieldNames, find_field


def warn_of_other_texts(reader: CorpusReader, kept: FieldNames) -> None:
    """Warn of an update whose text is read from other fields than that of the index (``kept``)."""
    if reader.fields.texts == kept.texts or reader.fields == DOCUMENT_FIELDS:
        return
    for names, read in reader.text_fields:
        free = [name for name in names if name not in (kept.id, kept.title, kept.vector)]
        built = kept.texts or tuple(filter(None, [find_field(TEXT_FIELDS, free)]))
        if built and read != built and any(name in names for name in read):
            ours, theirs = (", ".join(map(repr, fields)) for fields in (read, built))
            warn(
                f"The text fields of this update are {ours}, those of the index {theirs}, so texts "
                "differ from those before. To read the fields of the index, leave out "
                "--text-field (fields=FieldNames(text=...))."
            )
            return


class Losses:
    """Counts the documents that lose parts, such as titles, of which no row has a value.

    ``state`` is that before the update.
    """

    def __init__(self, state: Snapshot, parts: Sequence[Unread]) -> None:
        self._state, self._counts = state, dict.fromkeys(parts, 0)
        # Which positions of segments have first passages of documents that were replaced.
        self._replaced = dict[Segment, NDArray[np.bool_]]()
        self._moved = dict[str, str]()  # path of the replaced file, by id of its document

    def add(self, documents: Sequence[Document]) -> None:
        """Count the documents that these replace; an id that came before is not counted again."""
        if not self._counts and all(document.fingerprint is None for document in documents):
            return
        rows = self._state.lookup([document.doc_id for document in documents])
        new = dict(zip(rows.tolist(), documents, strict=True))
        rows = self._not_counted(np.unique(rows[rows >= 0]))
        for part in self._counts:
            self._counts[part] += self._n_with(part, rows)
        files = np.array([row for row in rows.tolist() if new[row].fingerprint is not None], int)
        paths = self._state.metadata(PATH, files) if PATH in self._state.columns else []
        for row, path in zip(files.tolist(), paths, strict=True):
            if path not in (None, new[row].metadata.get(PATH)):
                self._moved[new[row].doc_id] = str(path)

    def _not_counted(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        is_new = np.zeros(len(rows), bool)
        for segment, here, at in self._state.located(rows):
            if segment not in self._replaced:
                self._replaced[segment] = np.zeros(segment.n_rows, bool)
            is_new[here] = ~self._replaced[segment][at]
            self._replaced[segment][at] = True
        return rows[is_new]

    def _n_with(self, part: Unread, rows: NDArray[np.int64]) -> int:
        if part.kind == "text":  # a joined text does not show of which fields it is
            return len(rows)
        column = PREFIX + part.name if part.kind == "column" else part.kind
        located = self._state.located(rows)
        return sum(int(segment.has_values(column, at).sum()) for segment, _, at in located)

    @property
    def messages(self) -> tuple[str, ...]:
        """What is lost, and why, for each part of which documents had values."""
        return tuple(
            f"{part.why}, so {f'{n:,} documents lose' if n > 1 else 'one document loses'} "
            f"{'titles' if part.kind == 'title' else 'values'}."
            for part, n in self._counts.items()
            if n
        )

    def warn(self) -> None:
        """Warn of what is lost, and of files that replace those of another folder."""
        remedy = if_offered(
            "--partial",
            "--partial keeps the values that rows lack.",
            if_offered("--new-columns", "--new-columns error refuses such rows."),
        )
        for message in self.messages:
            warn(f"{message} {remedy}".rstrip())
        if self._moved:
            replaced = [f"{doc_id} (of {path})" for doc_id, path in self._moved.items()]
            warn(
                f"Files replace documents that were read from other files: {listed(replaced)}. The "
                "id of a file outside the folder of the index is its name, or its path in the "
                "folder that is named. To keep both, build an index from a folder that holds both."
            )
