"""The OpenAPI document: complete, and true of the server's answers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sbert_search.serve.app import OPERATIONS
from sbert_search.serve.openapi import openapi_document
from tests.serve.live import Live


@pytest.fixture(scope="module")
def document() -> Any:
    return openapi_document(OPERATIONS)


def test_every_path_and_method_is_described(document: Any) -> None:
    described = {
        (path, method.upper()) for path, item in document["paths"].items() for method in item
    }
    served = {
        (path.replace(":path}", "}"), operation.method)
        for operation in OPERATIONS
        for path in operation.paths
    }
    assert described == served
    assert ("/v1/embeddings", "POST") in described
    assert ("/embeddings", "POST") in described
    assert ("/v2/rerank", "POST") in described


def test_operation_ids_are_unique_and_references_lead_somewhere(document: Any) -> None:
    ids = [one["operationId"] for item in document["paths"].values() for one in item.values()]
    assert len(ids) == len(set(ids))
    names = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert names <= document["components"]["schemas"].keys()


def test_every_property_of_a_request_is_explained(document: Any) -> None:
    schemas = document["components"]["schemas"]
    requests = "SearchRequest EmbeddingsRequest RerankRequest EmbedRequest PredictRequest"
    for name in requests.split():
        properties = schemas[name]["properties"]
        missing = [one for one, schema in properties.items() if "description" not in schema]
        assert not missing, (name, missing)
        assert "Attributes:" not in schemas[name]["description"]


def test_errors_have_the_form_of_the_operation_but_for_late_requests(document: Any) -> None:
    forms = {
        (path, status): document["paths"][path]["post"]["responses"][status]["content"][
            "application/json"
        ]["schema"]
        for path, status in (("/predict", "400"), ("/predict", "408"), ("/rerank", "400"))
    }
    openai, tei = (
        {"$ref": f"#/components/schemas/{name}"} for name in ("ProblemBody", "TeiProblemBody")
    )
    assert forms == {
        ("/predict", "400"): tei,
        ("/predict", "408"): openai,
        ("/rerank", "400"): {"anyOf": [openai, tei]},
    }


def test_the_server_sends_the_document(live: Live, document: Any) -> None:
    for path in ("/openapi.json", "/v1/openapi.json"):
        assert live.ask("GET", path).json == document
