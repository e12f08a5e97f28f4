"""Errors of requests: their HTTP status, and the body that a client gets.

No body holds a path of this machine or a traceback.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sbert_search.errors import (
    ClusterError,
    ConfigError,
    CorpusError,
    CorruptIndex,
    IndexLocked,
    IndexStoreError,
    LostShards,
    ModelMismatch,
    NoLexicalData,
    NotAnIndex,
    QueryError,
    UnfinishedBuild,
)

Kind = Literal[
    "invalid_request",
    "authentication",
    "permission",
    "not_found",
    "conflict",
    "too_large",
    "overloaded",
    "unavailable",
    "internal",
]

Style = Literal["openai", "tei", "mcp"]
"""Form of an error's body; with mcp, it has the fields of OpenAI and those of JSON-RPC."""

_KINDS: Mapping[int, Kind] = {
    400: "invalid_request",
    401: "authentication",
    403: "permission",
    404: "not_found",
    405: "not_found",
    408: "invalid_request",
    409: "conflict",
    413: "too_large",
    415: "invalid_request",
    429: "overloaded",
    431: "too_large",
    500: "internal",
    503: "unavailable",
}

_ROW = re.compile(r"rows:(\d+): (.*)", re.DOTALL)  # a message about a row in memory
_SUBJECT = re.compile(r"([a-z_]+) is ")  # the start of a message about an option

# The answer to an error that comes from the state of an index or a cluster: status, seconds until
# another try (0: none is advised) and message.
_OF_STATES: Mapping[type[Exception], tuple[int, int, str]] = {
    IndexLocked: (409, 1, "Another process is writing to the index; try again."),
    UnfinishedBuild: (
        409,
        60,
        "Another process builds the index anew; try again when the build is finished.",
    ),
    NotAnIndex: (
        503,
        5,
        "The folder of the index is away, or holds no index of its kind. Searches go on with its "
        "last state; write again later.",
    ),
    ModelMismatch: (
        503,
        5,
        "The server's model gives other vectors than the index has; see the log of the server.",
    ),
    CorruptIndex: (503, 5, "A file of the index is damaged; see the log of the server."),
    # Such as another index in the folder, or a full disk.
    IndexStoreError: (
        503,
        5,
        "The folder of the index holds another index, or cannot be written; see the server's log.",
    ),
    LostShards: (
        503,
        1,
        "The cluster that searches the index has lost a part of it; try again.",
    ),
    ClusterError: (503, 0, "The cluster cannot search the index; see the log of the server."),
}

# The kinds in text-embeddings-inference.
_TEI_KINDS: Mapping[Kind, str] = {
    "invalid_request": "Validation",
    "authentication": "Unauthorized",
    "permission": "Unauthorized",
    "not_found": "NotFound",
    "conflict": "Validation",
    "too_large": "Validation",
    "overloaded": "Overloaded",
    "unavailable": "Unhealthy",
    "internal": "Backend",
}


@dataclass
class Problem(Exception):  # noqa: N818 (it becomes an answer)
    """Why a request is refused or fails."""

    status: int
    message: str  # what is wrong and what to do about it
    param: str = ""  # field, parameter or header that is wrong; "": none in particular
    headers: Mapping[str, str] = field(default_factory=dict)
    closes: bool = False  # whether the connection is closed after the response

    def __post_init__(self) -> None:
        super().__init__(self.message)

    @property
    def kind(self) -> Kind:
        """The kind of the problem, for the body and for metrics."""
        return kind_of(self.status)

    def body(self, style: Style = "openai") -> dict[str, object]:
        """Return the body of the answer."""
        if style == "tei":
            shown = f"`{self.param}`: {self.message}" if self.param else self.message
            return {"error": shown, "error_type": _TEI_KINDS[self.kind]}
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param or None,
            "code": self.status,
        }
        as_message: dict[str, object] = {"jsonrpc": "2.0", "id": None} if style == "mcp" else {}
        return {**as_message, "error": error}


def kind_of(status: int) -> Kind:
    """Return the kind of the problem for an HTTP status of 400 or more."""
    return _KINDS.get(status, "internal" if status >= 500 else "invalid_request")


def invalid_problem(param: str, message: str) -> Problem:
    """Return the problem of a field with a wrong value."""
    return Problem(400, message, param)


def too_large_problem(param: str, message: str) -> Problem:
    """Return the problem of a field that exceeds a limit."""
    return Problem(413, message, param)


def overloaded_problem(retry_s: float) -> Problem:
    """Return the problem of a request that comes while too many others wait; 429."""
    seconds = max(1, min(60, math.ceil(retry_s)))
    message = f"The server has too many requests; try again in {seconds} s."
    return Problem(429, message, headers={"retry-after": str(seconds)})


def closing_problem() -> Problem:
    """Return the problem of a request that comes while the server is shutting down; 503."""
    return Problem(503, "The server is shutting down.", closes=True)


def _field_of(message: str) -> str:
    """Return the field of a request that an error message is about; "": it is unknown."""
    if message.startswith("The filter"):
        return "where"
    if message.startswith(("The query", "Query ")) or "only words to exclude" in message:
        return "query"
    if "has no prompt " in message:
        return "prompt_name"
    found = _SUBJECT.match(message)
    return found[1] if found else ""


def _problem_of_row(at: int, message: str) -> Problem:
    param = f"documents[{at}]"
    if "already indexed with other content" in message:
        shown = "The id is indexed with other content, which only PUT replaces."
        return Problem(409, shown, param)
    return Problem(400, message, param)


def problem_of(error: Exception) -> Problem | None:
    """Return the problem that a client gets for an error of this package; None: it is a bug.

    Messages of errors that may name a path are replaced.
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, NoLexicalData):
        message = "The index has no lexical data; use the mode dense, and a query without quotes"
        return Problem(400, f"{message} and without words such as +must or -not.", "mode")
    if type(error) in _OF_STATES:
        status, retry_s, message = _OF_STATES[type(error)]
        return Problem(status, message, headers={"retry-after": str(retry_s)} if retry_s else {})
    if isinstance(error, CorpusError) and (row := _ROW.match(str(error))):
        return _problem_of_row(int(row[1]) - 1, row[2])
    if isinstance(error, (QueryError, CorpusError, ConfigError)):
        return Problem(400, str(error), _field_of(str(error)))
    return None
