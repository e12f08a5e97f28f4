"""Embeddings over HTTP equal those of `Embedder.encode`."""

from __future__ import annotations

import asyncio
import base64
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.embed.embedder import Embedder
from sbert_search.serve.access import AccessTokens, ServerLimits
from sbert_search.serve.endpoint import Call
from sbert_search.serve.model_schemas import SentencePair, SimilarityRequest, TokenizeRequest
from sbert_search.serve.problems import Problem
from sbert_search.serve.queue import Work
from sbert_search.serve.routes.embedding import similarities, tokenize
from sbert_search.serve.state import ServeSettings, open_served
from tests.models.tiny import TEXTS, tiny_static
from tests.serve.live import Live

NAMES = ["/embeddings", "/v1/embeddings"]


@pytest.fixture(scope="module")
def embedder(models: Path) -> Embedder:
    return Embedder(models / "bi", precision="fp32")


def vectors(answer: Any) -> np.ndarray[Any, Any]:
    data = answer.json["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return np.array([one["embedding"] for one in data], np.float32)


@pytest.mark.parametrize("path", NAMES)
def test_texts_get_the_vectors_of_the_model(tiny: Live, embedder: Embedder, path: str) -> None:
    answer = tiny.post(path, input=TEXTS, model="any-name")
    assert answer.status == 200
    np.testing.assert_allclose(vectors(answer), embedder.encode(TEXTS), atol=1e-6)
    tokens = embedder.tokenize(TEXTS)
    assert answer.json["model"] == "bi"
    assert answer.json["object"] == "list"
    assert answer.json["usage"] == {
        "prompt_tokens": int(tokens.lengths.sum()),
        "total_tokens": int(tokens.lengths.sum()),
        "truncated_texts": int((tokens.lost > 0).sum()),
    }
    assert [one["truncated"] for one in answer.json["data"]] == (tokens.lost > 0).tolist()
    assert tokens.lost.any()
    one = tiny.post(path, input=TEXTS[0])
    np.testing.assert_allclose(vectors(one)[0], embedder.encode(TEXTS[0]), atol=1e-6)


def test_base64_is_little_endian_float32(tiny: Live, embedder: Embedder) -> None:
    data = tiny.post("/v1/embeddings", input=TEXTS, encoding_format="base64").json["data"]
    decoded = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in data]
    np.testing.assert_allclose(np.array(decoded), embedder.encode(TEXTS), atol=1e-6)


def test_token_ids_are_those_of_tokenize(tiny: Live, embedder: Embedder) -> None:
    [tokens] = tiny.post("/tokenize", inputs="The cat sat").json
    assert [token["text"] for token in tokens] == ["[CLS]", "The", "cat", "sat", "[SEP]"]
    assert [token["special"] for token in tokens] == [True, False, False, False, True]
    assert (tokens[2]["start"], tokens[2]["stop"]) == (4, 7)
    ids = [token["id"] for token in tokens]
    expected = embedder.encode("The cat sat")
    for given in (ids, [ids]):
        answer = tiny.post("/v1/embeddings", input=given)
        np.testing.assert_allclose(vectors(answer)[0], expected, atol=1e-6)
    [bare] = tiny.post("/tokenize", inputs=["The cat sat"], add_special_tokens=False).json
    assert bare == tokens[1:-1]


def test_tokenize_answers_no_more_tokens_than_a_request_may_have(models: Path) -> None:
    limits, tokens = ServerLimits(request_tokens=4), AccessTokens({})
    settings = ServeSettings(indexes={}, models=[str(models / "bi")], tokens=tokens, limits=limits)
    served = open_served(settings)
    for text, allowed in (("cat cat cat cat", True), ("cat cat cat cat cat", False)):
        call = Call(TokenizeRequest(inputs=text), {}, {}, Work(), {})
        with (
            nullcontext()
            if allowed
            else pytest.raises(Problem, match="5 tokens; a request may have 4")
        ):
            asyncio.run(tokenize(served, call))


@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        ([], 400, "input"),
        ([[]], 400, "input[0]"),
        ([99_999], 400, "input[0]"),
        ([[2, 3], [-1]], 400, "input[1]"),
        ([10**30], 400, "input[0]"),
        ([[5] * 25], 413, "input[0]"),
        (["a", 1], 400, "input[1]"),
        ([1, "a"], 400, "input[1]"),
        ([["a"]], 400, "input[0][0]"),
        (None, 400, "input"),
        (["x"] * 2049, 413, "input"),
        ([5] * 3000, 413, "input[0]"),  # one text that is too long, and not 3,000 texts
    ],
)
def test_wrong_inputs_are_named(tiny: Live, given: object, status: int, param: str) -> None:
    answer = tiny.post("/v1/embeddings", input=given)
    assert (answer.status, answer.json["error"]["param"]) == (status, param), answer.raw


def test_dimensions_are_cut_as_the_model_does(tiny: Live, embedder: Embedder) -> None:
    answer = tiny.post("/v1/embeddings", input=TEXTS, dimensions=4)
    expected = embedder.encode(TEXTS, truncate_dim=4)
    np.testing.assert_allclose(vectors(answer), expected, atol=1e-6)
    wrong = tiny.post("/v1/embeddings", input=TEXTS, dimensions=17)
    assert (wrong.status, wrong.json["error"]["param"]) == (400, "dimensions")
    unknown = tiny.post("/v1/embeddings", input="x", prompt_name="none")
    assert (unknown.status, unknown.json["error"]["param"]) == (400, "prompt_name")


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_embed_has_the_form_of_tei(tiny: Live, embedder: Embedder, prefix: str) -> None:
    answer = tiny.post(f"{prefix}/embed", inputs=TEXTS, normalize=False)
    np.testing.assert_allclose(np.array(answer.json), embedder.encode(TEXTS), atol=1e-6)
    unit = tiny.post(f"{prefix}/embed", inputs=TEXTS[0]).json
    expected = embedder.encode([TEXTS[0]], normalize_embeddings=True)
    np.testing.assert_allclose(np.array(unit), expected, atol=1e-6)
    refused = tiny.post(f"{prefix}/embed", inputs=TEXTS, truncate=False)
    assert refused.status == 413
    assert refused.json["error_type"] == "Validation"
    assert refused.json["error"].startswith("`inputs[4]`: 31 tokens; the model reads 24. ")


def test_sentences_are_compared(tiny: Live, embedder: Embedder) -> None:
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:4]}
    answer = tiny.post("/similarity", inputs=inputs)
    expected = embedder.similarity(embedder.encode([TEXTS[0]]), embedder.encode(TEXTS[1:4]))
    np.testing.assert_allclose(answer.json, expected[0], atol=1e-6)
    empty = tiny.post("/similarity", inputs={"source_sentence": "a", "sentences": []})
    assert empty.status == 400


def test_a_named_model_compares_and_tokenizes(tmp_path: Path) -> None:
    one, two = (str(tiny_static(tmp_path / name, seed=n)) for n, name in enumerate(("one", "two")))
    served = open_served(ServeSettings(indexes={}, models=[one, two], tokens=AccessTokens({})))
    pair = SentencePair(source_sentence="the cat", sentences=["a dog"])
    for name in ("two", two, "org/two"):
        assert served.embedder(name).name == "two"
        body = SimilarityRequest(inputs=pair, model=name)
        found = asyncio.run(similarities(served, Call(body, {}, {}, Work(), {}))).value
        assert found == pytest.approx([cosine(two, "the cat", "a dog")], abs=1e-6)
    assert served.embedder("other").name == "one"
    assert found != pytest.approx([cosine(one, "the cat", "a dog")], abs=1e-3)


def cosine(model: str, first: str, second: str) -> float:
    vectors = Embedder(model).encode([first, second], normalize_embeddings=True)
    return float(vectors[0] @ vectors[1])


def test_the_models_are_listed(tiny: Live, models: Path) -> None:
    listed = tiny.ask("GET", "/v1/models").json
    assert [card["id"] for card in listed["data"]] == ["bi", "cross"]
    info = tiny.ask("GET", "/info")
    assert info.json["model_id"] == "bi"
    assert info.json["max_input_length"] == 24
    assert [one["kind"] for one in info.json["models"]] == ["embedding", "reranker"]
    assert str(models) not in info.raw.decode()


def test_a_model_without_token_ids_says_so(live: Live) -> None:
    answer = live.post("/v1/embeddings", input=[1, 2])
    assert (answer.status, answer.json["error"]["param"]) == (400, "input")
    assert "reads texts and no token ids" in answer.json["error"]["message"]
