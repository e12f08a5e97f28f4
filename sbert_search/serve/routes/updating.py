"""Updates of an index; an answer means that the update is on disk."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sbert_search.index.building.ingest import IngestReport
from sbert_search.records import RowCounts
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
    return await _update(served, call, replaces=True)


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
    served: Served, call: Call[UpdateRequest] | Call[ChangeRequest], *, replaces: bool
) -> Reply:
    body = call.body
    served_index = served.index(body.index)
    served.require_items(len(body.documents), "documents")
    new: Sequence[NewDocument | DocumentChange] = body.documents
    rows = {at: _row(one, at) for at, one in enumerate(new)}
    clear, skipped = None, dict[str, None]()
    if isinstance(body, ChangeRequest):
        known = served_index.index.state.columns  # a null of another column changes nothing
        clear = {
            one.id: [n for n, v in one.metadata.items() if v is None and n in known] for one in new
        }
        skipped = dict.fromkeys(await served_index.unknown([one.id for one in new]))
        if skipped and not body.skip_unknown:
            shown = ", ".join(f"{doc_id!r:.100}" for doc_id in [*skipped][:_SHOWN])
            shown += f" and {len(skipped) - _SHOWN:,} more" if len(skipped) > _SHOWN else ""
            said = f"{served_index.name} holds no documents with the ids {shown}."
            raise Problem(400, f"{said} Leave them out, or send skip_unknown.", "documents")
        rows = {at: row for at, row in rows.items() if new[at].id not in skipped}
        clear = {doc_id: names for doc_id, names in clear.items() if doc_id not in skipped}
    report, commit = IngestReport(counts=RowCounts(), seconds=0), served_index.commit
    if rows:
        try:
            report, commit = await served_index.update([*rows.values()], clear, replaces=replaces)
        except Problem as problem:
            if row := _ROW.fullmatch(problem.param):  # counted without those skipped
                problem.param = f"documents[{[*rows][int(row[1])]}]"
            raise
    counts = report.counts
    return Reply(
        UpdateResponse(
            index=served_index.name,
            indexed=counts.indexed,
            replaced=counts.replaced,
            duplicate=counts.duplicate,
            commit=commit,
            new_columns=list(report.new_columns),
            changed_columns=dict(report.changed_columns),
            skipped=list(skipped),
            lost=list(report.lost),
        )
    )


_SHOWN = 10  # ids that a message names
_ROW = re.compile(r"documents\[(\d+)\]")
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
