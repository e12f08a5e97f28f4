import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import (
    Dense as LibraryDense,
)
from sentence_transformers.base.modules import (
    Normalize as LibraryNormalize,
)
from sentence_transformers.base.modules import (
    Transformer,
)
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from torch import nn

from sbert_search.embed.embedder import Embedder
from sbert_search.errors import ConfigError, ModelError, WeightsError
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.heads import Dense, Normalize
from sbert_search.models.loading.folder import read_folder
from sbert_search.text.tokens.tokenizer import TextTokenizer
from tests.models.tiny import TEXTS, tiny_bi_encoder, tiny_encoder, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


def vectors_of(model: BiEncoder) -> Any:
    return Embedder(model).encode(TEXTS)


def theirs(path: Path) -> SentenceTransformer:
    return SentenceTransformer(str(path), device="cpu", local_files_only=True)


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "normalised": {"head": [Normalize()]},
    "cls": {"pooling": ["cls"]},
    "max": {"pooling": ["max"]},
    "weighted": {"pooling": ["weightedmean"], "similarity": "dot"},
    "two modes": {"pooling": ["cls", "mean"], "head": [Dense(32, 8, activation=nn.GELU())]},
    "dense": {"head": [Dense(16, 12, bias=False), Dense(12, 6, activation=nn.Identity())]},
    "dense then unit": {"head": [Dense(16, 12), Normalize()]},
    "prompts": {"prompts": {"query": "cat ", "document": "dog "}},
    "default prompt": {"prompts": {"way": "far away "}, "default_prompt_name": "way"},
    "truncated": {"truncate_dim": 5},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_we_save_the_library_loads_with_equal_vectors(tmp_path: Path, shape: str) -> None:
    model = tiny_bi_encoder(tmp_path / "tokens", **SHAPES[shape])
    model.save(tmp_path / "saved")
    ours, library = Embedder(model), theirs(tmp_path / "saved")
    np.testing.assert_allclose(ours.encode(TEXTS), library.encode(TEXTS), atol=2e-6)
    np.testing.assert_allclose(ours.encode_query(TEXTS), library.encode_query(TEXTS), atol=2e-6)
    np.testing.assert_allclose(
        ours.encode_document(TEXTS), library.encode_document(TEXTS), atol=2e-6
    )
    np.testing.assert_allclose(
        ours.similarity(ours.encode(TEXTS), ours.encode(TEXTS)),
        library.similarity(library.encode(TEXTS), library.encode(TEXTS)),
        atol=5e-6,
    )
    np.testing.assert_array_equal(vectors_of(BiEncoder.load(tmp_path / "saved")), vectors_of(model))


@pytest.mark.parametrize(
    ("modes", "after"),
    [
        ("mean", []),
        (("cls", "mean"), [LibraryNormalize()]),
        ("lasttoken", [LibraryDense(16, 4, activation_function=nn.Sigmoid())]),
    ],
)
def test_we_load_what_the_library_saves_today(
    tmp_path: Path, modes: Any, after: list[nn.Module]
) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "first")
    transformer = Transformer(str(tmp_path / "first"))
    width = 16 * (2 if isinstance(modes, tuple) else 1)
    library = SentenceTransformer(
        modules=[transformer, Pooling(16, modes), *after], device="cpu", prompts={"query": "cat "}
    )
    library.max_seq_length = 20
    library.save_pretrained(str(tmp_path / "today"), create_model_card=False)
    assert "pooling_mode" in (tmp_path / "today" / "1_Pooling" / "config.json").read_text()
    ours = Embedder(str(tmp_path / "today"), device="cpu", precision="fp32")
    assert (ours.opened.engine.name, ours.max_len) == ("native", 20)
    assert ours.dim == (4 if after and not isinstance(after[0], LibraryNormalize) else width)
    np.testing.assert_allclose(ours.encode(TEXTS), library.encode(TEXTS), atol=2e-6)
    np.testing.assert_allclose(ours.encode_query(TEXTS), library.encode_query(TEXTS), atol=2e-6)


def test_the_written_form_is_the_one_that_v3_and_v5_read(tmp_path: Path) -> None:
    model = tiny_bi_encoder(tmp_path / "tokens", head=[Dense(16, 4), Normalize()])
    model.save(tmp_path / "saved")

    def read(name: str) -> Any:
        return json.loads((tmp_path / "saved" / name).read_text("utf-8"))

    assert [module["type"].rpartition(".")[0] for module in read("modules.json")] == [
        "sentence_transformers.models"
    ] * 4
    pooling = read("1_Pooling/config.json")
    assert pooling["word_embedding_dimension"] == 16
    assert [key for key, on in pooling.items() if on is True] == ["pooling_mode_mean_tokens"]
    assert read("sentence_bert_config.json") == {"max_seq_length": 24, "do_lower_case": False}
    assert read("2_Dense/config.json")["activation_function"] == "torch.nn.modules.activation.Tanh"
    assert read("tokenizer_config.json")["model_max_length"] == 24


def test_a_bare_transformers_folder_is_a_mean_pooled_encoder(tmp_path: Path) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (tmp_path / "saved" / name).unlink()
    ours = Embedder(str(tmp_path / "saved"), device="cpu", precision="fp32")
    assert ours.identity.pooling == "mean"
    np.testing.assert_allclose(
        ours.encode(TEXTS), theirs(tmp_path / "saved").encode(TEXTS), atol=2e-6
    )


def test_a_module_without_a_folder_is_normal(tmp_path: Path) -> None:
    tiny_bi_encoder(tmp_path / "tokens", head=[Normalize()]).save(tmp_path / "saved")
    for file in (tmp_path / "saved" / "2_Normalize").iterdir():
        file.unlink()
    (tmp_path / "saved" / "2_Normalize").rmdir()
    vectors = vectors_of(BiEncoder.load(tmp_path / "saved"))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-6)


def test_attention_mean_computes_and_is_not_saved(tmp_path: Path) -> None:
    model = tiny_bi_encoder(tmp_path / "tokens", pooling=["attention_mean"])
    tokens, _ = model.tokenizer.encode(TEXTS[:2])
    from sbert_search.models.encoder.packed import PackedTokens

    with torch.inference_mode():
        assert model(PackedTokens.from_lists(tokens)).shape == (2, 16)
    with pytest.raises(ConfigError, match="attention_mean is for evaluation only"):
        model.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_an_order_of_modes_that_the_form_cannot_hold_is_not_saved(tmp_path: Path) -> None:
    model = tiny_bi_encoder(tmp_path / "tokens", pooling=["mean", "cls"])
    with pytest.raises(ConfigError, match=r"only in the order cls\+mean"):
        model.save(tmp_path / "saved")


def test_gradients_reach_every_parameter(tmp_path: Path) -> None:
    from sbert_search.models.encoder.packed import PackedTokens

    model = tiny_bi_encoder(tmp_path, pooling=["cls", "mean"], head=[Dense(32, 4), Normalize()])
    ids, _ = model.tokenizer.encode(TEXTS)
    model(PackedTokens.from_lists(ids)).square().sum(dim=1).log().sum().backward()
    unused = [name for name, part in model.named_parameters() if part.grad is None]
    assert unused == []


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    with pytest.raises(WeightsError, match="tokenizer has 78 tokens and the embedding 50 rows"):
        BiEncoder(tiny_encoder(vocab_size=50), tokenizer)
    with pytest.raises(WeightsError, match="encoder has 10 positions; lower max_len, or"):
        BiEncoder(tiny_encoder(max_positions=10), tokenizer)


def test_a_tokenizer_without_special_tokens_is_refused() -> None:
    backend = Tokenizer(WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(ModelError, match="adds no special tokens"):
        BiEncoder(tiny_encoder(), TextTokenizer(backend, 8))


def edit(path: Path, **changes: Any) -> None:
    settings = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**settings, **changes}), "utf-8")


def saved(tmp_path: Path, **settings: Any) -> Path:
    tiny_bi_encoder(tmp_path / "tokens", **settings).save(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_module_with_code_of_its_own_is_refused_by_name(tmp_path: Path) -> None:
    path = saved(tmp_path)
    listing = json.loads((path / "modules.json").read_text("utf-8"))
    listing[1]["type"] = "custom_pooling.Pooling"
    (path / "modules.json").write_text(json.dumps(listing), "utf-8")
    with pytest.raises(ModelError, match=r"module 'custom_pooling\.Pooling' is not part of"):
        read_folder(path)


@pytest.mark.parametrize("where", ["../elsewhere", "/etc"])
def test_a_module_outside_the_folder_is_refused(tmp_path: Path, where: str) -> None:
    path = saved(tmp_path)
    listing = json.loads((path / "modules.json").read_text("utf-8"))
    listing[1]["path"] = where
    (path / "modules.json").write_text(json.dumps(listing), "utf-8")
    with pytest.raises(ModelError, match="leaves the model folder"):
        read_folder(path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", "{}", "holds no list of modules"),
        ("modules.json", "null", "holds no list of modules"),
        ("modules.json", "[3]", "3 is not a module"),
        ("modules.json", "[", "cannot be read as JSON"),
        ("config.json", "[]", "holds no JSON object"),
        ("config.json", "null", "holds no JSON object"),
        ("config_sentence_transformers.json", "nonsense", "cannot be read as JSON"),
        ("config_sentence_transformers.json", '{"truncate_dim": "8"}', "truncate_dim is '8'"),
        ("config_sentence_transformers.json", '{"prompts": ["a"]}', r"prompts is \['a'\]"),
        ("tokenizer_config.json", "\xff", "cannot be read as JSON"),
    ],
)
def test_a_broken_description_is_named(
    tmp_path: Path, file: str, content: str, message: str
) -> None:
    path = saved(tmp_path)
    (path / file).write_text(content, "latin-1")
    with pytest.raises(ModelError, match=message) as error:
        read_folder(path)
    assert file in str(error.value)


def test_keys_of_the_other_library_are_ignored(tmp_path: Path) -> None:
    path = saved(tmp_path)
    keys = {"similarity_fn_name": None, "model_kwargs": {"future": [1]}, "truncate_dim": 8}
    edit(path / "config_sentence_transformers.json", **keys)
    description = read_folder(path).description
    assert (description.similarity, description.truncate_dim) == ("cosine", 8)


def test_a_pooling_whose_folder_was_not_copied_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, pooling=["cls"])
    (path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ModelError, match=r"1_Pooling/config\.json is missing or empty"):
        BiEncoder.load(path)


def test_an_adapter_is_not_ignored(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (path / "adapter_model.safetensors").write_bytes(b"any")
    with pytest.raises(ModelError, match=r"adapter of PEFT, .* merge it into its base model"):
        BiEncoder.load(path)


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        read_folder(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"out_features": 4}, "in_features is missing"),
        ({"in_features": "16", "out_features": 4}, "in_features is '16'"),
        ({"in_features": -1, "out_features": 4}, "in_features is -1"),
    ],
)
def test_wrong_settings_of_a_dense_module_name_the_file(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    path = saved(tmp_path, head=[Dense(16, 4)])
    (path / "2_Dense" / "config.json").write_text(json.dumps(settings), "utf-8")
    with pytest.raises(ConfigError, match=message) as error:
        BiEncoder.load(path)
    assert str(path / "2_Dense" / "config.json") in str(error.value)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, head=[Dense(16, 4)])
    (path / "2_Dense" / "model.safetensors").rename(path / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(ModelError, match="a pickle, which can run code"):
        read_folder(path).weights_sha256()
    with pytest.raises(ModelError, match="pickle"):
        Embedder(str(path), engine="sentence-transformers", device="cpu")


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (path / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(ModelError, match=r"The tokenizer in .*saved cannot be read"):
        BiEncoder.load(path)


LEFT = {"direction": "Left", "max_length": 12, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        ("1_Pooling/config.json", {"include_prompt": False}, "Pooling has the setting include_pro"),
        ("2_Dense/config.json", {"use_residual": True}, "Dense has the setting use_residual"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.CELU"}, "the activation torch"),
        ("sentence_bert_config.json", {"query_length": 8}, "query_length is 8"),
        ("tokenizer_config.json", {"truncation_side": "left"}, "cuts texts on the left"),
        ("tokenizer.json", {"truncation": LEFT}, "cuts texts on the left"),
        ("tokenizer_config.json", {"split_special_tokens": True}, "splits special tokens"),
        ("config.json", {"model_type": "nomic_bert"}, "is of type 'nomic_bert'"),
    ],
)
def test_what_we_cannot_compute_is_said(
    tmp_path: Path, file: str, changes: dict[str, Any], reason: str
) -> None:
    path = saved(tmp_path, head=[Dense(16, 4)])
    edit(path / file, **changes)
    with pytest.raises(ModelError, match=reason):
        BiEncoder.load(path)
