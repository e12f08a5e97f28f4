"""Which embedders may work with an index: by identity, then by numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sbert_search import errors
from sbert_search.config import to_mapping
from sbert_search.embed.arguments import EmbedderOptions
from sbert_search.embed.embedder import Embedder
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import Vectors
from sbert_search.errors import ModelMismatch
from sbert_search.index.building.build import open_for_build
from sbert_search.index.building.model_check import (
    as_embedder,
    require_agreement,
    require_mixable,
    self_check,
    with_kept_choices,
)
from sbert_search.index.index import Index
from sbert_search.index.storage.manifest import SelfCheck, VectorSettings
from sbert_search.models.heads import Normalize
from sbert_search.models.loading.identity import IN_MEMORY, ModelIdentity
from tests.models.encoder.measured import bf16_is_faster, fp32_is_faster, verdict
from tests.models.tiny import TEXTS, tiny_bi_encoder


class OtherEngine(HashingEmbedder):
    """The same model by another engine, whose numbers are off by so much noise."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.identity = dataclasses.replace(self.identity, engine="native", precision="fp16")
        self.noise = noise

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        vectors = super().encode(texts)
        noise = np.random.default_rng(0).normal(0, self.noise, vectors.shape)
        return (vectors + noise).astype(np.float32)


class SameEngine(OtherEngine):
    """The same model by the same engine, whose weights came out otherwise this time."""

    def __init__(self, noise: float) -> None:
        super().__init__(noise)
        self.identity = HashingEmbedder().identity
        self.checked = 0

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        self.checked += 1
        return super().encode_document(texts)


@pytest.fixture
def settings() -> VectorSettings:
    embedder = HashingEmbedder()
    identity = embedder.identity.to_mapping()
    return VectorSettings(dim=384, identity=identity, self_check=self_check(embedder))


def test_an_index_without_check_texts_accepts_each_engine_of_its_model(
    settings: VectorSettings,
) -> None:
    require_agreement(replace(settings, self_check=SelfCheck()), OtherEngine(1e-4))


def test_another_engine_with_the_same_numbers_is_accepted(settings: VectorSettings) -> None:
    require_agreement(settings, OtherEngine(1e-4))


def test_another_engine_with_other_numbers_is_refused(settings: VectorSettings) -> None:
    with pytest.raises(ModelMismatch, match=r"native in fp16 gives other vectors .* cosine 0\.9"):
        require_agreement(settings, OtherEngine(1e-2))


@pytest.mark.parametrize("allow_inexact", [False, None])
def test_only_a_caller_with_the_option_is_told_of_it(
    settings: VectorSettings, allow_inexact: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for offered in (None, {"--engine"}):  # `analyze map` has no such option
        monkeypatch.setattr(errors, "offered", offered)
        with pytest.raises(ModelMismatch, match=r"Use (--)?engine") as refused:
            require_agreement(settings, OtherEngine(1e-2), allow_inexact=allow_inexact)
        told = offered is None and allow_inexact is False
        assert ("allow_inexact" in str(refused.value)) == told
        assert "--allow-inexact" not in str(refused.value)


def test_a_command_without_the_options_names_none(
    settings: VectorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "offered", {"--engine", "--precision"})
    with pytest.raises(ModelMismatch, match="Use --engine") as refused:
        require_agreement(settings, OtherEngine(1e-2))
    assert "--allow-inexact" not in str(refused.value)
    monkeypatch.setattr(errors, "offered", {"--query"})
    with pytest.raises(ModelMismatch, match="no option for another engine") as refused:
        require_agreement(settings, OtherEngine(1e-2))
    assert "--" not in str(refused.value)


class Int8(OtherEngine):
    """The same model in int8."""

    def __init__(self, noise: float, calibration: str = "a" * 64) -> None:
        super().__init__(noise)
        self.identity = dataclasses.replace(
            self.identity, precision="int8", calibration=calibration
        )


def test_int8_may_differ_more(settings: VectorSettings) -> None:
    require_agreement(settings, Int8(6e-3))
    with pytest.raises(ModelMismatch, match=r"cosine 0\.9\d+ on the check texts, 0\.98 is needed"):
        require_agreement(settings, Int8(2e-2))
    with pytest.raises(ModelMismatch, match=r"0\.999 is needed"):
        require_agreement(settings, OtherEngine(6e-3))


def test_int8_and_exact_vectors_are_not_mixed(settings: VectorSettings) -> None:
    require_mixable(settings, OtherEngine(0))
    with pytest.raises(ModelMismatch, match=r"vectors in fp32, and the model computes in int8; "):
        require_mixable(settings, Int8(0))
    in_int8 = dataclasses.replace(settings, identity=Int8(0).identity.to_mapping())
    require_mixable(in_int8, Int8(0))
    with pytest.raises(ModelMismatch, match=r"Use precision='int8', or build another index"):
        require_mixable(in_int8, OtherEngine(0))
    with pytest.raises(ModelMismatch, match=r"with the calibration aaaaaaaaaaaa, and the "):
        require_mixable(in_int8, Int8(0, "b" * 64))


@pytest.mark.thorough
def test_an_index_in_int8_is_extended_in_int8_and_searched_in_any_precision(
    tmp_path: Path,
) -> None:
    tiny_bi_encoder(tmp_path / "tokens", head=[Normalize()]).save(tmp_path / "model")
    rows = [{"id": str(number), "text": text} for number, text in enumerate(TEXTS) if text]
    index = Index.build(
        rows[:3], out=tmp_path / "index", model=tmp_path / "model", device="cpu", precision="int8"
    )
    assert index.identity.precision == "int8"
    calibration = index.identity.calibration
    assert calibration
    index.add(rows[3:4], device="cpu")
    assert len(index) == 4
    assert Index.open(tmp_path / "index").matching_embedder(device="cpu").identity == index.identity
    with pytest.raises(ModelMismatch, match="int8 and exact vectors are not mixed"):
        index.add(rows[4:], device="cpu", precision="fp32")
    own = [f"the cat sat {number} times" for number in range(20)]
    with pytest.raises(ModelMismatch, match=f"with the calibration {calibration[:12]}, and the"):
        index.add(rows[4:], device="cpu", precision="int8", calibrate=own)
    for precision in ("int8", "fp32"):
        embedder = Index.open(tmp_path / "index").matching_embedder(precision=precision)
        assert embedder.identity.precision == precision


def test_the_same_engine_with_other_numbers_is_refused(settings: VectorSettings) -> None:
    with pytest.raises(ModelMismatch, match=r"than it did when .* cosine 0\.\d+ .* another index"):
        require_agreement(settings, SameEngine(1e-2))


def test_an_opened_model_is_compared_once(settings: VectorSettings) -> None:
    embedder = SameEngine(1e-5)
    for _ in range(3):
        require_agreement(settings, embedder)
    assert embedder.checked == 1
    other = dataclasses.replace(settings, self_check=self_check(OtherEngine(1e-2)))
    with pytest.raises(ModelMismatch):
        require_agreement(other, embedder)


def test_an_embedder_without_a_hash_is_compared_each_time(settings: VectorSettings) -> None:
    @dataclasses.dataclass(init=False)
    class Unhashable(SameEngine):
        """Compared by its fields, of which there are none."""

    embedder = Unhashable(1e-5)
    for _ in range(2):
        require_agreement(settings, embedder)
    assert embedder.checked == 2


class Graph(SameEngine):
    """An exported graph, whose files were damaged after it was compared."""

    def __init__(self, noise: float) -> None:
        super().__init__(noise)
        self.identity = dataclasses.replace(self.identity, engine="onnx")


def test_every_process_compares_the_first_texts_of_a_graph(settings: VectorSettings) -> None:
    require_agreement(settings, Graph(1e-5))
    with pytest.raises(ModelMismatch, match=r"onnx in fp32 gives other vectors"):
        require_agreement(settings, Graph(1e-1))


@pytest.mark.parametrize("noise", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_never_agree(settings: VectorSettings, noise: float) -> None:
    with pytest.raises(ModelMismatch, match="cosine -1"), np.errstate(invalid="ignore"):
        require_agreement(settings, OtherEngine(noise))


def test_inexact_is_accepted_on_request_and_said(
    settings: VectorSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    require_agreement(settings, OtherEngine(1e-2), allow_inexact=True)
    assert "gives other vectors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (HashingEmbedder(128), "dim: 384, not 128"),
        (HashingEmbedder(max_len=64), "max_len: 512, not 64"),
    ],
)
def test_another_model_is_refused_by_the_field_that_differs(
    settings: VectorSettings, other: HashingEmbedder, difference: str
) -> None:
    with pytest.raises(ModelMismatch, match=difference):
        require_agreement(settings, other, allow_inexact=True)


@pytest.mark.parametrize("field", ["weights_sha256", "tokenizer_sha256", "pooling", "similarity"])
def test_every_field_of_the_model_counts(settings: VectorSettings, field: str) -> None:
    other = HashingEmbedder()
    values = other.identity.to_mapping() | {field: "another"}
    other.identity = ModelIdentity.from_mapping(values)
    with pytest.raises(
        ModelMismatch, match=rf"with other files or settings \({field}: .*Pass it with those of"
    ):
        require_agreement(settings, other)


class AsObject(OtherEngine):
    """The same model without files, as a ``SentenceTransformer`` that somebody loaded."""

    def __init__(self, noise: float) -> None:
        super().__init__(noise)
        self.identity = dataclasses.replace(
            HashingEmbedder().identity, weights_sha256=f"{IN_MEMORY}1", tokenizer_sha256="2"
        )


def test_a_model_without_files_is_known_by_its_numbers(settings: VectorSettings) -> None:
    require_agreement(settings, AsObject(1e-6))
    for allowed in (False, True):
        with pytest.raises(ModelMismatch, match=r"cosine 0\.999\d+ .* 0\.99999 is needed"):
            require_agreement(settings, AsObject(1e-3), allow_inexact=allowed)


NATIVE = replace(HashingEmbedder().identity, engine="native", precision="bf16")


@pytest.mark.parametrize(
    ("options", "stored", "expected"),
    [
        ({}, NATIVE, "bf16"),
        ({"device": "cpu", "engine": "native", "precision": "auto"}, NATIVE, "bf16"),
        ({"device": "cpu,cpu"}, NATIVE, "bf16"),
        ({"precision": "fp32"}, NATIVE, "fp32"),  # the user's word
        ({"engine": "onnx"}, NATIVE, None),  # has one precision
        ({}, replace(NATIVE, precision="fp16"), None),  # made on a GPU
        ({}, replace(NATIVE, engine="onnx", precision="fp32"), "fp32"),
        ({}, replace(NATIVE, engine="hashing"), None),
        ({}, replace(NATIVE, engine=ModelIdentity.NO_ENGINE), None),
    ],
)
def test_the_precision_of_an_index_is_kept_on_a_cpu(
    options: EmbedderOptions, stored: ModelIdentity, expected: str | None, monkeypatch: Any
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    monkeypatch.setattr("sbert_search.base.device.has_onednn", lambda dtype: dtype != torch.float16)
    settings = VectorSettings(dim=3, identity=stored.to_mapping(), batch_tokens=2048)
    kept = with_kept_choices(None, options, settings)
    assert kept.get("precision") == expected
    assert "batch_tokens" not in kept
    assert with_kept_choices("hashing:64", options, settings) == options
    automatic: EmbedderOptions = {**options, "batch_tokens": "auto"}
    measured = with_kept_choices(None, automatic, settings)["batch_tokens"]
    assert measured == (2048 if expected else "auto")
    assert with_kept_choices("m", {**options, "batch_tokens": 7}, settings)["batch_tokens"] == 7
    unmeasured = replace(settings, batch_tokens=0)
    assert with_kept_choices(None, automatic, unmeasured)["batch_tokens"] == "auto"


@pytest.mark.thorough
def test_a_build_that_resumes_and_an_update_keep_the_measured_precision(
    tmp_path: Path, monkeypatch: Any
) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "model")
    measured = "sbert_search.embed.engines.native.inference_precision"
    monkeypatch.setattr(measured, bf16_is_faster)
    # The test also runs on CPUs without bf16, where queries would be embedded in fp32.
    monkeypatch.setattr("sbert_search.base.device.has_onednn", lambda dtype: True)
    path, model = tmp_path / "my.index", tmp_path / "model"
    index = Index.from_texts(["the cat sat"], out=path, model=model, device="cpu")
    assert index.identity.precision == "bf16"
    assert index.info().verdict == to_mapping(verdict("bf16"))
    monkeypatch.setattr(measured, fp32_is_faster)
    assert Embedder(model, device="cpu").identity.precision == "fp32"
    assert index.matching_embedder(device="cpu").identity.precision == "bf16"
    resumed = open_for_build(path, model, partial(as_embedder, model), device="cpu")
    assert resumed.identity.precision == "bf16"
    fresh = open_for_build(tmp_path / "new", model, partial(as_embedder, model), device="cpu")
    assert fresh.identity.precision == "fp32"
    index.add([{"id": "2", "text": "a dog ran"}], device="cpu")
    assert index.identity.precision == "bf16"
    assert index.info().verdict == to_mapping(verdict("bf16"))
