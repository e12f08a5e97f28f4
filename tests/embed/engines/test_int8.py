from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sbert_search.base.cache import cache_folder
from sbert_search.embed.embedder import Embedder
from sbert_search.embed.engines import int8, native
from sbert_search.embed.engines import int8 as calibration
from sbert_search.embed.engines.int8 import calibration_texts
from sbert_search.errors import ConfigError, CorpusError, ModelError
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.inference_layers import Int8Linear
from sbert_search.models.heads import Normalize
from sbert_search.search.rerankers import Reranker
from tests.models.encoder.measured import verdict
from tests.models.tiny import PAIRS, TEXTS, tiny_bi_encoder, tiny_cross_encoder

pytestmark = pytest.mark.usefixtures("one_thread")

OWN = [f"the {word} cat sat {number} times" for number, word in enumerate("abcdefghijklmnopqrst")]
WORDS = st.lists(st.sampled_from(["the", "cat", "sat.", "far,", "é", "!"]), max_size=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("model")
    prompts = {"query": "cat ", "way": "far away "}
    tiny_bi_encoder(base / "tokens", head=[Normalize()], prompts=prompts).save(base / "saved")
    return base / "saved"


@pytest.fixture(scope="module")
def pairs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("model")
    tiny_cross_encoder(base / "tokens").save(base / "saved")
    return base / "saved"


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Embedder:
    return Embedder(folder, device="cpu", precision="int8")


def test_vectors_are_close_to_those_of_fp32(folder: Path, tiny: Embedder) -> None:
    exact = Embedder(folder, device="cpu", precision="fp32").encode(TEXTS)
    vectors = tiny.encode(TEXTS)
    assert float((vectors * exact).sum(axis=1).min()) > 0.995
    assert not np.array_equal(vectors, exact)
    assert tiny.identity.precision == "int8"
    assert len(tiny.identity.calibration) == 64


@pytest.mark.thorough
@given(st.lists(WORDS.map(" ".join), min_size=1, max_size=12), st.integers(1, 5), st.randoms())
@settings(max_examples=40)
def test_a_vector_does_not_depend_on_its_company(
    tiny: Embedder, texts: list[str], batch_size: int, random: Any
) -> None:
    alone = np.concatenate([tiny.encode([text]) for text in texts])
    order = list(range(len(texts)))
    random.shuffle(order)
    shuffled = tiny.encode([texts[row] for row in order], batch_size=batch_size)
    assert np.array_equal(shuffled, alone[order])


def test_scores_are_close_to_those_of_fp32(pairs_folder: Path) -> None:
    exact = Reranker(pairs_folder, device="cpu", precision="fp32").predict(PAIRS)
    reranker = Reranker(pairs_folder, device="cpu", precision="int8")
    scores = reranker.predict(PAIRS)
    np.testing.assert_allclose(scores, exact, atol=0.02)
    assert not np.array_equal(scores, exact)
    assert reranker.identity.precision == "int8"
    # The encoder's states are equal to the bit; the layer after it is computed in fp32.
    one_by_one = np.concatenate([reranker.predict([pair]) for pair in PAIRS])
    np.testing.assert_allclose(one_by_one, scores, atol=1e-6)


def calibrations() -> list[Path]:
    return sorted(cache_folder(int8.FOLDER).glob("*"))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("own_cache")
def test_a_model_is_calibrated_once(folder: Path, monkeypatch: Any) -> None:
    first = Embedder(folder, device="cpu", precision="int8")
    (stored,) = calibrations()
    monkeypatch.setattr(int8, "calibrate", None)  # a second calibration fails
    second = Embedder(folder, device="cpu", precision="int8")
    assert np.array_equal(first.encode(TEXTS), second.encode(TEXTS))
    assert calibrations() == [stored]


@pytest.mark.usefixtures("own_cache")
def test_a_damaged_calibration_is_made_again(folder: Path, capfd: Any) -> None:
    vectors = Embedder(folder, device="cpu", precision="int8").encode(TEXTS)
    (stored,) = calibrations()
    good = stored.read_bytes()
    for bad in (good[:-1], good[:100], b"", good[:50] + bytes([good[50] ^ 1]) + good[51:]):
        stored.write_bytes(bad)
        again = Embedder(folder, device="cpu", precision="int8").encode(TEXTS)
        assert "is damaged; the model is calibrated again" in capfd.readouterr().err
        assert np.array_equal(again, vectors)
        assert stored.read_bytes() == good


@pytest.mark.usefixtures("own_cache")
def test_own_texts_make_another_calibration(folder: Path, tmp_path: Path, tiny: Embedder) -> None:
    file = tmp_path / "own.txt"
    file.write_text("\n\n".join(OWN), encoding="utf-8")
    from_file = Embedder(folder, device="cpu", precision="int8", calibrate=file)
    from_list = Embedder(folder, device="cpu", precision="int8", calibrate=OWN)
    assert from_file.identity.calibration == from_list.identity.calibration
    assert from_file.identity.calibration != tiny.identity.calibration
    assert not from_file.identity.same_engine(tiny.identity)
    assert len(calibrations()) == 1


def test_an_unwritable_cache_does_no_harm(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    Embedder(folder, device="cpu", precision="int8").encode(TEXTS)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"one\ntwo\n", "has 2 texts; a calibration needs at least 16"),
        (b"caf\xe9\n" * 20, "cannot be read as UTF-8 text"),
        (None, "cannot be read"),
    ],
)
def test_bad_texts_are_refused(
    folder: Path, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "own.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CorpusError, match=rf"own\.txt {problem}"):
        Embedder(folder, device="cpu", precision="int8", calibrate=file)


def test_int8_is_refused_where_it_is_not_possible(folder: Path, pairs_folder: Path) -> None:
    with pytest.raises(ConfigError, match="needs the engine native"):
        Embedder(folder, device="cpu", precision="int8", engine="sentence-transformers")
    with pytest.raises(ConfigError, match="save the model and pass its folder"):
        Embedder(BiEncoder.load(folder), precision="int8")
    with pytest.raises(ConfigError, match="calibrate is given, but precision is fp32"):
        Embedder(folder, precision="fp32", calibrate=OWN)
    with pytest.raises(ConfigError, match="calibrate is given, but precision is auto"):
        Reranker(pairs_folder, calibrate=OWN)


@pytest.mark.parametrize("choice", ["int8", "fp32", "bf16"])
def test_fastest_is_what_was_measured(
    folder: Path, pairs_folder: Path, monkeypatch: Any, choice: str
) -> None:
    measured = verdict(choice)
    monkeypatch.setattr(int8, "fastest_with_int8", lambda encoder, calibration: measured)
    for opened in (
        Embedder(folder, device="cpu", precision="fastest"),
        Reranker(pairs_folder, device="cpu", precision="fastest"),
    ):
        assert opened.identity.precision == choice
        assert bool(opened.identity.calibration) == (choice == "int8")


def test_fastest_is_auto_where_int8_is_not_possible(folder: Path, monkeypatch: Any) -> None:
    by_library = Embedder(folder, device="cpu", precision="fastest", engine="sentence-transformers")
    assert by_library.identity.precision == "fp32"

    def refuse(encoder: Any, calibration: Any) -> None:
        raise ConfigError("oneDNN is missing")

    monkeypatch.setattr(int8, "fastest_with_int8", refuse)
    assert Embedder(folder, device="cpu", precision="fastest").identity.precision == "fp32"


def test_texts_of_another_kind_are_reported(folder: Path, capfd: Any, monkeypatch: Any) -> None:
    embedder = Embedder(folder, device="cpu", precision="int8", calibrate=["a"] * 16)
    monkeypatch.setattr(native, "_MOST_BEYOND", 0.0)
    embedder.encode(["red sun!", "unknown words"])
    embedder.encode(["red sun!"])
    assert embedder.beyond_calibration > 0
    printed = capfd.readouterr().err
    assert printed.count("of the inputs of int8 layers are beyond the range of the calib") == 1
    assert Embedder(folder, device="cpu", precision="fp32").beyond_calibration == 0


@pytest.mark.usefixtures("own_cache")
def test_wrong_int8_vectors_are_refused(folder: Path, monkeypatch: Any) -> None:
    def ramp(self: Int8Linear, states: torch.Tensor) -> torch.Tensor:
        return torch.arange(len(states) * len(self._scales)).view(len(states), -1).float()

    monkeypatch.setattr(Int8Linear, "forward", ramp)
    for limit in ("MOST_NOISE", "MOST_CHANNEL_NOISE"):  # otherwise the layers stay exact
        monkeypatch.setattr(calibration, limit, 1e30)
    with pytest.raises(ModelError, match="native on cpu in int8 gives wrong vectors: the cosine"):
        Embedder(folder, device="cpu", precision="int8")


def test_the_texts_of_the_package_are_varied() -> None:
    texts = calibration_texts(None)
    assert len(texts) == len(set(texts)) > 100
    assert min(map(len, texts)) < 5
    assert max(map(len, texts)) > 500
    assert sum(text.endswith("?") for text in texts) > 10
