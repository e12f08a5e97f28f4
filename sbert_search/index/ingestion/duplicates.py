"""Finding ids that occur in a source with different contents, before anything is embedded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.options import if_offered
from sbert_search.index.storage.ids import hash_contents, hash_ids
from sbert_search.records import Document
from sbert_search.text.documents import CorpusReader, ReadBatch, Reject


def refuse_conflicting_ids(reader: CorpusReader) -> None:
    """Read all documents and refuse an id with two contents.

    The first read finds id hashes that occur with two content hashes. Different ids can have the
    same hash, so a second read compares the contents of documents with the same id. The hashes take
    about 45 bytes of memory per document while they are sorted.

    Raises:
        CorpusError: An id has two contents (the message has the locations of both), or a source
            cannot be read.
    """
    suspects = set(_ids_with_two_contents(*_hashes(reader)).tolist())
    first: dict[str, tuple[Document, np.uint64]] = {}
    for batch in reader.batches() if suspects else ():
        hashes = zip(_id_hashes(batch.documents), _content_hashes(batch), strict=True)
        for document, (id_hash, content) in zip(batch.documents, hashes, strict=True):
            if int(id_hash) in suspects:
                known, first_content = first.setdefault(document.doc_id, (document, content))
                if content != first_content:
                    reason = f"the id also occurs in {known.source}, with other content"
                    skip = "Make ids unique, or pass --on-error skip to keep the first of them."
                    remedy = if_offered("--on-error", skip, "Make ids unique.")
                    raise Reject(document.source, reason, document.doc_id).error(remedy)


def _hashes(reader: CorpusReader) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Hash the id and the content of every document, each uint64 (n_docs,)."""
    ids, contents = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for batch in reader.batches():
        ids.append(_id_hashes(batch.documents))
        contents.append(_content_hashes(batch))
    return np.concatenate(ids), np.concatenate(contents)


def _id_hashes(documents: list[Document]) -> NDArray[np.uint64]:
    return hash_ids([document.doc_id for document in documents])


def _content_hashes(batch: ReadBatch) -> NDArray[np.uint64]:
    return hash_contents(batch.documents, batch.vectors)


def _ids_with_two_contents(
    ids: NDArray[np.uint64], contents: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    order = np.lexsort((contents, ids))
    ids, contents = ids[order], contents[order]
    twice: NDArray[np.uint64] = ids[1:][(ids[1:] == ids[:-1]) & (contents[1:] != contents[:-1])]
    return twice
