import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from sbert_search.embed.embedder import Embedder, open_embedder
from sbert_search.embed.engines.protocol import EngineName
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.pipeline import embed_batches
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import ConfigError, CorpusError, ModelError
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.heads import Normalize
from sbert_search.records import Document
from tests.models.encoder.measured import bf16_is_faster, verdict
from tests.models.tiny import TEXTS, tiny_bi_encoder, tiny_cross_encoder

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = st.lists(
    st.sampled_from(["the", "cat", "sat.", "a", "dog", "far,", "unknown", "é", "!"]), max_size=30
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("model")
    prompts = {"query": "cat ", "way": "far away "}
    tiny_bi_encoder(base / "tokens", head=[Normalize()], prompts=prompts).save(base / "saved")
    return base / "saved"


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Embedder:
    return Embedder(folder, device="cpu", precision="fp32")


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return Embedder(device="cpu", precision="fp32")


@pytest.mark.thorough
def test_minilm_equals_sentence_transformers_on_real_texts(
    minilm: Embedder, real_data: Path
) -> None:
    with gzip.open(real_data / "stsb" / "test.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["sentence1"] for line in lines]
    with gzip.open(real_data / "stsb" / "dev.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts += [json.loads(line)["sentence2"] for line in lines]
    with gzip.open(real_data / "scifact" / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        abstracts = [json.loads(next(lines))["text"] for _ in range(40)]
    texts = [*texts[:2000], *abstracts, "", " ", "x" * 5000]
    assert minilm.opened.engine.name == "native"
    library = Embedder(device="cpu", engine="sentence-transformers")
    assert library.identity.differences(minilm.identity) == []
    ours, theirs = minilm.encode(texts), library.encode(texts)
    assert float((ours * theirs).sum(axis=1).min()) >= 0.999999
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.thorough
@given(st.lists(WORDS.map(" ".join), min_size=1, max_size=12), st.randoms())
@settings(max_examples=25, deadline=None)
def test_company_order_and_batch_size_change_nothing(
    tiny: Embedder, texts: list[str], random: Any
) -> None:
    vectors = tiny.encode(texts)
    order = list(range(len(texts)))
    random.shuffle(order)
    shuffled = tiny.encode([texts[row] for row in order], batch_size=random.randint(1, 5))
    np.testing.assert_allclose(shuffled, vectors[order], atol=1e-6)
    alone = np.stack([tiny.encode(text) for text in texts])
    np.testing.assert_allclose(alone, vectors, atol=1e-6)


@pytest.mark.thorough
def test_company_changes_no_minilm_vector_by_more_than_1e_6(minilm: Embedder) -> None:
    texts = ["cat", "A man is playing a flute.", "long " * 300, "Two dogs run. " * 20, ""]
    together = minilm.encode(texts)
    for row, text in enumerate(texts):
        np.testing.assert_allclose(minilm.encode(text), together[row], atol=1e-6)


@pytest.mark.thorough
def test_bf16_agrees_with_itself_in_other_company_and_with_fp32(minilm: Embedder) -> None:
    texts = ["cat", "A man is playing a flute.", "Two dogs run. " * 20]
    half = Embedder(device="cpu", precision="bf16")
    assert half.identity.precision == "bf16"
    together = half.encode(texts)
    alone = np.stack([half.encode(text) for text in texts])
    assert float((together * alone).sum(axis=1).min()) >= 0.9999
    assert float((together * minilm.encode(texts)).sum(axis=1).min()) >= 0.999


def test_the_library_computes_in_bf16_too(folder: Path, tiny: Embedder) -> None:
    half = Embedder(folder, device="cpu", engine="sentence-transformers", precision="bf16")
    assert (half.identity.engine, half.identity.precision) == ("sentence-transformers", "bf16")
    unit = half.encode(TEXTS, normalize_embeddings=True)
    assert float((unit * tiny.encode(TEXTS)).sum(axis=1).min()) >= 0.999


def test_an_object_of_the_library_is_taken_as_it_is(folder: Path, tiny: Embedder) -> None:
    library = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    ours = Embedder(library)
    np.testing.assert_allclose(ours.encode(TEXTS), tiny.encode(TEXTS), atol=1e-6)
    assert ours.identity.engine == "sentence-transformers"
    assert ours.identity.weights_sha256 == Embedder(library).identity.weights_sha256
    before = ours.identity.weights_sha256
    next(library.parameters()).data[7, 0] += 1
    assert Embedder(library).identity.weights_sha256 != before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_tokens": "foo"}, "batch_tokens is 'foo'; pass an integer"),
        ({"batch_tokens": 2.5}, r"batch_tokens is 2\.5; pass an integer"),
        ({"truncate_dim": "5"}, "truncate_dim is '5'; pass an integer"),
        ({"truncate_dim": 2.5}, r"truncate_dim is 2\.5; pass an integer"),
        ({"prompts": "x"}, "prompts is 'x'; pass a dict of texts by name"),
        ({"prompts": {"query": None}}, "The prompt 'query' is None; it must be a text"),
        ({"prompts": {1: "x"}}, "A prompt has the name 1; it must be a string"),
        ({"truncate_dim": True}, "truncate_dim is True; pass an integer"),
        ({"device": None}, "None is not a device; use auto"),
        ({"device": 0}, "0 is not a device; use auto"),
    ],
)
def test_settings_of_another_type_are_refused(
    folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Embedder(folder, **options)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("precision", "bf16"),
        ("precision", "int8"),
        ("precision", "fastest"),
        ("precision", "foo"),
        ("device", "mps"),
        ("engine", "onnx"),
        ("engine", "bogus"),
    ],
)
def test_an_object_in_memory_refuses_settings_that_it_does_not_have(
    folder: Path, native: bool, name: str, value: Any
) -> None:
    library = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    model = BiEncoder.load(folder) if native else library
    engine: EngineName = "native" if native else "sentence-transformers"
    Embedder(model, device="cpu", precision="fp32", engine=engine)
    with pytest.raises(ConfigError, match=f"{name} is '{value}', but the .* in memory has '"):
        Embedder(model, **{name: value})


def test_the_identity_does_not_depend_on_the_engine(folder: Path, tiny: Embedder) -> None:
    library = Embedder(folder, device="cpu", engine="sentence-transformers")
    assert tiny.identity.differences(library.identity) == []
    assert not tiny.identity.same_engine(library.identity)
    assert tiny.identity.prompts == {"query": "cat ", "way": "far away "}
    other = Embedder(
        folder, device="cpu", precision="fp32", prompts={"query": "dog "}, truncate_dim=4
    )
    assert [line.partition(":")[0] for line in tiny.identity.differences(other.identity)] == [
        "prompts",
        "dim",
        "normalize",
    ]


def test_texts_of_one_window_start_no_thread(
    tiny: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    start = Thread.start

    def note_and_start(thread: Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(Thread, "start", note_and_start)
    tiny.encode(["cat", "dog"])
    assert started == []
    tiny.encode(["cat"] * 1025)
    assert started == ["prefetch"]


@pytest.mark.parametrize(
    ("prompts", "default", "told"),
    [
        ({"query": "q: ", "passage": "p: "}, None, "neither .*: 'passage'. Texts .* document get"),
        ({"query": "q: ", "document": "", "passage": "p: "}, None, "'passage'.* task document"),
        ({"way": "w: ", "corpus": "c: "}, "way", "documents: 'corpus'. .* query or document get"),
        ({"query": "q: ", "document": "d: ", "passage": "p: "}, None, None),
        ({"query": "q: ", "passage": ""}, None, None),
        ({"way": "w: "}, "way", None),
        ({}, None, None),
    ],
)
def test_a_prompt_that_no_task_uses_is_named_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    prompts: dict[str, str],
    default: str | None,
    told: str | None,
) -> None:
    tiny_bi_encoder(tmp_path / "tokens", prompts=prompts).save(tmp_path / "saved")
    path = tmp_path / "saved" / "config_sentence_transformers.json"
    settings = json.loads(path.read_text("utf-8")) | {"default_prompt_name": default}
    path.write_text(json.dumps(settings), "utf-8")

    def said(**options: Any) -> str:
        Embedder(tmp_path / "saved", device="cpu", precision="fp32", **options)
        heard = capsys.readouterr().err + " ".join(caplog.messages)
        caplog.clear()
        return heard if "neither" in heard else ""

    first = said()
    assert re.search(told, first) if told else first == ""
    assert said() == ""
    if told and "query or" not in told:
        assert said(prompts={"document": "p: "}) == ""


def test_prompts_are_put_before_texts(tiny: Embedder) -> None:
    np.testing.assert_array_equal(tiny.encode_query(["dog"]), tiny.encode(["cat dog"]))
    np.testing.assert_array_equal(tiny.encode_document(["dog"]), tiny.encode(["dog"]))
    by_name = tiny.encode(["dog"], prompt_name="way")
    np.testing.assert_array_equal(by_name, tiny.encode(["dog"], prompt="far away "))
    np.testing.assert_array_equal(by_name, tiny.encode(["far away dog"]))
    with pytest.raises(ConfigError, match=r"no prompt 'off'; it has: query, way\."):
        tiny.encode(["dog"], prompt_name="off")


@pytest.mark.parametrize("engine", ["native", "sentence-transformers"])
def test_a_prompt_that_leaves_no_room_is_refused(folder: Path, engine: Any) -> None:
    long = "the " * 22  # 24 tokens are the most, and [CLS] and [SEP] are among them
    prompts = {"query": long, "document": f"cat {long}"}
    embedder = Embedder(folder, device="cpu", engine=engine, prompts=prompts)
    calls = (
        lambda: embedder.encode_query("a cat"),
        lambda: embedder.encode_document(["a cat", ""]),
        lambda: embedder.encode("a cat", prompt_name="query"),
        lambda: embedder.encode("a cat", prompt=long),
        lambda: embedder.tokenize(["a cat"], task="query"),
        lambda: embedder.split("a cat", task="query"),
    )
    for call in calls:
        with pytest.raises(ModelError, match=r"A passage has 24 tokens, and the prompt '.*the the"):
            call()
    assert embedder.encode("a cat", prompt="the " * 21).shape == (16,)
    assert embedder.encode("a cat").shape == (16,)


def test_vectors_can_be_cut_and_scaled(folder: Path, tiny: Embedder) -> None:
    vectors = tiny.encode(TEXTS)
    np.testing.assert_array_equal(tiny.encode(TEXTS, truncate_dim=5), vectors[:, :5])
    short = Embedder(folder, device="cpu", precision="fp32", truncate_dim=5)
    assert short.dim == 5
    np.testing.assert_array_equal(short.encode(TEXTS), vectors[:, :5])
    unit = short.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1.0, rtol=1e-6)


def test_one_text_gives_one_vector_and_none_gives_none(tiny: Embedder) -> None:
    assert tiny.encode("cat").shape == (16,)
    assert tiny.encode([]).shape == (0, 16)


@pytest.mark.parametrize("engine", ["native", "sentence-transformers"])
def test_lost_tokens_are_counted_exactly(folder: Path, engine: Any) -> None:
    embedder = Embedder(folder, device="cpu", engine=engine)
    tokens = embedder.tokenize(["cat " * 22, "cat " * 23, "cat " * 100], task="query")
    assert tokens.lost.tolist() == [1, 2, 79]  # 24 less [CLS], [SEP] and the prompt "cat"
    assert tokens.lengths.tolist() == [24, 24, 24]


@pytest.mark.parametrize("engine", ["native", "sentence-transformers"])
def test_chunks_are_encoded_as_the_texts_they_are(folder: Path, engine: Any) -> None:
    embedder = Embedder(folder, device="cpu", engine=engine, precision="fp32")
    texts = ["the cat sat on unknownword " * 12, "cat", "x" * 120 + " é"]
    documents = [Document(str(n), text) for n, text in enumerate(texts)]
    (batch,) = embed_batches([(documents, None)], embedder, on_truncate="chunk")
    assert batch.lost_tokens.sum() == 0
    passages = [
        texts[row][start:end]
        for row, start, end in zip(batch.doc_of, batch.char_start, batch.char_end, strict=True)
    ]
    assert len(passages) > 4
    for row, text in enumerate(texts):
        assert "".join(p for p, of in zip(passages, batch.doc_of, strict=True) if of == row) == text
    np.testing.assert_allclose(batch.vectors, embedder.encode_document(passages), atol=1e-6)


def test_a_lone_surrogate_is_named(tiny: Embedder) -> None:
    with pytest.raises(CorpusError, match="has a lone surrogate at character 4"):
        tiny.encode(["fine", "cat \ud83d"])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], "Text 2 of 2 is None, which is not a string"),
        ([1], "Text 1 of 1 is 1, which is not a string"),
        (["a", b"b"], "Text 2 of 2 is b'b', which is not a string"),
        ([["a", "b"]], r"Text 1 of 1 is \['a', 'b'\], which is not a string"),
        (pd.Series(["a", "b", float("nan")]), "Text 3 of 3 is nan, which is not a string"),
        (b"ab", "The texts are b'ab'; pass a text or a list of texts"),
        (None, "The texts are None; pass a text or a list of texts"),
    ],
)
def test_what_is_no_text_is_named_with_its_position(
    tiny: Embedder, texts: Any, message: str
) -> None:
    for encode in (tiny.encode, tiny.encode_query, tiny.encode_document):
        with pytest.raises(CorpusError, match=message):
            encode(texts)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_use_after_a_fork_is_an_error_and_no_hang(tiny: Embedder) -> None:
    tiny.encode(TEXTS)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            tiny.encode("cat")
        except ModelError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert "is a fork" in pipe.read()
    os.waitpid(child, 0)


def test_out_of_memory_halves_the_batch_and_says_so(
    folder: Path, tiny: Embedder, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    embedder = Embedder(folder, device="cpu", precision="fp32")
    compute = BiEncoder.forward

    def small_memory(self: BiEncoder, tokens: PackedTokens) -> torch.Tensor:
        if tokens.total > 40:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return compute(self, tokens)

    monkeypatch.setattr(BiEncoder, "forward", small_memory)
    texts = TEXTS * 3
    vectors = embedder.encode(texts)
    monkeypatch.undo()
    np.testing.assert_allclose(vectors, tiny.encode(texts), atol=1e-6)
    assert "cpu ran out of memory; batches now have" in capsys.readouterr().err
    assert embedder.batch_tokens <= 40


def test_no_memory_for_a_single_text_is_an_error(folder: Path, monkeypatch: Any) -> None:
    embedder = Embedder(folder, device="cpu")

    def no_memory(self: BiEncoder, tokens: PackedTokens) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(BiEncoder, "forward", no_memory)
    with pytest.raises(ModelError, match="too little memory for one text of 3 tokens"):
        embedder.encode("cat")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda vectors: vectors * np.nan, "gives a vector that is not finite for 'a'"),
        (lambda vectors: vectors[::-1], r"gives wrong vectors: .* -?0\."),
    ],
)
def test_a_precision_that_computes_wrongly_is_refused_and_not_taken_by_itself(
    folder: Path, monkeypatch: Any, capsys: Any, fault: Any, message: str
) -> None:
    from sbert_search.embed.engines.native import NativeEngine

    start = NativeEngine.start

    def broken(self: NativeEngine, tokens: TokenizedTexts) -> Callable[[], Vectors]:
        vectors = start(self, tokens)()
        moved = next(self.model.encoder.parameters()).dtype.itemsize == 2
        return lambda: np.ascontiguousarray(fault(vectors)) if moved else vectors

    monkeypatch.setattr(NativeEngine, "start", broken)
    monkeypatch.setattr("sbert_search.embed.engines.native.inference_precision", bf16_is_faster)
    embedder = Embedder(folder, device="cpu")
    assert embedder.identity.precision == "fp32"
    assert embedder.opened.verdict is None
    assert "Continuing in fp32." in capsys.readouterr().err
    with pytest.raises(ModelError, match=f"native on cpu in bf16 {message}"):
        Embedder(folder, device="cpu", precision="bf16")


def test_the_measured_precision_is_taken_unless_one_is_named(
    folder: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("sbert_search.embed.engines.native.inference_precision", bf16_is_faster)
    assert Embedder(folder, device="cpu").identity.precision == "bf16"
    assert Embedder(folder, device="cpu").opened.verdict == verdict("bf16")
    assert Embedder(folder, device="cpu", precision="fp32").opened.verdict is None
    library = Embedder(folder, device="cpu", engine="sentence-transformers")
    assert library.identity.precision == "fp32"


def test_impossible_settings_are_named(folder: Path) -> None:
    unknown: Any = "jax"
    engines = "There is no engine 'jax'; use native, onnx or sentence-transformers"
    with pytest.raises(ConfigError, match=engines):
        Embedder(folder, engine=unknown)
    precisions = "precision is 'jax'; use auto, fp32, bf16, fp16, int8, fastest"
    with pytest.raises(ConfigError, match=precisions):
        Embedder(folder, device="cpu", precision=unknown)
    with pytest.raises(ConfigError, match="no prompt 'off'"):
        Embedder(folder, device="cpu", default_prompt_name="off")
    for wrong in (0, -3):
        with pytest.raises(ConfigError, match=f"truncate_dim is {wrong}; it must be at least 1"):
            Embedder(folder, device="cpu", truncate_dim=wrong)
        with pytest.raises(ConfigError, match=f"batch_tokens is {wrong}; it must be at least 1"):
            Embedder(folder, device="cpu", batch_tokens=wrong)
    with pytest.raises(ModelError, match="no model folder"):
        Embedder("./nowhere")


@pytest.mark.parametrize(
    "left_out", ["sentence_transformers", "sbert_ce_default_activation_function"]
)
def test_a_cross_encoder_is_refused(left_out: str, tmp_path: Path) -> None:
    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "pairs")
    config = json.loads((tmp_path / "pairs/config.json").read_text())
    del config[left_out]  # each version of sentence-transformers writes one of the two
    (tmp_path / "pairs/config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="pairs is a CrossEncoder; it can rerank hits"):
        Embedder(tmp_path / "pairs", device="cpu")


def test_the_head_of_a_plain_model_of_labels_is_said_to_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "labels"
    tiny_cross_encoder(tmp_path / "tokens").save(folder)
    (folder / "config_sentence_transformers.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    del config["sentence_transformers"], config["sbert_ce_default_activation_function"]
    (folder / "config.json").write_text(json.dumps(config))
    engines: tuple[EngineName, ...] = ("native", "sentence-transformers")
    for engine in engines:
        Embedder(folder, device="cpu", engine=engine)
        told = capsys.readouterr().err
        assert "is a BertForSequenceClassification without modules.json: its head is left" in told
    tiny_bi_encoder(tmp_path / "t").save(tmp_path / "texts")
    Embedder(tmp_path / "texts", device="cpu")
    assert "head" not in capsys.readouterr().err


def test_a_bi_encoder_whose_config_comes_from_a_cross_encoder_is_read(
    folder: Path, tiny: Embedder, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["sbert_ce_default_activation_function"] = "torch.nn.modules.linear.Identity"
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    vectors = Embedder(tmp_path / "model", device="cpu").encode(TEXTS)
    np.testing.assert_array_equal(vectors, tiny.encode(TEXTS))


def test_the_command_line_says_which_model_it_took(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_embedder(str(folder), device="cpu", precision="fp32")
    assert f"Model {folder} (folder): 16 dimensions, engine native, fp32 on cpu." in (
        capsys.readouterr().err
    )
    hashing = open_embedder("hashing:64")
    assert isinstance(hashing, HashingEmbedder)
    assert hashing.dim == 64


def test_a_folder_called_hashing_is_a_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hashing").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_embedder(Path("hashing"), device="cpu", precision="fp32"), Embedder)


def test_weights_of_another_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"weights of the model are torch\.float64; convert them"):
        Embedder(tiny_bi_encoder(tmp_path).double())
