import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import NomicBertConfig, NomicBertForSequenceClassification, NomicBertModel

from sbert_search.embed.embedder import Embedder
from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.loading.interchange import load_sentence_transformer
from sbert_search.search.rerankers import Reranker
from tests.models.tiny import PAIRS, TEXTS, TOKENS, tiny_bi_encoder, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}


def save_other(folder: Path, *, pairs: bool = False) -> Path:
    torch.manual_seed(0)
    shape: dict[str, Any] = {**SMALL, "num_labels": 1, "initializer_range": 0.3}
    config = NomicBertConfig(**shape)
    model = NomicBertForSequenceClassification(config) if pairs else NomicBertModel(config)
    model.save_pretrained(folder)
    tiny_tokenizer(folder).save(folder, segments=False)
    return folder


def test_other_architectures_go_through_the_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = Embedder(save_other(tmp_path), device="cpu")
    assert "is of type 'nomic_bert'" in capsys.readouterr().err
    assert ours.identity.engine == "sentence-transformers"
    assert ours.identity.architecture == "nomic_bert"
    assert (ours.identity.pooling, ours.dim, ours.max_len) == ("mean", 16, 24)
    library = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_allclose(ours.encode(TEXTS), library.encode(TEXTS), atol=1e-6)
    assert ours.tokenize(["cat " * 30]).lost.tolist() == [8]


def test_other_rerankers_go_through_the_library(tmp_path: Path) -> None:
    ours = Reranker(save_other(tmp_path, pairs=True), device="cpu")
    assert ours.identity.engine == "sentence-transformers"
    library = CrossEncoder(str(tmp_path), device="cpu")
    np.testing.assert_allclose(ours.predict(PAIRS), library.predict(PAIRS), atol=1e-6)


def test_what_the_library_cannot_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}', "utf-8")
    with pytest.raises(ModelError, match="sentence-transformers cannot load"):
        load_sentence_transformer(tmp_path)


@pytest.mark.parametrize("kind", ["SparseEncoder", "CrossEncoder"])
def test_a_model_of_another_kind_is_refused(tmp_path: Path, kind: str) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    settings = tmp_path / "saved" / "config_sentence_transformers.json"
    settings.write_text(json.dumps({"model_type": kind}), "utf-8")
    with pytest.raises(ModelError, match=rf"is a {kind}.*\. A SentenceTransformer is needed here"):
        Embedder(tmp_path / "saved")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("Router", "Router sends queries and documents through different modules"),
        ("Asym", "Asym sends queries and documents through different modules"),
        (
            "CNN",
            "does not support the module CNN. Choose a model that has only these modules: "
            "Transformer, Pooling",
        ),
        ("LSTM", "does not support the module LSTM"),
        ("BoW", "does not support the module BoW"),
        ("WordEmbeddings", "does not support the module WordEmbeddings"),
        ("CLIPModel", "does not support the module CLIPModel"),
    ],
)
@pytest.mark.parametrize("engine", ["native", "sentence-transformers", "onnx"])
def test_modules_that_cannot_be_computed_are_refused(
    tmp_path: Path, kind: str, told: str, engine: Any
) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    listing = json.loads((tmp_path / "saved" / "modules.json").read_text("utf-8"))
    listing[1]["type"] = f"sentence_transformers.models.{kind}"
    (tmp_path / "saved" / "modules.json").write_text(json.dumps(listing), "utf-8")
    with pytest.raises(ModelError, match=told):
        Embedder(tmp_path / "saved", engine=engine)


@pytest.mark.parametrize("engine", ["native", "sentence-transformers"])
def test_modules_that_give_no_vector_are_refused(tmp_path: Path, engine: Any) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    listing = json.loads((tmp_path / "saved" / "modules.json").read_text("utf-8"))
    (tmp_path / "saved" / "modules.json").write_text(json.dumps(listing[:1]), "utf-8")
    with pytest.raises(ModelError, match="no vector of a text with the modules Transformer"):
        Embedder(tmp_path / "saved", engine=engine, device="cpu")


def test_an_object_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"A list is not a model.*SentenceTransformer"):
        Embedder([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"A list is not a model.*CrossEncoder"):
        Reranker([1, 2])  # type: ignore[arg-type]
