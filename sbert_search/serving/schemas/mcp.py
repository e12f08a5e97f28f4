"""Messages, tools and answers of the Model Context Protocol."""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct

from sbert_search.serving.schemas.fields import Count, Position
from sbert_search.serving.schemas.search import SearchHit


class McpMessage(Struct, kw_only=True, omit_defaults=True):
    """A message that a client sends: a request, or a notification (a message without ``id``).

    Attributes:
        jsonrpc: Version of JSON-RPC.
        method: Name of the method, such as ``tools/list`` or ``tools/call``.
        id: Number or text that the answer repeats, so that the client finds its request.
        params: Arguments of the method.
    """

    jsonrpc: Literal["2.0"]
    method: str
    id: int | str | None = None
    params: dict[str, Raw] | None = None


class McpError(Struct, kw_only=True):
    """Why a message was not answered."""

    code: int
    message: str


class McpAnswer(Struct, kw_only=True):
    """The answer to a request.

    Attributes:
        jsonrpc: Version of JSON-RPC.
        id: Id of the request.
        result: The result.
        error: Why there is no result.
    """

    jsonrpc: Literal["2.0"]
    id: int | str | None = None
    result: dict[str, Raw] | None = None
    error: McpError | None = None


class SearchArguments(Struct, kw_only=True, forbid_unknown_fields=True):
    """Arguments of the tool search.

    Attributes:
        query: What to look for: a question or words. "quoted words" must occur as they are, -word
            must not occur, and +word must.
        k: Number of hits.
        offset: Number of the best hits to leave out, for a further page. offset + k may not exceed
            the maximum of k.
        mode: Compare meanings (dense), words (lexical) or both (hybrid); auto: both, if the index
            has lexical data.
        where: A condition in SQL over the metadata columns, such as: year >= 2020 AND lang = 'en'.
        index: Name of the index to search; "": the first one.
        rerank: Whether a slower model sorts the first hits again.
    """

    query: str
    k: Count = 10
    offset: Position = 0
    mode: Literal["auto", "dense", "lexical", "hybrid"] = "auto"
    where: str = ""
    index: str = ""
    rerank: bool = False


class SimilarArguments(Struct, kw_only=True, forbid_unknown_fields=True):
    """Arguments of the tool similar.

    Attributes:
        id: Id of a document, as hits have it.
        k: Number of hits.
        where: A condition in SQL over the metadata columns.
        index: Name of the index; "": the first one.
    """

    id: str
    k: Count = 10
    where: str = ""
    index: str = ""


class DocumentArguments(Struct, kw_only=True, forbid_unknown_fields=True):
    """Arguments of the tool document.

    Attributes:
        id: Id of a document, as hits have it.
        index: Name of the index; "": the first one.
    """

    id: str
    index: str = ""


class FoundDocuments(Struct, kw_only=True):
    """Documents, the best first.

    Attributes:
        index: Name of the index.
        commit: Number of commits of the index up to the state that was searched.
        missing_shards: Lost shards, whose documents were not searched.
        hits: The documents.
    """

    index: str
    commit: int
    missing_shards: list[str]
    hits: list[SearchHit]
