"""Requests of other services' clients, recorded from them, get answers in their own form."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from sbert_search.embed.embedder import Embedder
from sbert_search.embed.vectors import quantize
from sbert_search.models.sequence_classifier import CrossEncoder
from sbert_search.search.pair_engines import NativePairEngine
from sbert_search.search.rerankers import Reranker
from sbert_search.serve.model_schemas import TASKS, InputType
from tests.models.tiny import TEXTS, tiny_bi_encoder
from tests.serve.live import Live, live_server

CLIENTS = json.loads(Path(__file__).with_name("clients.json").read_text())
# Those of classifiers are a wing's.
ASKED = [one for one in CLIENTS if one["path"] != "/predict"]
QUERY = "the red cat"


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedding model that has prompts."""
    folder = tmp_path_factory.mktemp("prompted")
    prompts = {"query": "red ", "document": "the "}
    tiny_bi_encoder(folder / "of-prompted", prompts=prompts).save(folder / "prompted")
    return folder / "prompted"


@pytest.fixture(scope="module")
def doors(models: Path, prompted: Path) -> Iterator[Live]:
    """A server with a model of each kind; the embedding model has prompts."""
    options = ("--embed", prompted, "--rerank", models / "cross")
    with live_server(*options, "--precision", "fp32", cwd=models) as server:
        yield server


@pytest.fixture(scope="module")
def embedder(prompted: Path) -> Embedder:
    return Embedder(prompted, precision="fp32")


@pytest.mark.parametrize("recorded", ASKED, ids=lambda recorded: recorded["client"])
def test_a_recorded_request_is_answered(doors: Live, recorded: Any) -> None:
    answer = doors.ask("POST", recorded["path"], recorded["body"])
    assert answer.status == 200, answer.raw
    if recorded["answer"] is None:
        assert isinstance(answer.json, list)
    else:
        assert list(answer.json) == recorded["answer"]


def test_the_root_embeds_as_tei_does(doors: Live, embedder: Embedder) -> None:
    found = doors.post("/", inputs=TEXTS[:3]).json
    expected = embedder.encode(TEXTS[:3], normalize_embeddings=True)
    np.testing.assert_allclose(np.array(found), expected, atol=1e-6)
    assert doors.ask("GET", "/").raw.startswith(b"<!doctype html>")


def test_the_root_is_of_the_kind_of_the_model(models: Path) -> None:
    with live_server("--rerank", models / "cross", cwd=models) as server:
        assert server.post("/", query="cat", texts=["cat"]).json[0]["index"] == 0


@pytest.mark.parametrize(
    ("field", "value", "task"),
    [
        ("input_type", "search_query", "query"),
        ("input_type", "passage", "document"),
        ("task", "retrieval.query", "query"),
        ("task", "retrieval.passage", "document"),
        ("task", "text-matching", None),
    ],
)
def test_words_of_every_dialect_choose_the_prompt(
    doors: Live, embedder: Embedder, field: str, value: str, task: Any
) -> None:
    answer = doors.ask("POST", "/v1/embeddings", {"input": "cat", field: value}).json
    encode = {"query": embedder.encode_query, "document": embedder.encode_document}
    expected = encode.get(task, embedder.encode)(["cat"])
    np.testing.assert_allclose(answer["data"][0]["embedding"], expected[0], atol=1e-6)
    assert not np.allclose(embedder.encode_query(["cat"]), embedder.encode_document(["cat"]))


def test_every_word_has_its_task() -> None:
    assert list(TASKS) == list(get_args(InputType))


def test_vectors_have_the_forms_of_cohere(doors: Live, embedder: Embedder) -> None:
    types = ["float", "base64", "binary", "ubinary"]
    body = {"texts": TEXTS[:2], "input_type": "search_document", "embedding_types": types}
    answer = doors.ask("POST", "/v2/embed", body).json
    expected = embedder.encode_document(TEXTS[:2])
    found = answer["embeddings"]
    np.testing.assert_allclose(found["float"], expected, atol=1e-6)
    decoded = [np.frombuffer(base64.b64decode(one), "<f4") for one in found["base64"]]
    np.testing.assert_allclose(decoded, expected, atol=1e-6)
    assert found["binary"] == quantize(expected, "binary").tolist()
    assert found["ubinary"] == quantize(expected, "ubinary").tolist()
    assert answer["texts"] == TEXTS[:2]
    assert answer["meta"]["billed_units"]["input_tokens"] > 0
    contents = [{"content": [{"type": "text", "text": text}]} for text in TEXTS[:2]]
    same = {"inputs": contents, "input_type": "search_document", "embedding_types": ["float"]}
    by_content = doors.ask("POST", "/v2/embed", same).json
    assert (by_content["embeddings"]["float"], by_content["texts"]) == (found["float"], TEXTS[:2])
    mixed = doors.post("/v2/embed", inputs=[contents[0], "a"])
    assert (mixed.status, mixed.json["message"][:11]) == (400, "`inputs[1]`")
    first = doors.post("/v1/embed", texts=TEXTS[:2], input_type="search_document").json
    assert first["response_type"] == "embeddings_floats"
    np.testing.assert_allclose(first["embeddings"], expected, atol=1e-6)
    short = doors.ask("POST", "/v2/embed", {**body, "output_dimension": 4}).json
    assert np.array(short["embeddings"]["float"]).shape == (2, 4)


def test_the_start_of_a_text_is_cut(doors: Live, embedder: Embedder) -> None:
    long, end = "the dog ran " * 20 + "in the red sun", "the dog ran " * 6 + "in the red sun"
    ids = embedder.tokenize([end]).ids[0]
    assert len(ids) == embedder.max_len  # so all of the end is read, and nothing else
    expected = embedder.encode([end])[0]
    for body in ({"truncation_direction": "left"}, {"truncate": "START"}):
        found = doors.ask("POST", "/embed", {"inputs": long, "normalize": False, **body})
        np.testing.assert_allclose(found.json[0], expected, atol=1e-6)
        assert found.headers["x-truncated-texts"] == "1"
    refused = doors.post("/v2/embed", texts=[long], truncate="NONE")
    assert refused.status == 400  # Cohere's "too many tokens"


def test_raw_scores_are_logits(doors: Live, models: Path) -> None:
    raw = doors.post("/rerank", query=QUERY, texts=TEXTS[:3], raw_scores=True).json
    model = CrossEncoder.load(models / "cross")
    engine = NativePairEngine(model)
    assert engine.has_sigmoid
    scores = Reranker(model).predict([(QUERY, TEXTS[one["index"]]) for one in raw])
    engine.use_logits()
    logits = Reranker(model).predict([(QUERY, TEXTS[one["index"]]) for one in raw])
    np.testing.assert_allclose([one["score"] for one in raw], logits, atol=1e-5)
    plain = doors.post("/rerank", query=QUERY, texts=TEXTS[:3]).json
    np.testing.assert_allclose([one["score"] for one in plain], scores, atol=1e-6)
    assert max(logits.tolist()) > 0 > min(np.log(scores / 2).tolist())


def test_fields_of_documents_are_ranked(doors: Live) -> None:
    documents = [{"title": "cat", "body": "the dog", "year": 3}, {"body": "red sun"}]
    body = {"query": QUERY, "documents": documents, "return_documents": True}
    found = doors.ask("POST", "/rerank", {**body, "rank_fields": ["title", "body"]}).json
    texts = doors.post("/rerank", query=QUERY, documents=["cat\nthe dog", "red sun"]).json
    scores = {one["index"]: one["relevance_score"] for one in texts["results"]}
    for one in found["results"]:
        assert one["relevance_score"] == scores[one["index"]]
        assert one["document"] == documents[one["index"]]


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/rerank", {"query": "", "texts": ["a"]}, "tei"),
        ("/rerank", {"query": "", "documents": ["a"]}, "openai"),
        ("/v2/rerank", {"query": "", "documents": ["a"]}, "cohere"),
        ("/v2/embed", {"texts": []}, "cohere"),
        ("/v1/embed", {"texts": []}, "cohere"),
        ("/v1/embed", {"texts": [1]}, "cohere"),
        ("/embed", {"inputs": []}, "tei"),
        ("/", {}, "tei"),
    ],
)
def test_an_error_has_the_form_that_its_client_reads(
    doors: Live, path: str, body: object, error: str
) -> None:
    answer = doors.ask("POST", path, body)
    assert answer.status == 400
    found = answer.json
    fields = {"openai": ["error"], "tei": ["error", "error_type"], "cohere": ["message"]}
    assert list(found) == fields[error]
    assert isinstance(found[fields[error][0]], dict if error == "openai" else str)


def test_a_wrong_word_lists_the_known_ones(doors: Live) -> None:
    for body, known in (
        (
            {"input": "a", "input_type": "image"},
            "classification, clustering, document",
        ),
        ({"input": "a", "encoding_format": "int8"}, "base64, float"),
    ):
        answer = doors.ask("POST", "/v1/embeddings", body)
        assert f"; known: {known}" in answer.json["error"]["message"]
    types = doors.post("/v2/embed", texts=["a"], embedding_types=["int8"])
    assert "int8'; known: base64, binary, float, ubinary." in types.json["message"]
    differ = doors.post("/embeddings", input="a", input_type="query", task="passage")
    assert differ.json["error"]["param"] == "task"


def test_a_model_is_described_by_name(doors: Live) -> None:
    for name in ("prompted", "cross"):
        assert doors.ask("GET", f"/v1/models/{name}").json["id"] == name
    none = doors.ask("GET", "/v1/models/a%2Fb")
    assert (none.status, none.json["error"]["param"]) == (404, "id")


def test_a_server_is_warm_before_it_is_ready(tiny: Live, models: Path) -> None:
    with live_server(models / "tiny.index", "--rerank", models / "cross", cwd=models) as server:
        metrics = server.ask("GET", "/metrics").raw.decode()
        batches = [line for line in metrics.splitlines() if "batch" in line and "_count" in line]
        assert any(int(float(line.split()[-1])) >= 3 for line in batches), batches
