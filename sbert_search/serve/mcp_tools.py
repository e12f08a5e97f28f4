"""The tools that a server offers to language models, and the messages of their protocol.

The tools are search, similar and document. They answer as the HTTP routes of these names do, with
the same limits. This module does not depend on the protocol's SDK.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from sbert_search.search.options import SearchMode
from sbert_search.serve.endpoint import wrong_field
from sbert_search.serve.openapi import described_schemas
from sbert_search.serve.queue import Work
from sbert_search.serve.routes.searching import answer_document, answer_search, answer_similar
from sbert_search.serve.search_schemas import (
    Count,
    Position,
    SearchHit,
    SearchRequest,
    SearchResult,
    SimilarRequest,
    SimilarResponse,
    StoredDocument,
)
from sbert_search.serve.state import Served


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
        group_by: Name of a metadata column of which each value has one hit, the best; "": none.
        passages: Whether hits are passages, of which several may come from one document.
    """

    query: str
    k: Count = 10
    offset: Position = 0
    mode: SearchMode = "auto"
    where: str = ""
    index: str = ""
    rerank: bool = False
    group_by: str = ""
    passages: bool = False


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
        total: Number of documents that match a search, with those on further pages; null: unknown.
        suggestion: The query without its typing errors; null: none seems misspelt.
    """

    index: str
    commit: int
    missing_shards: list[str]
    hits: list[SearchHit]
    total: int | None = None
    suggestion: str | None = None


A = TypeVar("A", bound=msgspec.Struct)

_DEFAULT_HITS = 10
MAX_COLUMNS = 50  # maximum number of columns in the description of an index

Schema = dict[str, object]


@dataclass(frozen=True, slots=True)
class Tool(Generic[A]):
    """A tool."""

    name: str
    title: str  # for people
    description: str  # what it does, for a language model
    arguments: type[A]
    result: type[msgspec.Struct]
    answer: Callable[[Served, A, Work], Awaitable[msgspec.Struct]]

    async def call(self, served: Served, given: Mapping[str, object], work: Work) -> msgspec.Struct:
        """Check the arguments of a call and answer it."""
        fields = self.arguments.__struct_fields__
        own = {name: value for name, value in _defaults(served).items() if name in fields}
        try:
            arguments = msgspec.convert(own | _with_integers(given), self.arguments)
        except msgspec.ValidationError as error:
            raise wrong_field(error, self.arguments) from error
        return await self.answer(served, arguments, work)

    def input_schema(self, served: Served) -> Schema:
        """Return the JSON schema of the arguments, with the server's index names and limits."""
        schema = _inlined(self.arguments)
        properties = schema["properties"]
        assert isinstance(properties, dict)
        limits = served.limits
        for name, default in _defaults(served).items():
            if name in properties:
                properties[name] |= {"default": default}
        for name, narrower in {
            "k": {"maximum": limits.k},
            "offset": {"maximum": limits.k - 1},
            "query": {"minLength": 1, "maxLength": limits.query_chars},
            "where": {"maxLength": limits.filter_chars},
            "index": {"enum": ["", *served.indexes]},
        }.items():
            if name in properties:
                properties[name] |= narrower
        if not served.rerankers:
            properties.pop("rerank", None)
        return schema

    def output_schema(self) -> Schema:
        """Return the JSON schema of the result."""
        return _inlined(self.result)


def _defaults(served: Served) -> dict[str, object]:
    return {"k": min(_DEFAULT_HITS, served.limits.k), "mode": served.defaults.mode}


AnyTool: TypeAlias = Tool[SearchArguments] | Tool[SimilarArguments] | Tool[DocumentArguments]


async def _search(served: Served, arguments: SearchArguments, work: Work) -> FoundDocuments:
    asked = {**msgspec.structs.asdict(arguments), "where": arguments.where or None}
    asked["group_by"] = arguments.group_by or None
    request = msgspec.convert(asked, SearchRequest)
    answer = await answer_search(served, request, work)
    [found] = answer.results
    return _documents_of(answer.index, found)


async def _similar(served: Served, arguments: SimilarArguments, work: Work) -> FoundDocuments:
    asked = msgspec.structs.asdict(arguments)
    asked |= {"like": [asked.pop("id")], "where": arguments.where or None}
    found = await answer_similar(served, msgspec.convert(asked, SimilarRequest), work)
    return _documents_of(found.index, found)


def _documents_of(index: str, found: SearchResult | SimilarResponse) -> FoundDocuments:
    names = [name for name in FoundDocuments.__struct_fields__ if hasattr(found, name)]
    return FoundDocuments(**{name: getattr(found, name) for name in names} | {"index": index})


async def _document(served: Served, arguments: DocumentArguments, work: Work) -> StoredDocument:
    return await answer_document(served, arguments.index, arguments.id)


_TOOLS: tuple[AnyTool, ...] = (
    Tool(
        "search",
        "Search documents",
        "Find documents by meaning, by words or by both. A hit has the id, the title, the "
        "metadata and the best passage of a document.",
        SearchArguments,
        FoundDocuments,
        _search,
    ),
    Tool(
        "similar",
        "Find similar documents",
        "Find the documents that resemble a document most.",
        SimilarArguments,
        FoundDocuments,
        _similar,
    ),
    Tool(
        "document",
        "Read a document",
        "Read a document with its whole text and its metadata.",
        DocumentArguments,
        StoredDocument,
        _document,
    ),
)
TOOLS: Mapping[str, AnyTool] = {tool.name: tool for tool in _TOOLS}


def _with_integers(given: Mapping[str, object]) -> dict[str, object]:
    """Turn numbers such as 3.0 into integers, which they are to JSON Schema and to some clients."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in given.items()
    }


def described_indexes(served: Served) -> str:
    """Describe the indexes with their columns, so that a language model can write filters."""
    lines = []
    for name, one in served.indexes.items():
        state = one.index.state
        columns = [f"{column} ({kind})" for column, kind in state.columns.items()]
        more = len(columns) - MAX_COLUMNS
        listed = ", ".join([*columns[:MAX_COLUMNS], *([f"{more:,} more"] if more > 0 else [])])
        lines.append(f"- {name}: {state.n_docs:,} documents. Columns: {listed or 'none'}.")
    return "\n".join(["The indexes:", *lines])


def _inlined(kind: type[msgspec.Struct]) -> Schema:
    """Return the JSON schema of a struct, with those of the structs inside it in ``$defs``.

    Its own schema is at the top level, not behind a reference, as clients of the protocol expect.
    """
    schemas = described_schemas([kind], "#/$defs/{name}")
    schema: Schema = schemas.pop(kind.__name__)
    return {**schema, "$defs": schemas} if schemas else schema
