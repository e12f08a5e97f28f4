"""Importing from the folder of a persistent Chroma client."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from sbert_search.errors import CorpusError
from sbert_search.exchange.extras import needs
from sbert_search.exchange.importing.found import Asked, Found
from sbert_search.exchange.plan import VECTOR
from sbert_search.index.storage.columns import PREFIX
from sbert_search.index.storage.manifest import Metric
from sbert_search.text.fields import FieldNames

_PAGE = 1000  # records read at a time
_METRICS: Mapping[str, Metric] = {"cosine": "cosine", "ip": "dot", "l2": "euclidean"}
_ID, _TEXT = "_id", "text"
_TAKEN = re.compile(rf"(?:{re.escape(PREFIX)})*(?:{_ID}|{_TEXT}|{VECTOR})")


def found_in_chroma(folder: Path, asked: Asked) -> Found:
    """Find the ids, vectors, documents and metadata of a Chroma collection.

    The records are read later, page by page, when the rows of the result are iterated over.

    Raises:
        ConfigError: chromadb is not installed, or the user gave an option that has no effect here.
        CorpusError: The collection that the user named does not exist. Or the user named none, and
            the folder does not hold exactly one. Or the user named no metric, and this package does
            not know the metric of the collection.
    """
    asked.require_only(f"the Chroma folder {folder}", "--table", "--text-field", "--title-field")
    with needs("chromadb", "chromadb"):
        import chromadb
    settings = chromadb.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(folder), settings=settings)
    names = sorted(each.name for each in client.list_collections())
    name = chosen(asked.table, names, str(folder), "collection")
    collection = client.get_collection(name, embedding_function=None)
    # Reading `configuration` would log a warning, since no embedding function is passed.
    space = (collection.configuration_json.get("hnsw") or {}).get("space", "")
    metric = asked.metric or _METRICS.get(space)
    if metric is None:
        raise CorpusError(
            f"{folder}: the collection {name!r} compares vectors by {space!r}, which this package "
            "does not. Name another metric with --metric."
        )

    def rows() -> Iterator[dict[str, object]]:
        for start in range(0, collection.count(), _PAGE):
            page = collection.get(
                include=["embeddings", "documents", "metadatas"], limit=_PAGE, offset=start
            )
            parts = (page["ids"], page["documents"], page["metadatas"], page["embeddings"])
            for doc_id, text, metadata, vector in zip(*parts, strict=True):
                yield {**_with_text(metadata or {}, text), _ID: doc_id, VECTOR: vector}

    text_field = asked.fields.text or _TEXT
    fields = FieldNames(id=_ID, text=text_field, title=asked.fields.title, vector=VECTOR)
    return Found(rows=rows(), fields=fields, metric=metric, keeps=(client,))


def _with_text(metadata: Mapping[str, object], text: str | None) -> dict[str, object]:
    """Return the metadata of a record with its text in the field ``text``.

    A metadata field named ``text``, ``_id`` or ``vector`` would collide with a field of the record,
    so its name gets the prefix ``meta.``. A metadata field that is already called ``meta.text``
    becomes ``meta.meta.text``, so that all names stay different. There is one exception: if the
    record has no document, a string in the metadata field ``text`` becomes the text of the record.
    """
    if text is None and isinstance(own := metadata.get(_TEXT), str):
        text, metadata = own, {name: metadata[name] for name in metadata if name != _TEXT}
    renamed = {PREFIX + n if _TAKEN.fullmatch(n) else n: value for n, value in metadata.items()}
    return {**renamed, _TEXT: text}


def chosen(asked: str | None, names: list[str], shown: str, kind: str) -> str:
    """Return the collection or table that the user named; if none was named, return the only one.

    Args:
        asked: The name that the user gave; None: the user gave none.
        names: All names that exist.
        shown: The folder, for messages.
        kind: The word ``collection`` or ``table``, for messages.

    Raises:
        CorpusError: ``asked`` does not exist; or it is None, and ``names`` has not exactly one
            name.
    """
    listed = ", ".join(map(repr, names)) or "none"
    if asked is not None and asked not in names:
        raise CorpusError(f"{shown}: no {kind} {asked!r}; there are: {listed}.")
    if asked is None and len(names) != 1:
        raise CorpusError(f"{shown}: name the {kind} with --table; there are: {listed}.")
    return asked if asked is not None else names[0]
