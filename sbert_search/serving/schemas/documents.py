"""Updates of an index."""

from __future__ import annotations

from msgspec import Struct

from sbert_search.serving.schemas.fields import JsonValue


class NewDocument(Struct, kw_only=True, forbid_unknown_fields=True):
    """A document to index.

    Attributes:
        id: Its id.
        text: Its text.
        title: Its title.
        metadata: Its metadata; a key that is no column of the index yet becomes one.
    """

    id: str
    text: str
    title: str = ""
    metadata: dict[str, JsonValue] = {}


class UpdateRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Documents to add or to replace.

    Attributes:
        documents: The documents.
        index: Name of the index; "": the first one.
    """

    documents: list[NewDocument]
    index: str = ""


class UpdateResponse(Struct, kw_only=True):
    """What an update changed; the changes are on disk.

    Attributes:
        index: Name of the index.
        indexed: Number of new documents.
        replaced: Number of documents whose content was replaced.
        duplicate: Number of documents that the index held already.
        commit: Number of the commit that holds these documents; each commit has the next number.
    """

    index: str
    indexed: int
    replaced: int
    duplicate: int
    commit: int


class DeleteRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Documents to delete, by ids or by a filter.

    Attributes:
        ids: Ids; unknown ones are ignored.
        where: A filter over the metadata.
        index: Name of the index; "": the first one.
    """

    ids: list[str] | None = None
    where: str | None = None
    index: str = ""


class DeleteResponse(Struct, kw_only=True):
    """What a deletion changed; the changes are on disk."""

    index: str
    deleted: int
    commit: int
