"""What a worker that embeds says of its machine, without Ray."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sbert_search.cluster import pool as worker
from sbert_search.cluster.pool import EmbeddingWorker, OpenModel, Texts
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TextEmbedder, TokenizedTexts, Vectors
from sbert_search.errors import ClusterError, CorpusError, ModelError
from sbert_search.text.tokens.chunking import AT_BORDERS
from tests.cluster.processes import VERSIONS

MODEL = HashingEmbedder(16)


class Failing(HashingEmbedder):
    """Fails at a text, as if the device had too little memory for it."""

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        if "large" in tokens.texts:
            raise ModelError("One text takes more memory than the GPU has.")
        return super().encode_tokens(tokens)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "host_and_python", lambda: VERSIONS)


def texts(*values: str) -> Texts:
    ids = [str(n) for n in range(len(values))]
    return Texts(ids, [""] * len(ids), list(values), "error", AT_BORDERS)


def test_an_error_of_the_model_names_the_machine() -> None:
    embeds = EmbeddingWorker()
    embeds.open(OpenModel(lambda: Failing(16), MODEL.identity, VERSIONS[1], 1))
    assert embeds.embed(texts("small")).vectors.shape == (1, 16)
    with pytest.raises(ClusterError, match=r"^here: One text takes more memory than the GPU has"):
        embeds.embed(texts("small", "large"))
    too_long = "word " * (MODEL.max_len + 1)
    with pytest.raises(CorpusError, match=r"^document '0' has"):  # the same on each machine
        embeds.embed(texts(too_long))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("weights_sha256", "a"), ("tokenizer_sha256", "a"), ("architecture", "bert")),
        *(("pooling", "cls"), ("max_len", 8), ("normalize", False), ("similarity", "dot")),
        *(("prompts", {"query": "q: "}), ("engine", "onnx"), ("precision", "bf16")),
        ("calibration", "a"),
    ],
)
def test_a_model_that_differs_on_a_machine_is_refused(field: str, value: Any) -> None:
    changes: dict[str, Any] = {field: value}
    wanted = dataclasses.replace(MODEL.identity, **changes)
    with pytest.raises(ClusterError, match=rf"^here opens .* \({field}: .*, not .*\)\. Copy"):
        EmbeddingWorker().open(OpenModel(lambda: HashingEmbedder(16), wanted, VERSIONS[1], 1))


def test_a_model_of_another_name_is_opened() -> None:
    wanted = dataclasses.replace(MODEL.identity, name="elsewhere")
    EmbeddingWorker().open(OpenModel(lambda: HashingEmbedder(16), wanted, VERSIONS[1], 1))


@pytest.mark.parametrize("error", [ModelError, FileNotFoundError, RuntimeError, ImportError])
def test_a_model_that_does_not_open_names_the_machine(error: type[Exception]) -> None:
    def make() -> TextEmbedder:
        raise error("no model")

    with pytest.raises(ClusterError, match=r"^here: no model"):
        EmbeddingWorker().open(OpenModel(make, MODEL.identity, VERSIONS[1], 1))
