"""Model folders of many kinds: the same numbers as sentence-transformers, or a refusal by name."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from sbert_search.embed.embedder import Embedder
from sbert_search.errors import ModelError
from sbert_search.models.sequence_classifier import CrossEncoder as OurCrossEncoder
from sbert_search.search.rerankers import Reranker
from tests.models.tiny import PAIRS, TEXTS
from tests.parity.folders import (
    BI_ENCODERS,
    FAMILIES,
    POSITIONS,
    bare,
    change_tensors,
    edit,
    legacy_settings,
    listed,
    processed,
    rename,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

TOLERANCE = 2e-6  # of what is of length 4 or so; sums in another order differ by this
ENGINES: tuple[Any, ...] = ("native", "sentence-transformers")
BY_LIBRARY = {
    "nomic_bert",
    "roberta of two files",
    "layer norm",
    "weighted layers",
    "static with a residual",
    "prompt left out",
    "cut on the left",
    "no special tokens",
    "other normalised",
    "tokens normalised",
}
MORE_TEXTS = ["a <pad> and <pad><pad> the cat", "[PAD] the [MASK] sat"]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", BI_ENCODERS)
def test_vectors_equal_the_library(tmp_path: Path, kind: str) -> None:
    folder = BI_ENCODERS[kind](tmp_path)
    library = SentenceTransformer(str(folder), device="cpu")
    cut = [text for text in [*TEXTS, *MORE_TEXTS] if _tokens(library, text) <= 36]
    expected = library.encode(cut)
    for engine in ENGINES:
        ours = Embedder(folder, device="cpu", engine=engine, precision="fp32")
        by_library = engine != "native" or kind in BY_LIBRARY
        own = "static" if kind.startswith("static") else "native"
        assert ours.identity.engine == ("sentence-transformers" if by_library else own)
        np.testing.assert_allclose(ours.encode(cut), expected, atol=TOLERANCE, rtol=TOLERANCE)
        has_norm_1 = np.allclose(np.linalg.norm(expected, axis=1), 1)
        assert ours.identity.normalize == Embedder(library).identity.normalize == has_norm_1
        assert ours.encode(["the red sun " * 200]).shape == (1, expected.shape[1])


def _tokens(library: SentenceTransformer, text: str) -> int:
    """Count what the library would read, which above the positions fails there."""
    encode = getattr(library.tokenizer, "tokenize", None)
    most = library.max_seq_length or 0
    return 0 if encode is None else min(most, len(encode(text)) + 2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_whose_vectors_depend_on_the_batch_is_refused(
    tmp_path: Path, precision: Any
) -> None:
    """The reason is the padding, and not the device or the precision."""
    folder = listed(tmp_path, Pooling(16))
    edit(folder, "tokenizer_config.json", padding_side="left", truncation_side="left")
    told = r"depend on the batch: for 'a', .* Its tokenizer pads on the left, .*: set padding_side"
    with pytest.raises(ModelError, match=told) as raised:
        Embedder(folder, device="cpu", precision=precision)
    assert "--device" not in str(raised.value)
    with pytest.raises(ModelError, match=told):
        Embedder(SentenceTransformer(str(folder), device="cpu"))
    edit(folder, "tokenizer_config.json", padding_side="right")
    opened = Embedder(folder, device="cpu", precision=precision)
    assert opened.identity.engine == "sentence-transformers"


LIMITS = {"limit of texts": 6, "limit above": 30, "limit of all": 5, "limit beyond": POSITIONS}
KINDS = BI_ENCODERS | {"limit beyond": partial(processed, common={"max_length": 10 * POSITIONS})}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", LIMITS)
def test_the_limits_of_processing_kwargs_are_the_limits(tmp_path: Path, kind: str) -> None:
    """Texts are counted, split and cut by the number of tokens that the library reads."""
    folder, text = KINDS[kind](tmp_path), "the red sun sat on the cat " * 8
    library = SentenceTransformer(str(folder), device="cpu")
    longer_fail = kind == "limit beyond"  # in the library
    for model in (folder,) if longer_fail else (folder, library):
        for engine in ENGINES if model is folder else ("native",):
            ours = Embedder(model, device="cpu", engine=engine, precision="auto")
            assert ours.max_len == ours.identity.max_len == LIMITS[kind]
            assert ours.tokenize([text]).lost == [58 - LIMITS[kind]]
            cut = ours.split(text)
            assert all(ours.tokenize([text[a:b]]).lost == [0] for a, b in cut)
            assert len(cut) > 1
            read = " ".join(text.split()[: LIMITS[kind] - 2])
            np.testing.assert_allclose(ours.encode([text]), library.encode([read]), atol=TOLERANCE)
    if not longer_fail:
        np.testing.assert_allclose(library.encode([text]), library.encode([read]), atol=TOLERANCE)
    pairs = bare(tmp_path / "pairs", "bert", "ForSequenceClassification", num_labels=1)
    CrossEncoder(str(pairs), device="cpu").save(str(tmp_path / "saved"))
    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    limits = {"processing_kwargs": settings["processing_kwargs"]}
    edit(tmp_path / "saved", "sentence_bert_config.json", **limits)
    first = Reranker(tmp_path / "saved", engine="native", precision="fp32")
    assert first.max_len == LIMITS[kind]
    second = Reranker(tmp_path / "saved", engine="sentence-transformers", precision="fp32")
    long = [(text, PAIRS[0][1]), PAIRS[0]]
    np.testing.assert_allclose(first.predict(long), second.predict(long), atol=TOLERANCE)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", [*ENGINES, "onnx", None])
@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("query_length", 8, "query_length is 8, which treats queries and documents differently"),
        ("document_length", 16, "document_length is 16, .* Remove document_length"),
        ("processing_kwargs", {"text": {"truncation": False}}, "turns truncation off"),
        ("processing_kwargs", {"text": {"max_length": "9"}}, "max_length .* is '9'; it must be"),
        ("processing_kwargs", {"text": 9}, "it must map text and common to settings"),
    ],
)
def test_lengths_that_cannot_be_kept_are_refused(
    tmp_path: Path, setting: str, value: object, told: str, engine: Any
) -> None:
    """The folder by each engine, and None: the library's model in memory."""
    folder = edit(listed(tmp_path, Pooling(16)), "sentence_bert_config.json", **{setting: value})
    if engine is not None:
        with pytest.raises(ModelError, match=told):
            Embedder(folder, engine=engine)
    elif value != {"text": 9}:  # at which the library fails too
        model = SentenceTransformer(str(folder), device="cpu")
        with pytest.raises(ModelError, match=told):
            Embedder(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_the_library(tmp_path: Path, family: str) -> None:
    folder = bare(tmp_path / "bare", family, "ForSequenceClassification", num_labels=3)
    library = CrossEncoder(str(folder), device="cpu")
    library.save(str(tmp_path / "listed"))  # with modules.json
    expected = library.predict(PAIRS)
    for name, engine in itertools.product(("bare", "listed"), ENGINES):
        ours = Reranker(tmp_path / name, device="cpu", engine=engine, precision="fp32")
        by_library = engine != "native" or family in BY_LIBRARY
        assert ours.identity.engine == ("sentence-transformers" if by_library else "native")
        np.testing.assert_allclose(ours.predict(PAIRS), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_modernbert_can_read_the_mean_of_the_states(tmp_path: Path) -> None:
    """As gte-reranker-modernbert-base does; both ways."""
    mean = {"classifier_pooling": "mean", "num_labels": 1}
    folder = bare(tmp_path / "bare", "modernbert", "ForSequenceClassification", **mean)
    expected = CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    OurCrossEncoder.load(folder).save(tmp_path / "saved")
    again = CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(PAIRS)
    ours = Reranker(tmp_path / "saved", device="cpu", precision="fp32")
    assert ours.identity.engine == "native"
    for scores in (ours.predict(PAIRS), again):
        np.testing.assert_allclose(scores, expected, atol=TOLERANCE, rtol=TOLERANCE)
    edit(folder, "config.json", classifier_pooling="cls")
    first = Reranker(folder, device="cpu", precision="fp32").predict(PAIRS)
    assert np.abs(first - expected).max() > 1e-3


@pytest.mark.parametrize("changes", [{"pooler_hidden_act": "relu"}, {"embedding_size": 8}])
def test_a_deberta_that_we_cannot_compute_is_computed_by_the_library(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = bare(tmp_path, "deberta", "ForSequenceClassification", num_labels=3, **changes)
    expected = CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    ours = Reranker(folder, device="cpu", precision="fp32")
    assert ours.identity.engine == "sentence-transformers"
    np.testing.assert_allclose(ours.predict(PAIRS), expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in BY_LIBRARY])
def test_what_is_saved_here_scores_equal_in_the_library(tmp_path: Path, family: str) -> None:
    """As after training: a fresh head on an encoder, saved, and read by both."""
    start = bare(tmp_path / "start", family)
    ours = OurCrossEncoder.start(start, labels=["no", "maybe", "yes"]).eval()
    with torch.no_grad():
        for parameter in ours.out.parameters():
            parameter.normal_()
    ours.save(tmp_path / "saved")
    mine = Reranker(ours).predict(PAIRS)
    again = Reranker(tmp_path / "saved", device="cpu", precision="fp32").predict(PAIRS)
    theirs = CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(PAIRS)
    np.testing.assert_allclose(again, mine, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(theirs, mine, rtol=1e-5, atol=1e-5)
    swapped = Reranker(ours).predict([(b, a) for a, b in PAIRS])
    assert np.abs(swapped - mine).max() > 0.01  # the two texts of a pair are told apart


@pytest.mark.parametrize("names", [["input_ids", "token_type_ids"], ["input_ids"]])
@pytest.mark.parametrize("family", ["bert", "albert"])
def test_segments_are_sent_where_the_tokenizer_says_so(
    tmp_path: Path, family: str, names: list[str]
) -> None:
    folder = bare(tmp_path, family, "ForSequenceClassification", num_labels=1)
    edit(folder, "tokenizer_config.json", model_input_names=[*names, "attention_mask"])
    expected = CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    np.testing.assert_allclose(
        Reranker(folder, precision="fp32").predict(PAIRS), expected, atol=TOLERANCE
    )


@pytest.mark.thorough
def test_the_kinds_differ_from_each_other(tmp_path: Path) -> None:
    """A maker that forgot its change would compare the same folder again."""
    poolings = ("bert", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    vectors = [
        Embedder(BI_ENCODERS[kind](tmp_path / str(n)), precision="fp32").encode(TEXTS[:2])
        for n, kind in enumerate((*poolings, "layer norm", "weighted layers", "prompts"))
    ]
    for one, other in itertools.combinations(vectors, 2):
        assert np.abs(one - other).max() > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_prompt_can_be_named(tmp_path: Path, engine: Any) -> None:
    prompts = {"question": "the red ", "passage": "", "clustering": None}
    folder = listed(tmp_path, Pooling(16))
    edit(
        folder, "config_sentence_transformers.json", prompts=prompts, default_prompt_name="passage"
    )
    library = SentenceTransformer(str(folder), device="cpu")
    ours = Embedder(folder, device="cpu", engine=engine, precision="fp32")
    for name in (None, *prompts):
        expected = library.encode(TEXTS, prompt_name=name)
        got = ours.encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(got, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert ours.identity.prompts == {"question": "the red "}


@pytest.mark.parametrize("truncate_dim", [3, 5, 9, 99])
def test_dimensions_asked_for_go_before_those_of_the_model(
    tmp_path: Path, truncate_dim: int
) -> None:
    folder = BI_ENCODERS["truncated"](tmp_path)
    library = SentenceTransformer(str(folder), device="cpu")
    expected = library.encode(TEXTS, truncate_dim=truncate_dim)
    got = Embedder(folder, device="cpu", precision="fp32").encode(TEXTS, truncate_dim=truncate_dim)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"]
)
def test_old_names_of_settings_are_read(tmp_path: Path, name: str) -> None:
    folder = legacy_settings(tmp_path, f"sentence_{name}_config.json")
    library = SentenceTransformer(str(folder), device="cpu")
    assert Embedder(folder, device="cpu", precision="fp32").max_len == library.max_seq_length == 7


@pytest.mark.parametrize("engine", ENGINES)
def test_a_limit_above_the_positions_is_lowered_and_said(
    tmp_path: Path, engine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    embedder = Embedder(
        BI_ENCODERS["long limit"](tmp_path), device="cpu", engine=engine, precision="fp32"
    )
    assert embedder.max_len == 40
    assert "max_seq_length is 400, but the model has 40 positions" in capsys.readouterr().err


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "prefixed names": (lambda f: rename(f, lambda name: f"foo.{name}"), r"(?i)(lack|missing)"),
    "missing layer": (
        lambda f: rename(f, lambda name: None if "layer.1." in name or ".1.at" in name else name),
        r"(?i)(lack|missing).*1\.",
    ),
    "one layer too many": (
        lambda f: rename(
            edit(f, "config.json", num_hidden_layers=1, n_layers=1), lambda name: name
        ),
        r"(?i)(does not use|unknown).*1\.",
    ),
    "wrong shape": (
        lambda f: change_tensors(f, {_words(f): torch.zeros(7, 16)}),
        r"(other shape|has shape)",
    ),
    "no layers": (
        lambda f: edit(f, "config.json", num_hidden_layers=-1, n_layers=-1),
        r"is -1; it must be",
    ),
    "1e9 layers": (
        lambda f: edit(f, "config.json", num_hidden_layers=10**9, n_layers=10**9),
        r"is 1000000000; it must be",
    ),
    "no tokenizer": (
        lambda f: _without(f, "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt"),
        "holds no tokenizer",
    ),
}


def _words(folder: Path) -> str:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        names: list[str] = list(file.keys())
    return next(name for name in names if "word_emb" in name)


def _without(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).unlink(missing_ok=True)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", ["distilbert", "nomic_bert"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, kind: str, family: str, engine: Any
) -> None:
    spoil, told = HOSTILE[kind]
    folder = spoil(bare(tmp_path, family))
    with pytest.raises(ModelError, match=told):
        Embedder(folder, device="cpu", engine=engine, precision="fp32")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", ["bert", "roberta", "deberta", "mpnet", "nomic_bert"])
def test_a_classifier_without_its_head_is_refused(tmp_path: Path, family: str, engine: Any) -> None:
    folder = bare(tmp_path, family, "ForSequenceClassification", num_labels=1)
    rename(folder, lambda name: None if "classifier" in name else name)
    with pytest.raises(ModelError, match="classifier"):
        Reranker(folder, device="cpu", engine=engine, precision="fp32")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_head_with_a_layer_too_many_is_refused(tmp_path: Path, engine: Any) -> None:
    folder = bare(tmp_path, "bert", "ForSequenceClassification", num_labels=1)
    change_tensors(folder, {"classifier.dense.weight": torch.zeros(16, 16)})
    with pytest.raises(ModelError, match=r"does not use classifier\.dense\.weight"):
        Reranker(folder, device="cpu", engine=engine, precision="fp32")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda f: rename(f, lambda name: f"foo.{name}"), "(?i)missing.*linear.weight"),
        (lambda f: change_tensors(f, {"linear.weight": torch.zeros(3, 16)}), "linear.weight"),
        (lambda f: change_tensors(f, {"more.weight": torch.zeros(3)}), r"more\.weight"),
    ],
)
def test_a_dense_layer_that_does_not_fit_is_refused(
    tmp_path: Path, spoil: Callable[[Path], Path], told: str, engine: Any
) -> None:
    folder = BI_ENCODERS["dense"](tmp_path)
    spoil(folder / "2_Dense")
    with pytest.raises(ModelError, match=told):
        Embedder(folder, device="cpu", engine=engine, precision="fp32")


def test_nothing_is_shown_while_the_library_loads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = rename(bare(tmp_path, "nomic_bert"), lambda n: None if "pooler" in n else n)
    capfd.readouterr()
    Embedder(folder, device="cpu", precision="fp32")
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1  # our own note
