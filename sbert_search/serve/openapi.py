"""The OpenAPI document, made from the operations and the schemas of their bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import getdoc
from typing import Any

import msgspec

from sbert_search.declared import described
from sbert_search.serve.endpoint import JSON, AnyOperation
from sbert_search.serve.problems import Style
from sbert_search.version import __version__

_STATUS: Mapping[int, str] = {
    400: "The request is wrong; the body names the field.",
    401: "The request has no token, or a wrong one.",
    403: "The token does not allow this, or a web page of another origin asks.",
    404: "There is no such document, index or model.",
    408: "The body did not arrive in time.",
    409: "Another process is writing, or the id is indexed with other content.",
    413: "The request exceeds a limit.",
    415: "The body is not JSON.",
    429: "The server has too many requests; Retry-After says when to try again.",
    500: "An error of the server.",
    503: "The server cannot answer now; the body says why.",
}
ACCEPTED = "The message needs no answer, so the body is empty."


class ProblemDetail(msgspec.Struct, kw_only=True):
    """What is wrong with a request."""

    message: str
    type: str
    param: str | None
    code: int


class ProblemBody(msgspec.Struct, kw_only=True):
    """The body of an error."""

    error: ProblemDetail


class TeiProblemBody(msgspec.Struct, kw_only=True):
    """The body of an error, in the format of text-embeddings-inference."""

    error: str
    error_type: str


class CohereProblemBody(msgspec.Struct, kw_only=True):
    """The body of an error, in the format of Cohere."""

    message: str


def openapi_document(operations: Sequence[AnyOperation]) -> dict[str, object]:
    """Describe operations in OpenAPI 3.1."""
    types: list[object] = [ProblemBody, TeiProblemBody, CohereProblemBody]
    for operation in operations:
        types += [kind for kind in (operation.request, operation.response) if kind is not None]
    components = described_schemas(types, "#/components/schemas/{name}")
    paths: dict[str, dict[str, object]] = {}
    for operation in operations:
        for path in operation.paths:
            shown = path.replace(":path}", "}")
            described = _operation(operation, versioned=path.startswith("/v1"))
            paths.setdefault(shown, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "sbert-search", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def described_schemas(types: Sequence[object], references: str) -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of all structs in the types by name, described by their docstrings.

    ``references`` is the template of references to a schema; ``{name}`` stands for the struct's
    name.
    """
    _, components = msgspec.json.schema_components(types, ref_template=references)
    structs = {kind.__name__: kind for kind in _structs(types)}
    for name, schema in components.items():
        if name in structs:
            _describe(schema, structs[name])
    return components


def _operation(operation: AnyOperation, *, versioned: bool) -> dict[str, object]:
    name = f"{operation.method.lower()}{operation.path.replace(':path', '')}"
    described: dict[str, object] = {
        "operationId": re.sub(r"\W+", "_", f"{name}{'_v1' if versioned else ''}").strip("_"),
        "summary": getdoc(operation.answer),
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation)],
        "responses": {
            "200": {
                "description": "Done.",
                "content": {operation.media_type: {"schema": _schema(operation.response)}},
            },
            **({"202": {"description": ACCEPTED}} if operation.may_be_empty else {}),
            **{str(status): _problem(operation, status) for status in operation.statuses},
        },
    }
    if operation.request is not None:
        content = {JSON: {"schema": _schema(operation.request)}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.right != "open":
        described["security"] = [{"token": []}, {}]  # {}: a server may have no tokens
    return described


def _problem(operation: AnyOperation, status: int) -> dict[str, object]:
    answer: dict[str, object] = {
        "description": _STATUS[status],
        "content": {JSON: {"schema": _problem_schema(operation, status)}},
    }
    if status == 429:
        schema = {"type": "string", "pattern": "^[0-9]+$"}
        answer["headers"] = {"Retry-After": {"description": "Seconds.", "schema": schema}}
    return answer


def _problem_schema(operation: AnyOperation, status: int) -> dict[str, object]:
    if status == 408:  # `GuardedProtocol` answers, which does not know the operation
        return _schema(ProblemBody)
    types: Mapping[Style, object] = {
        "openai": ProblemBody,
        "tei": TeiProblemBody,
        "cohere": CohereProblemBody,
        "mcp": operation.response,
    }
    styles = dict.fromkeys([operation.style, *operation.styles.values()])
    schemas = [_schema(types[style]) for style in styles]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _path_parameters(path: str) -> list[dict[str, object]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)", path)
    ]


def _query_parameters(operation: AnyOperation) -> list[dict[str, object]]:
    return [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in operation.parameters.items()
    ]


def _schema(kind: object) -> dict[str, object]:
    (schema,), _ = msgspec.json.schema_components(
        [kind], ref_template="#/components/schemas/{name}"
    )
    return schema


def _structs(types: Sequence[object]) -> list[type[msgspec.Struct]]:
    """Return all struct types that the given types are or contain."""
    found: dict[type[msgspec.Struct], None] = {}

    def visit(info: msgspec.inspect.Type) -> None:
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in found:
                return
            found[info.cls] = None
            for field in info.fields:
                visit(field.type)
        elif isinstance(info, msgspec.inspect.UnionType):
            for each in info.types:
                visit(each)
        elif isinstance(info, msgspec.inspect.ListType):
            visit(info.item_type)
        elif isinstance(info, msgspec.inspect.DictType):
            visit(info.value_type)

    for info in msgspec.inspect.multi_type_info(types):
        visit(info)
    return list(found)


def _describe(schema: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Take the descriptions of a schema and of its properties from the struct's docstring."""
    text = getdoc(kind) or ""
    schema["description"] = text.partition("\n\nAttributes:")[0]
    properties = schema.get("properties", {})
    for name, description in described(kind).items():
        if name in properties and "$ref" not in properties[name]:
            properties[name]["description"] = description
