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

Style = Literal["openai", "tei", "cohere", "mcp"]
"""Form of an error's body; with mcp, it has the fields of OpenAI and those of JSON-RPC."""

# The kind of a problem by HTTP status, here and in text-embeddings-inference.
_KINDS: Mapping[int, tuple[str, str]] = {
    400: ("invalid_request", "Validation"),
    401: ("authentication", "Unauthorized"),
    403: ("permission", "Unauthorized"),
    404: ("not_found", "NotFound"),
    405: ("not_found", "NotFound"),
    408: ("invalid_request", "Validation"),
    409: ("conflict", "Validation"),
    413: ("too_large", "Validation"),
    415: ("invalid_request", "Validation"),
    429: ("overloaded", "Overloaded"),
    431: ("too_large", "Validation"),
    500: ("internal", "Backend"),
    503: ("unavailable", "Unhealthy"),
}

_ROW = re.compile(r"rows:(\d+): (.*)", re.DOTALL)  # a message about a row in memory
# An error message that begins with the name of an option.
_SUBJECT = re.compile(r"([a-z_]+) (?:is|needs|and [a-z_]+ both) ")

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
    LostShards: (503, 1, "The cluster that searches the index has lost a part of it; try again."),
    ClusterError: (503, 0, "The cluster cannot search the index; see the log of the server."),
}


@dataclass
class Problem(Exception):  # noqa: N818 (it becomes an answer)
    """Why a request is refused or fails."""

    status: int
    message: str  # what is wrong and what to do about it
    param: str = ""  # field, parameter or header that is wrong; "": none in particular
    headers: Mapping[str, str] = field(default_factory=dict)
    closes: bool = False  # whether the connection is closed after the response
    style: Style | None = None  # of the body; None: that of the operation

    def __post_init__(self) -> None:
        super().__init__(self.message)

    @property
    def kind(self) -> str:
        """The kind of the problem, for the body and for metrics."""
        return kinds_of(self.status)[0]

    def body(self, style: Style = "openai") -> dict[str, object]:
        """Return the body of the answer."""
        shown = f"`{self.param}`: {self.message}" if self.param else self.message
        if style == "tei":
            return {"error": shown, "error_type": kinds_of(self.status)[1]}
        if style == "cohere":
            return {"message": shown}
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param or None,
            "code": self.status,
        }
        as_message: dict[str, object] = {"jsonrpc": "2.0", "id": None} if style == "mcp" else {}
        return {**as_message, "error": error}


def kinds_of(status: int) -> tuple[str, str]:
    """Return the kind of a problem with an HTTP status, and its name in TEI."""
    return _KINDS.get(status, _KINDS[500 if status >= 500 else 400])


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
    if message.startswith(("The filter", "A filter", "The operator $", "Unknown operator")):
        return "where"
    if message.startswith(("The query", "Query ")) or "only words to exclude" in message:
        return "query"
    if "has no prompt " in message:
        return "prompt_name"
    found = _SUBJECT.match(message)
    return found[1] if found else ""


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
    if isinstance(error, (CorpusError, ConfigError)) and isinstance(error.__cause__, OSError):
        # A request names no files, so this one is the server's own, such as a copy of its rows.
        return Problem(
            503,
            "A temporary file of the server cannot be written or read, as if its disk were full; "
            "see the log of the server.",
            headers={"retry-after": "5"},
        )
    if isinstance(error, CorpusError) and (row := _ROW.match(str(error))):
        param, message = f"documents[{int(row[1]) - 1}]", row[2]
        if "already indexed with other content" in message:
            shown = "The id is indexed with other content, which only PUT replaces."
            return Problem(409, shown, param)
        return Problem(400, message, param)
    if isinstance(error, (QueryError, CorpusError, ConfigError)):
        return Problem(400, str(error), _field_of(str(error)))
    return None
