from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sbert_search.errors import ConfigError, ModelError, WeightsError
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.weights import load_encoder, read_checkpoint, save_encoder
from tests.models.encoder.small import small_encoder

Tensors = dict[str, Tensor]
QUERY = "encoder.layer.0.attention.self.query.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_encoder(small_encoder(pooler=True), tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def rewrite_settings(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def assert_loads_equal(folder: Path) -> None:
    expected = small_encoder(pooler=True).state_dict()
    for name, tensor in load_encoder(folder).state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_published_variants_load_equal(folder: Path) -> None:
    assert_loads_equal(folder)
    rewrite(folder, lambda t: t.update({"embeddings.position_ids": torch.arange(12)[None]}))
    assert_loads_equal(folder)

    def rename_norms(tensors: Tensors) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            tensors[old.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)

    rewrite(folder, rename_norms)
    assert_loads_equal(folder)

    def add_prefix(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors["bert." + name] = tensors.pop(name)

    rewrite(folder, add_prefix)
    assert_loads_equal(folder)


def test_shards_load_equal(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for shard in set(places.values()):
        save_file({n: t for n, t in tensors.items() if places[n] == shard}, folder / shard)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert_loads_equal(folder)

    index.write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    with pytest.raises(WeightsError, match=r"names '\.\./outside\.safetensors', which is not in"):
        load_encoder(folder)
    index.write_text(json.dumps({"weight_map": {"a": 5}}))
    with pytest.raises(WeightsError, match="names 5, which is not in the folder"):
        load_encoder(folder)
    for text in ("[]", "[" * 100_000):
        index.write_text(text)
        with pytest.raises(WeightsError, match="is not an index of weights"):
            load_encoder(folder)


def test_head_travels_beside_the_encoder(tmp_path: Path) -> None:
    encoder = small_encoder()
    head = {"classifier.weight": torch.ones(3, 24), "cls.predictions.bias": torch.ones(50)}
    save_encoder(encoder, tmp_path, head=head, settings={"architectures": ["BertForX"]})
    assert "bert.embeddings.word_embeddings.weight" in load_file(tmp_path / "model.safetensors")
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.encoder.config == encoder.config
    assert checkpoint.settings["architectures"] == ["BertForX"]
    assert checkpoint.head.keys() == head.keys()
    assert not checkpoint.encoder.training


def test_weights_in_half_precision_become_float32(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({name: part.bfloat16() for name, part in t.items()}))
    assert {part.dtype for part in load_encoder(folder).parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(QUERY), rf"not of type 'bert'\. Missing: {QUERY}\. Take config"),
        (
            lambda t: t.update({"encoder.layer.9.output.dense.bias": torch.ones(24)}),
            r"Unknown: encoder\.layer\.9\.output\.dense\.bias\. Take",
        ),
        (
            lambda t: t.update({QUERY: torch.ones(24, 23)}),
            rf"{QUERY} has shape \(24, 23\); config.json asks for \(24, 24\)",
        ),
        (
            lambda t: t[QUERY][3].fill_(float("nan")),
            rf"{QUERY} holds NaN or infinity",
        ),
        (
            lambda t: t.update({"embeddings.word_embeddings.weight": torch.ones(40, 24)}),
            r"word_embeddings.weight has shape \(40, 24\); config.json asks for \(50, 24\)",
        ),
    ],
    ids=["missing", "unknown", "shape", "nan", "vocabulary"],
)
def test_weights_that_do_not_fit_are_named(
    folder: Path, change: Callable[[Tensors], object], message: str
) -> None:
    rewrite(folder, change)
    with pytest.raises(WeightsError, match=message):
        load_encoder(folder)


def test_a_name_with_and_without_prefix_is_refused(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"bert." + QUERY: torch.ones(24, 24)}))
    with pytest.raises(WeightsError, match=r"twice, with and without the prefix 'bert\.'"):
        load_encoder(folder)


def test_many_missing_names_are_counted(folder: Path) -> None:
    rewrite_settings(folder, num_hidden_layers=3)
    with pytest.raises(WeightsError, match=r"Missing: encoder\.layer\.2.* and 11 more\. "):
        load_encoder(folder)


def test_wrong_family_is_recognised(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "distilbert"
    save_encoder(small_encoder(layout="distilbert", token_type_vocab=0), other)
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(WeightsError, match=r"not of type 'bert'.*names of type 'distilbert'"):
        load_encoder(folder)


def test_cut_file_is_damaged(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged or cut off"):
        load_encoder(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_are_refused_with_a_way_out(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(ModelError, match=rf"{name}, a pickle.*spaces/safetensors/convert"):
        load_encoder(folder)


def test_folder_without_weights_is_no_model(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no model\.safetensors; name a folder that has it"):
        load_encoder(folder)
    with pytest.raises(ModelError, match=r"cannot be read.*Is its folder a model"):
        load_encoder(folder / "absent")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": None}, 'names no "model_type"'),
        ({"model_type": "t5"}, "is of type 't5'; the native encoder supports BERT, RoBERTa"),
        ({"is_decoder": True}, "is_decoder is True; the native encoder needs False"),
        ({"hidden_act": "swish"}, "activation 'swish' is unknown; known: gelu"),
        ({"hidden_size": "24"}, "hidden_size is '24'; it must be of type int"),
        ({"num_attention_heads": 5}, "hidden_size 24 is not a multiple of heads 5"),
    ],
)
def test_settings_that_cannot_be_are_named(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    rewrite_settings(folder, **changes)
    with pytest.raises(ModelError, match=message):
        load_encoder(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_groups": 1}, r"'bert' cannot hold layer_groups = 1, only None"),
        ({"embedding_size": 8}, r"'bert' cannot hold embedding_size = 8"),
        (
            {"layout": "deberta", "attention_terms": ("c2p",), "relative_positions": 4}
            | {"key_bias": False},
            r"'deberta' cannot hold attention_terms",
        ),
        (
            {"layout": "electra", "pooler": True},
            r"'electra' cannot hold pooler = True, only False",
        ),
        (
            {"layout": "distilbert", "token_type_vocab": 0, "pooler": True},
            r"'distilbert' cannot hold pooler = True, only False",
        ),
        (
            {"layout": "deberta", "key_bias": False, "pooler": True},
            r"'deberta' cannot hold pooler = True, only False",
        ),
    ],
)
def test_what_a_layout_cannot_hold_is_not_saved(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        save_encoder(small_encoder(**changes), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_nothing_is_overwritten(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json exists already; name another folder"):
        save_encoder(small_encoder(), folder)


def test_loaded_encoder_trains(folder: Path) -> None:
    encoder = load_encoder(folder).train()
    torch.autograd.backward(encoder(PackedTokens.from_lists([[1, 2]])).hidden_states.sum())
    gradients = [p.grad for p in encoder.blocks.parameters()]
    assert all(gradient is not None for gradient in gradients)


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "type_vocab_size",
    ],
)
def test_sizes_that_would_take_all_memory_are_refused(folder: Path, key: str) -> None:
    rewrite_settings(folder, **{key: 12 * 10**12})
    with pytest.raises(WeightsError, match=r"config\.json asks for .* 12,000,000,000,000, and"):
        load_encoder(folder)
