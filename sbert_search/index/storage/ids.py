"""Finding documents by id: a sorted table of hashes with one column per document.

The table is uint64 (3, n_docs): hash of the id (sorted), row of the document's first passage, hash
of the document's content. Different ids may have the same hash. So for each column with the hash of
an id, the caller reads the stored id and compares it with the wanted one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np
import xxhash
from numpy.typing import NDArray

from sbert_search.records import Document, MetadataValue, ScalarValue

IdTable = NDArray[np.uint64]
"""uint64 (3, n_docs): id hash, row, content hash; sorted by id hash, then row."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def hash_ids(doc_ids: Sequence[str]) -> NDArray[np.uint64]:
    """Hash ids with xxh3_64, (n,); lone surrogates are accepted, though no stored id has one."""
    try:
        hashes = list(map(xxhash.xxh3_64_intdigest, map(str.encode, doc_ids)))
    except UnicodeEncodeError:
        encoded = (doc_id.encode("utf-8", "surrogatepass") for doc_id in doc_ids)
        hashes = list(map(xxhash.xxh3_64_intdigest, encoded))
    return np.array(hashes, np.uint64)


def hash_content(document: Document) -> int:
    """Hash title, text and metadata of a document, but not its source.

    An integer and an equal float have the same hash, since an int64 column may become float64. A
    missing value has the same hash as a missing column. If the document has a fingerprint (see
    `Document`), the fingerprint is returned instead. With the hash, a repeated `add` finds
    duplicates without reading documents.
    """
    if document.fingerprint is not None:
        return document.fingerprint
    parts = [document.title, document.text, *_metadata_parts(document.metadata)]
    encoded = [part.encode() for part in parts]
    data = b"".join(len(part).to_bytes(8, "little") + part for part in encoded)
    return xxhash.xxh3_64_intdigest(data)


def hash_vectors(vectors: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Hash the vectors (n, dim) that the user gave for documents, with xxh3_64, (n,).

    Such a vector belongs to the content of its document: the content hash is then the result of
    `hash_content` XOR this hash.
    """
    data = np.ascontiguousarray(vectors, "<f4").view(np.uint8).reshape(-1).data
    step = 4 * vectors.shape[1]
    starts = range(0, step * len(vectors), step or 1)
    hashes = [xxhash.xxh3_64_intdigest(data[at : at + step]) for at in starts]
    return np.array(hashes, np.uint64)


def hash_contents(
    documents: Sequence[Document], vectors: NDArray[np.float32] | None = None
) -> NDArray[np.uint64]:
    """Hash the contents of documents, and of their given vectors (n, dim) if there are any."""
    hashes = np.array([hash_content(document) for document in documents], np.uint64)
    return hashes if vectors is None else hashes ^ hash_vectors(vectors)


def make_table(
    id_hashes: NDArray[np.uint64], rows: NDArray[np.int64], contents: NDArray[np.uint64]
) -> IdTable:
    """Make a table from an id hash, a first row and a content hash for each document."""
    order = np.lexsort((rows, id_hashes))
    return np.stack([id_hashes[order], rows.astype(np.uint64)[order], contents[order]])


def candidates(
    table: IdTable, id_hashes: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the columns of the table whose id hash is one of ``id_hashes``.

    Returns, for each column found, the index of its hash in ``id_hashes`` and the index of the
    column, both (n_found,).
    """
    start = np.searchsorted(table[0], id_hashes, "left")
    count = np.searchsorted(table[0], id_hashes, "right") - start
    which = np.repeat(np.arange(len(id_hashes)), count)
    within = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    return which, start[which] + within


def _metadata_parts(metadata: Mapping[str, MetadataValue]) -> list[str]:
    parts: list[str] = []
    for name in sorted(metadata):
        value = metadata[name]
        if value is not None:
            parts += [name, _canonical(value)]
    return parts


def _canonical(value: ScalarValue | Sequence[ScalarValue]) -> str:
    if isinstance(value, str):
        return "s" + value
    if isinstance(value, Sequence):
        parts = [_canonical(item) for item in value]
        return "l" + "".join(f"{len(part)}:{part}" for part in parts)
    if isinstance(value, bool):
        return "b1" if value else "b0"
    if isinstance(value, datetime):
        return _canonical_time(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, date):
        return "d" + value.isoformat()
    if isinstance(value, float) and value.is_integer():
        return f"n{int(value)}"
    return f"n{value!r}"


def _canonical_time(moment: datetime) -> str:
    """Write a time as seconds since 1970, or as microseconds if a float would round the seconds.

    More than 2**33 seconds from 1970, floats are further apart than a microsecond.
    """
    seconds, since = moment.timestamp(), moment - _EPOCH
    if timedelta(seconds=seconds) == since:
        return f"t{seconds!r}"
    return f"t{since // timedelta(microseconds=1)}us"
