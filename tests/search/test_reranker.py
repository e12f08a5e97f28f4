import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder as LibraryCrossEncoder

from sbert_search.errors import ConfigError, CorpusError, ModelError
from sbert_search.models.side_file import SideFile, write_side_file
from sbert_search.search.pair_engines import NativePairEngine
from sbert_search.search.rerankers import Reranker
from tests.models.encoder.measured import bf16_is_faster, verdict
from tests.models.tiny import PAIRS, TEXTS, tiny_bi_encoder, tiny_cross_encoder

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = st.lists(st.sampled_from(["the", "cat", "sat", "far", "x"]), max_size=20).map(" ".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("model")
    tiny_cross_encoder(base / "tokens").save(base / "saved")
    return base / "saved"


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Reranker:
    return Reranker(folder, device="cpu", precision="fp32")


@pytest.fixture(scope="module")
def library(folder: Path) -> LibraryCrossEncoder:
    model: LibraryCrossEncoder = LibraryCrossEncoder(str(folder), device="cpu")
    return model


def test_a_default_prompt_that_leaves_no_room_is_refused(folder: Path) -> None:
    for words, room in ((20, True), (21, False)):  # of 24 tokens, a pair has 3 special ones
        model: LibraryCrossEncoder = LibraryCrossEncoder(
            str(folder),
            device="cpu",
            prompts={"query": "the " * words},
            default_prompt_name="query",
        )
        if room:
            assert Reranker(model).predict(("a cat", "a dog")).shape == ()
        else:
            with pytest.raises(ModelError, match=r"and the prompt 'the the .* leave no room in it"):
                Reranker(model)


def test_probabilities_are_the_sigmoid_of_logits(folder: Path) -> None:
    ours = Reranker(folder, device="cpu", precision="fp32")
    library = Reranker(folder, device="cpu", engine="sentence-transformers")
    scores = ours.predict(PAIRS).astype(np.float64)  # the model ends with a sigmoid
    for reranker in (ours, library):
        assert reranker.probabilities(scores).tolist() == scores.tolist()
        reranker._engine.use_logits()
        logits = reranker.predict(PAIRS).astype(np.float64)
        np.testing.assert_allclose(reranker.probabilities(logits), scores, atol=1e-6)
        extreme = np.array([-1e4, -800.0, 0.0, 800.0])
        assert reranker.probabilities(extreme).tolist() == [0.0, 0.0, 0.5, 1.0]


def test_rank_equals_that_of_the_library(tiny: Reranker, library: LibraryCrossEncoder) -> None:
    ours = tiny.rank("the cat", TEXTS, top_k=4, return_documents=True)
    theirs = library.rank("the cat", TEXTS, top_k=4, return_documents=True)
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine["corpus_id"] == yours["corpus_id"]
        assert mine["text"] == yours["text"]
        assert mine["score"] == pytest.approx(yours["score"], abs=5e-6)
    assert [set(hit) for hit in tiny.rank("cat", ["a"])] == [{"corpus_id", "score"}]
    assert tiny.rank("cat", []) == []


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=10), st.randoms())
@settings(max_examples=25, deadline=None)
def test_company_and_order_change_no_score(
    tiny: Reranker, pairs: list[tuple[str, str]], random: Any
) -> None:
    scores = tiny.predict(pairs)
    order = list(range(len(pairs)))
    random.shuffle(order)
    shuffled = tiny.predict([pairs[row] for row in order], batch_size=random.randint(1, 4))
    np.testing.assert_allclose(shuffled, scores[order], atol=1e-6)


@pytest.mark.parametrize("size", [0, "2", 2.5])
def test_a_batch_size_that_is_no_count_is_refused(tiny: Reranker, size: Any) -> None:
    with pytest.raises(ConfigError, match=f"batch_size is {size!r}"):
        tiny.predict([("cat", "dog")] * 3, batch_size=size)


def test_one_pair_gives_one_score(tiny: Reranker) -> None:
    assert tiny.predict(PAIRS[0]) == pytest.approx(tiny.predict(PAIRS)[0], abs=1e-6)
    assert tiny.predict(PAIRS).dtype == np.float32
    assert tiny.predict([]).shape == (0,)


@pytest.mark.parametrize("how", ["engine", "object"])
def test_the_library_computes_the_same(
    folder: Path, tiny: Reranker, library: LibraryCrossEncoder, how: str
) -> None:
    if how == "engine":
        other = Reranker(folder, device="cpu", engine="sentence-transformers")
        assert tiny.identity.differences(other.identity) == []
    else:
        other = Reranker(library)
        assert other.identity.weights_sha256 == Reranker(library).identity.weights_sha256
        assert other.identity.in_memory
    assert other.identity.engine == "sentence-transformers"
    np.testing.assert_allclose(other.predict(PAIRS), tiny.predict(PAIRS), atol=5e-6)


@pytest.mark.parametrize(
    ("name", "value"), [("precision", "foo"), ("device", "mps"), ("engine", "onnx")]
)
def test_an_object_in_memory_refuses_settings_that_it_does_not_have(
    tmp_path: Path, library: LibraryCrossEncoder, name: str, value: Any
) -> None:
    for model in (library, tiny_cross_encoder(tmp_path)):
        Reranker(model, device="cpu", precision="fp32")
        with pytest.raises(ConfigError, match=f"{name} is '{value}', but the CrossEncoder in mem"):
            Reranker(model, **{name: value})


def test_the_library_divides_by_the_temperature_too(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "warm")
    write_side_file(tmp_path / "warm", SideFile(temperature=4.0))
    native = Reranker(tmp_path / "warm", device="cpu", precision="fp32").predict(PAIRS)
    library = Reranker(tmp_path / "warm", device="cpu", engine="sentence-transformers")
    np.testing.assert_allclose(library.predict(PAIRS), native, atol=5e-6)


def test_classes_give_logits_or_probabilities(tmp_path: Path) -> None:
    model = tiny_cross_encoder(tmp_path / "tokens", labels=["no", "maybe", "yes"])
    reranker = Reranker(model)
    assert reranker.predict(PAIRS).shape == (len(PAIRS), 3)
    assert reranker.predict(PAIRS[0]).shape == (3,)
    probabilities = reranker.predict(PAIRS, apply_softmax=True)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-6)
    with pytest.raises(ConfigError, match="has 3 labels, so no single score"):
        reranker.rank("cat", ["dog"])


def test_the_measured_precision_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbert_search.embed.engines.native.inference_precision", bf16_is_faster)
    measured = Reranker(folder, device="cpu")
    assert (measured.identity.precision, measured.opened.verdict) == ("bf16", verdict("bf16"))
    library = Reranker(folder, device="cpu", engine="sentence-transformers")
    assert (library.identity.precision, library.opened.verdict) == ("fp32", None)


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_batch_of_no_tokens_is_refused(folder: Path, wrong: int) -> None:
    with pytest.raises(ConfigError, match=f"batch_tokens is {wrong}; it must be at least 1"):
        Reranker(folder, device="cpu", batch_tokens=wrong)


def test_bf16_ranks_alike(folder: Path, tiny: Reranker) -> None:
    half = Reranker(folder, device="cpu", precision="bf16")
    assert half.identity.precision == "bf16"
    np.testing.assert_allclose(half.predict(PAIRS), tiny.predict(PAIRS), atol=0.02)


def test_a_device_that_computes_wrongly_is_refused(folder: Path, monkeypatch: Any) -> None:
    compute = NativePairEngine.__call__

    def broken(self: NativePairEngine, pairs: Any, encoded: Any) -> Any:
        half = next(self.model.encoder.parameters()).dtype.itemsize == 2
        return compute(self, pairs, encoded) + (0.5 if half else 0.0)

    monkeypatch.setattr(NativePairEngine, "__call__", broken)
    with pytest.raises(ModelError, match="native on cpu in bf16 gives wrong scores: they differ"):
        Reranker(folder, device="cpu", precision="bf16")


def test_scores_that_are_not_finite_are_refused_when_the_model_is_opened(
    folder: Path, monkeypatch: Any
) -> None:
    def broken(self: NativePairEngine, pairs: Any, encoded: Any) -> Any:
        return np.full((len(pairs), 1), np.nan, np.float32)

    monkeypatch.setattr(NativePairEngine, "__call__", broken)
    with pytest.raises(ModelError, match="native on cpu in fp32 gives scores that are not finite"):
        Reranker(folder, device="cpu", precision="fp32")


def test_a_bi_encoder_is_no_reranker(tmp_path: Path) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    with pytest.raises(ModelError, match="is not a cross-encoder: its architecture BertModel"):
        Reranker(tmp_path / "saved")


def test_a_lone_surrogate_is_named(tiny: Reranker) -> None:
    with pytest.raises(CorpusError, match="lone surrogate"):
        tiny.predict([("cat", "dog \ud800")])


def test_tokenised_pairs_get_the_same_scores(tiny: Reranker) -> None:
    encoded = tiny.tokenizer.encode_pairs(PAIRS)
    np.testing.assert_allclose(tiny.predict_tokens(PAIRS, encoded), tiny.predict(PAIRS), atol=1e-6)
    assert tiny.batch_tokens > 0


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("ab", "The pairs are 'ab'; pass a pair or a list of pairs"),
        (None, "The pairs are None; pass a pair"),
        (["ab"], "Pair 1 of 1 is 'ab'; a pair is two strings"),
        ([("a", "b"), ("a", None)], r"Pair 2 of 2 is \('a', None\)"),
        (("a", None), r"Pair 1 of 1 is \('a', None\)"),
        ([("a",)], r"Pair 1 of 1 is \('a',\)"),
        ([("a", "b", "c")], "Pair 1 of 1 is"),
        ([3], "Pair 1 of 1 is 3"),
    ],
)
def test_what_is_no_pair_is_refused(tiny: Reranker, pairs: Any, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        tiny.predict(pairs)
    listed: Any = [["the cat", "a dog"]]
    assert tiny.predict(listed) == tiny.predict([("the cat", "a dog")])
