"""Updates of an index; an answer means that the update is on disk."""

from __future__ import annotations

from collections.abc import Sequence

from sbert_search.serve.endpoint import AnyOperation, Call, Operation, Reply
from sbert_search.serve.problems import Problem
from sbert_search.serve.search_schemas import (
    ChangeRequest,
    DeleteRequest,
    DeleteResponse,
    DocumentChange,
    NewDocument,
    UpdateRequest,
    UpdateResponse,
)
from sbert_search.serve.state import Served


async def add(served: Served, call: Call[UpdateRequest]) -> Reply:
    """Add documents."""
    return await _update(served, call, replaces=False)


async def upsert(served: Served, call: Call[UpdateRequest]) -> Reply:
    """Add documents; each replaces the indexed document of its id."""
    return await _update(served, call, replaces=True)


async def change(served: Served, call: Call[ChangeRequest]) -> Reply:
    """Change some fields of indexed documents; the others keep their values."""
    return await _update(served, call, replaces=True, partial=True)


async def delete(served: Served, call: Call[DeleteRequest]) -> Reply:
    """Delete documents by ids or by a filter."""
    body = call.body
    served_index = served.index(body.index)
    if (body.ids is None) == (body.where is None):
        raise Problem(400, "Name what to delete: either ids or where.", "ids")
    if body.ids is not None:
        served.require_items(len(body.ids), "ids")
    served.require_filter(body.where)
    deleted, commit = await served_index.delete(body.ids, body.where)
    return Reply(DeleteResponse(index=served_index.name, deleted=deleted, commit=commit))


async def _update(
    served: Served,
    call: Call[UpdateRequest] | Call[ChangeRequest],
    *,
    replaces: bool,
    partial: bool = False,
) -> Reply:
    body = call.body
    served_index = served.index(body.index)
    served.require_items(len(body.documents), "documents")
    new: Sequence[NewDocument | DocumentChange] = body.documents
    documents = [_row(one, at) for at, one in enumerate(new)]
    counts, commit = await served_index.update(documents, replaces=replaces, partial=partial)
    return Reply(
        UpdateResponse(
            index=served_index.name,
            indexed=counts.indexed,
            replaced=counts.replaced,
            duplicate=counts.duplicate,
            commit=commit,
        )
    )


_OWN_FIELDS = ("_id", "id", "text", "title")


def _row(document: NewDocument | DocumentChange, at: int) -> dict[str, object]:
    for name in document.metadata:
        if name in _OWN_FIELDS:
            raise Problem(400, f"A column cannot be called {name}.", f"documents[{at}].metadata")
    own = {"_id": document.id, "title": document.title, "text": document.text}
    return {**own, **document.metadata}


OPERATIONS: tuple[AnyOperation, ...] = (
    Operation("POST", "/documents", add, UpdateResponse, UpdateRequest, right="write"),
    Operation("PUT", "/documents", upsert, UpdateResponse, UpdateRequest, right="write"),
    Operation("PATCH", "/documents", change, UpdateResponse, ChangeRequest, right="write"),
    Operation("POST", "/documents/delete", delete, DeleteResponse, DeleteRequest, right="write"),
)
