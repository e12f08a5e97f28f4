import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as LibraryCrossEncoder
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sbert_search.errors import ModelError, WeightsError
from sbert_search.models.sequence_classifier import CrossEncoder
from sbert_search.search.rerankers import Reranker
from tests.models.tiny import PAIRS, tiny_cross_encoder, tiny_encoder, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {"pooler": True},
    "albert": {"pooler": True, "embedding_size": 8, "layer_groups": 1},
    "roberta": {"position_offset": 1},
    "xlm-roberta": {"pad_id": 1, "position_offset": 2, "token_type_vocab": 1},
    "mpnet": {"pad_id": 1, "position_offset": 2, "token_type_vocab": 0, "position_buckets": 32},
    "electra": {},
    "distilbert": {"token_type_vocab": 0},
    "deberta": {
        "position_embeddings": False,
        "token_type_vocab": 0,
        "attention_terms": ("c2c", "c2p", "p2c"),
        "relative_positions": 32,
        "key_bias": False,
    },
}


def theirs(path: Path) -> LibraryCrossEncoder:
    model: LibraryCrossEncoder = LibraryCrossEncoder(str(path), device="cpu")
    return model


@pytest.mark.parametrize("labels", [("score",), ("no", "maybe", "yes")])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_we_save_the_library_loads_with_equal_scores(
    tmp_path: Path, family: str, labels: tuple[str, ...]
) -> None:
    encoder = tiny_encoder(layout=family, initializer_range=0.3, **FAMILIES[family])
    model = CrossEncoder(encoder, tiny_tokenizer(tmp_path / "tokens"), labels=labels)
    model.save(tmp_path / "saved")
    ours, library = Reranker(model), theirs(tmp_path / "saved")
    scores = ours.predict(PAIRS)
    np.testing.assert_allclose(scores, library.predict(PAIRS), atol=5e-6)
    assert float(np.ptp(scores)) > 1e-3
    again = CrossEncoder.load(tmp_path / "saved")
    assert again.labels == labels
    np.testing.assert_array_equal(Reranker(again).predict(PAIRS), scores)


def test_logits_equal_those_of_transformers(tmp_path: Path) -> None:
    model = tiny_cross_encoder(tmp_path / "tokens", labels=["no", "yes"])
    model.save(tmp_path / "saved")
    reference = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert reference.config.id2label == {0: "no", 1: "yes"}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    with torch.inference_mode():
        for pair in PAIRS:
            batch = tokenizer([pair[0]], [pair[1]], truncation=True, return_tensors="pt")
            ours = model(model.pack(model.tokenizer.encode_pairs([pair])))
            torch.testing.assert_close(ours, reference(**batch).logits, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Identity(), nn.Tanh()])
def test_the_activation_travels_both_ways(tmp_path: Path, activation: nn.Module) -> None:
    model = tiny_cross_encoder(tmp_path / "tokens", activation=activation)
    model.save(tmp_path / "ours")
    library = theirs(tmp_path / "ours")
    library.save_pretrained(str(tmp_path / "theirs"))
    scores = Reranker(model).predict(PAIRS)
    np.testing.assert_allclose(library.predict(PAIRS), scores, atol=5e-6)
    back = Reranker(str(tmp_path / "theirs"), device="cpu", precision="fp32")
    assert back.opened.engine.name == "native"
    assert back.max_len == model.tokenizer.max_len
    np.testing.assert_allclose(back.predict(PAIRS), scores, atol=5e-6)


def test_a_fresh_head_is_drawn_and_trains(tmp_path: Path) -> None:
    model = tiny_cross_encoder(tmp_path).train()
    model(model.pack(model.tokenizer.encode_pairs(PAIRS))).sum().backward()
    unused = [name for name, part in model.named_parameters() if part.grad is None]
    assert unused == []


def test_a_bert_without_a_pooler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="reads the pooler"):
        CrossEncoder(tiny_encoder(), tiny_tokenizer(tmp_path))


def test_a_head_of_another_shape_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    weights = tmp_path / "saved" / "model.safetensors"
    state = load_file(weights)
    save_file({**state, "classifier.bias": torch.zeros(7)}, weights)
    with pytest.raises(WeightsError, match="classifier does not fit"):
        CrossEncoder.load(tmp_path / "saved")
    del state["classifier.weight"]
    save_file(state, weights)
    with pytest.raises(WeightsError, match=r"no classifier\.weight; it is not a classifier"):
        CrossEncoder.load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["BertModel"]}, r"its architecture is \['BertModel'\]"),
        ({"model_type": "nomic_bert"}, "is of type 'nomic_bert'"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.CELU"}}, "activation is torch"),
    ],
)
def test_what_we_cannot_compute_is_said(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    config = tmp_path / "saved" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), **changes}), "utf-8")
    with pytest.raises(ModelError, match=reason):
        CrossEncoder.load(tmp_path / "saved")
