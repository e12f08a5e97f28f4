"""Students that learn the vectors of a teacher: their layers, their space, and what is cached."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from sbert_search.embed.embedder import Embedder
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import ConfigError
from sbert_search.index.index import Index
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.heads import Dense, Normalize
from sbert_search.models.initialization import keep_layers, linear_map
from sbert_search.train.bi_encoder import BiEncoderRecipe, open_model, train_bi_encoder
from sbert_search.train.loop.log import read_log
from sbert_search.train.recipe import load_recipe
from tests.models.tiny import TEXTS, TOKENS, WORDS, tiny_encoder, tiny_static, tiny_tokenizer
from tests.train.small import unlike

ROOT = Path(__file__).parents[3]


def texts_of(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return list({" ".join(draw.choices(WORDS, k=draw.randint(3, 8))): None for _ in range(count)})


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a teacher of six layers, training texts and held-out texts."""
    folder = tmp_path_factory.mktemp("given")
    encoder = tiny_encoder(layers=6, initializer_range=0.1)
    head, prompts = [Normalize()], {"query": "the cat "}
    tokenizer = tiny_tokenizer(folder / "tokens")
    BiEncoder(encoder, tokenizer, head=head, prompts=prompts).save(folder / "teacher")
    for name, seed, count in (("texts", 0, 600), ("dev", 1, 60)):
        (folder / f"{name}.txt").write_text("\n".join(texts_of(seed, count)))
    return folder


def recipe_of(given: Path, *settings: str) -> BiEncoderRecipe:
    data = [f"data.train={given / 'texts.txt'}", f"teacher={given / 'teacher'}", "device=cpu"]
    quick = ["budget.steps=2", "batching.size=16", "optim.lr=3e-3"]
    return load_recipe(BiEncoderRecipe, "bi-encoder", "distill", [*data, *quick, *settings])


@pytest.mark.parametrize(("layers", "kept"), [(2, [0, 5]), (3, [0, 2, 5]), ((0, 1), [0, 1])])
def test_a_student_starts_with_layers_of_its_teacher(
    given: Path, layers: int | tuple[int, ...], kept: list[int]
) -> None:
    setting = layers if isinstance(layers, int) else list(layers)
    student = open_model(recipe_of(given, f"layers={setting}"))
    teacher = BiEncoder.load(given / "teacher").encoder
    assert student.encoder.config.layers == len(kept)
    for block, layer in zip(student.encoder.blocks, kept, strict=True):
        states = block.state_dict(), teacher.blocks[layer].state_dict()
        torch.testing.assert_close(*states, rtol=0, atol=0)
    states = student.encoder.embeddings.state_dict(), teacher.embeddings.state_dict()
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_all_layers_give_the_states_of_the_model(given: Path) -> None:
    teacher = BiEncoder.load(given / "teacher")
    student = open_model(recipe_of(given, "layers=6"))
    expected = Embedder(teacher).encode(TEXTS)
    np.testing.assert_array_equal(Embedder(student).encode(TEXTS), expected)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (7, "layers is 7, and the model has 6 layers"),
        (0, "layers is 0, and the model has 6 layers"),
        ([3, 1], r"layers is \[3, 1\]; list layers from 0 to 5 once, in their order"),
        ([0, 6], r"layers is \[0, 6\]; list layers from 0 to 5"),
    ],
)
def test_layers_that_a_model_lacks_are_refused(layers: int | list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        keep_layers(tiny_encoder(layers=6), layers)


def test_layers_keep_how_they_attend() -> None:
    """Of ModernBERT, only the first of each three layers attends to whole texts."""
    shape: dict[str, Any] = {"hidden_size": 16, "heads": 2, "intermediate_size": 24, "layers": 6}
    alternating = EncoderConfig(
        vocab_size=len(TOKENS), global_every=3, local_reach=4, pre_norm=True, **shape
    )
    assert keep_layers(Encoder(alternating), [0, 4, 5]).config.layers == 3
    with pytest.raises(ConfigError, match=r"layers \[0, 3\] cannot take .* Use layers=\[0, 1\]"):
        keep_layers(Encoder(alternating), [0, 3])
    with pytest.raises(ConfigError, match="layers share their weights"):
        keep_layers(tiny_encoder(layers=6, layer_groups=2), 2)


def test_a_map_is_that_of_least_squares() -> None:
    draw = torch.Generator().manual_seed(0)
    inputs, weight = torch.randn(50, 3, generator=draw), torch.randn(4, 3, generator=draw)
    dense = linear_map(inputs, inputs @ weight.T + 2)
    torch.testing.assert_close(dense.linear.weight, weight, atol=1e-3, rtol=0)
    torch.testing.assert_close(dense.linear.bias, torch.full((4,), 2.0), atol=1e-3, rtol=0)
    few = linear_map(inputs[:2], torch.tensor([[1.0], [3.0]]))(inputs[:2])
    torch.testing.assert_close(few, torch.tensor([[1.0], [3.0]]), atol=1e-2, rtol=0)


@pytest.mark.parametrize("settings", [(), ("loss.name=embedding_cosine", "loss.l2=0.5")])
def test_a_student_comes_closer_to_its_teacher_on_other_texts(
    given: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    more = [f"data.dev={given / 'dev.txt'}", "budget.steps=60", "evaluation.every=60"]
    train_bi_encoder(recipe_of(given, "layers=2", *more, *settings), tmp_path)
    lines = [line for line in read_log(tmp_path / "log.jsonl") if line["kind"] == "dev"]
    start, end = (line["figures"]["cosine"] for line in lines)
    assert 1 - end < (1 - start) / 2
    texts = (given / "dev.txt").read_text().split("\n")
    taught, learned = (
        Embedder(path, precision="fp32").encode(texts)
        for path in (given / "teacher", tmp_path / "model")
    )
    assert (taught * learned).sum(axis=1).mean() == pytest.approx(end, abs=1e-5)


def test_a_step_embeds_a_text_once(given: Path, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("the cat sat\na\n")
    settings = [f"data.train={tmp_path / 'two.txt'}", "layers=1", "budget.steps=1"]
    run = train_bi_encoder(recipe_of(given, *settings), tmp_path / "run")
    assert run.state.tokens == 5 + 3  # with [CLS] and [SEP]


def narrow(folder: Path, hidden: int = 8) -> Path:
    """Save a pre-trained encoder of another width, with a vocabulary of its own order."""
    encoder = tiny_encoder(hidden_size=hidden, initializer_range=0.2)
    BiEncoder(encoder, tiny_tokenizer(folder / "tokens")).save(folder / "narrow")
    return folder / "narrow"


def test_a_student_of_another_width_is_a_query_model_of_its_teachers_index(
    given: Path, tmp_path: Path
) -> None:
    settings = [f"model={narrow(tmp_path)}", "budget.steps=100"]
    train_bi_encoder(recipe_of(given, *settings), tmp_path / "run")
    student = tmp_path / "run" / "model"
    head = list(BiEncoder.load(student).head)
    assert [type(part) for part in head] == [Dense, Normalize]
    assert isinstance(head[0], Dense)
    assert head[0].settings() == {
        "in_features": 8,
        "out_features": 16,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    library = SentenceTransformer(str(student), device="cpu")
    ours = Embedder(student, precision="fp32").encode(TEXTS)
    np.testing.assert_allclose(ours, library.encode(TEXTS), atol=1e-5)
    index = Index.from_texts((given / "dev.txt").read_text().split("\n"), model=given / "teacher")
    assert index.add_query_model(student).cosine > 0.5


def test_the_dense_layer_starts_near_the_teacher(given: Path, tmp_path: Path) -> None:
    dev = [f"data.dev={given / 'dev.txt'}", "optim.lr=1e-9"]
    train_bi_encoder(recipe_of(given, f"model={narrow(tmp_path)}", *dev), tmp_path / "run")
    lines = [line for line in read_log(tmp_path / "run" / "log.jsonl") if line["kind"] == "dev"]
    assert lines[0]["figures"]["cosine"] > 0.9


@pytest.mark.thorough
@pytest.mark.parametrize("unit", [None, False])
def test_embeddings_have_the_norm_of_the_teachers(
    given: Path, tmp_path: Path, unit: bool | None
) -> None:
    more = [] if unit is None else ["unit_length=false"]
    settings = [f"model={narrow(tmp_path, 16)}", *more]
    train_bi_encoder(recipe_of(given, *settings), tmp_path / "run")
    head = list(BiEncoder.load(tmp_path / "run" / "model").head)
    assert [type(part) for part in head] == ([Normalize] if unit is None else [])


@pytest.mark.thorough
def test_truncated_embeddings_learn_those_of_the_teacher(given: Path, tmp_path: Path) -> None:
    settings = ["layers=2", "loss.matryoshka=[16, 4]", "budget.steps=60"]
    train_bi_encoder(recipe_of(given, *settings), tmp_path / "run")
    texts = (given / "dev.txt").read_text().split("\n")
    taught, learned = (
        Embedder(path, precision="fp32", truncate_dim=4).encode(texts, normalize_embeddings=True)
        for path in (given / "teacher", tmp_path / "run" / "model")
    )
    assert (taught * learned).sum(axis=1).mean() > 0.95
    with pytest.raises(ConfigError, match=r"matryoshka is \[32\], but .* have 16 dimensions"):
        train_bi_encoder(recipe_of(given, "layers=2", "loss.matryoshka=[32]"), tmp_path / "large")


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[TokenizedTexts]:
    """Use an empty vector cache; return a list that gets each text which a teacher embeds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    seen, original = list[TokenizedTexts](), Embedder.encode_tokens

    def encode_tokens(self: Embedder, tokens: TokenizedTexts) -> Vectors:
        seen.append(tokens)
        return original(self, tokens)

    monkeypatch.setattr(Embedder, "encode_tokens", encode_tokens)
    return seen


def test_vectors_of_a_teacher_are_cached_by_its_identity(
    given: Path, tmp_path: Path, embedded: list[TokenizedTexts]
) -> None:
    def n_embedded(name: str, *settings: str) -> int:
        embedded.clear()
        train_bi_encoder(recipe_of(given, "layers=1", *settings), tmp_path / name)
        return sum(map(len, embedded))

    n_texts = len((given / "texts.txt").read_text().split("\n"))
    assert n_embedded("first") == n_texts
    assert n_embedded("other-seed", "seed=1") == 0
    (tmp_path / "more.txt").write_text((given / "texts.txt").read_text() + "\ncat " * 3)
    assert n_embedded("more", f"data.train={tmp_path / 'more.txt'}") == 1
    assert n_embedded("prompt", "prompt_names=['query']") == n_texts
    assert all(tokens.prompt == "the cat " for tokens in embedded)
    of_run = "prompt_names=['short']"  # which the teacher lacks
    assert n_embedded("short", 'prompts={short="a "}', of_run) == n_texts
    assert all(tokens.prompt == "a " for tokens in embedded)
    assert n_embedded("again", 'prompts={short="a "}', of_run, "seed=1") == 0
    assert n_embedded("longer", 'prompts={short="a cat "}', of_run) == n_texts
    assert n_embedded("own", 'prompts={query="a "}', "prompt_names=['query']") == 0
    changed = BiEncoder.load(given / "teacher")
    with torch.no_grad():
        changed.encoder.embeddings.word.weight[5] += 1
    changed.save(tmp_path / "changed")
    assert n_embedded("changed", f"teacher={tmp_path / 'changed'}") == n_texts


@pytest.mark.thorough
def test_a_killed_distillation_ends_in_the_same_bits(given: Path, tmp_path: Path) -> None:
    def run(name: str, kind: str) -> int:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        if not (folder / "texts.txt").exists():
            (folder / "texts.txt").write_text("\n".join(texts_of(2, 1500)))
            BiEncoder.load(given / "teacher").save(folder / "teacher")
        cache = {"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.train.distilled_child", str(folder / "run"), kind]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **cache}, capture_output=True, check=False
        )
        return done.returncode

    assert run("peace", "never") == 0
    assert run("killed", "embed") < 0
    assert len(list((tmp_path / "killed").glob("cache/**/*.vectors"))) == 1
    assert run("killed", "train") < 0
    assert list((tmp_path / "killed" / "run").glob("ckpt-*"))
    assert run("killed", "never") == 0
    assert not unlike(tmp_path / "peace" / "run", tmp_path / "killed" / "run")


def test_a_model_or_layers_are_needed(given: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it with .*model=.*, or layers=2 to start with layers"):
        train_bi_encoder(recipe_of(given), tmp_path)


def test_no_training_starts_from_a_table(given: Path, tmp_path: Path) -> None:
    table = tiny_static(tmp_path / "table")
    for settings in ([f"model={table}"], [f"teacher={table}", "layers=1"]):
        with pytest.raises(ConfigError, match=r"table is a static model, .* model=static makes"):
            train_bi_encoder(recipe_of(given, *settings), tmp_path / "run")
