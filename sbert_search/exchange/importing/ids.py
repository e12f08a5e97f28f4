"""Reading the ids of vectors from a file that is named, or lies beside the file of vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from sbert_search.base.progress import note
from sbert_search.errors import CorpusError
from sbert_search.exchange.importing.found import Asked, Found
from sbert_search.exchange.importing.parquet import found_in_parquet
from sbert_search.text.ids import IdsLike, read_ids

_ENDINGS = (".ids.parquet", ".ids.npy", ".ids.txt")


def with_ids(found: Found, source: Path, asked: Asked) -> Found:
    """Add ids to the vectors of a file, and texts and metadata if the file of ids has them.

    The file of ids is ``asked.ids``. If this is None, it is a file beside ``source`` with the same
    name and the ending ``.ids.parquet``, ``.ids.npy`` or ``.ids.txt``. Without a file of ids,
    ``found`` is returned unchanged. A Parquet file is read as a source of documents. An ``.npy``
    file has an array of ids, and any other file has one id in each line.

    Args:
        found: The contents of the file of vectors.
        source: The file of vectors.
        asked: The options that the user gave.

    Raises:
        CorpusError: The file of ids cannot be read.
        ConfigError: The user gave an option that has no effect on the two files.
    """
    path = asked.ids or _beside(source)
    if path is None or path.suffix.lower() != ".parquet":
        asked.require_only(f"{source} without a Parquet file of ids", "--ids")
    if path is None:
        note(f"{source} has no file of ids beside it; the number of a vector from 0 is its id.")
        return found
    if path.suffix.lower() != ".parquet":
        return replace(found, ids=_read(path))
    rows = found_in_parquet(path, asked, has_vectors=True)
    return replace(
        found,
        rows=rows.rows,
        fields=rows.fields,
        metadata_fields=rows.metadata_fields,
        metric=found.metric if rows.metric is None else rows.metric,
        dtype=rows.dtype,
        recorded=rows.recorded,
    )


def _beside(source: Path) -> Path | None:
    for ending in _ENDINGS:
        for stem in (source.name, source.stem):
            if (path := source.with_name(stem + ending)).is_file():
                return path
    return None


def _read(path: Path) -> IdsLike:
    if path.suffix.lower() != ".npy":
        try:
            with path.open("rb") as file:
                return read_ids(file, str(path))
        except OSError as error:
            raise CorpusError(f"{path}: cannot be read: {error.strerror}.") from error
    try:
        ids = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CorpusError(f"{path}: cannot be read as an array of ids: {error}.") from error
    if not isinstance(ids, np.ndarray):
        ids.close()
        raise CorpusError(f"{path}: an .npz archive; save the ids with numpy.save.")
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise CorpusError(
            f"{path}: an array of shape {ids.shape} and type {ids.dtype}; ids are one row of "
            "integers or texts."
        )
    return ids.tolist() if ids.dtype.kind == "U" else ids
