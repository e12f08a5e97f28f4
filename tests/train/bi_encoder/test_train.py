"""Training sentence encoders from files, on a tiny model."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from torch import nn

from sbert_search.base.distributed import Ranks
from sbert_search.cli.train import train
from sbert_search.embed.embedder import Embedder
from sbert_search.errors import CheckpointError, ConfigError, ModelError, TrainingError
from sbert_search.index.index import Index
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.heads import Dense
from sbert_search.models.sequence_classifier import CrossEncoder
from sbert_search.models.side_file import SideFile, write_side_file
from sbert_search.train import bi_encoder as bi_encoder_train
from sbert_search.train.bi_encoder import BiEncoderRecipe, open_model, train_bi_encoder
from sbert_search.train.data.examples import Example
from sbert_search.train.data.mining import score_by_teacher
from sbert_search.train.data.text_dataset import arrange
from sbert_search.train.loop.log import read_log
from sbert_search.train.loop.schedule import BudgetConfig
from sbert_search.train.recipe import load_recipe, shipped_recipes
from tests.models.tiny import (
    TEXTS,
    WORDS,
    tiny_bi_encoder,
    tiny_cross_encoder,
    tiny_encoder,
    tiny_tokenizer,
)
from tests.parity.folders import bare
from tests.train.small import unlike

DRAW = np.random.default_rng(5)


def text() -> str:
    return " ".join(DRAW.choice(WORDS, 6))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model and a file of every kind."""
    folder = tmp_path_factory.mktemp("given")
    tiny_bi_encoder(folder / "tokens").save(folder / "model")
    tiny_cross_encoder(folder / "tokens").save(folder / "teacher")
    labels = ["entailment", "neutral", "contradiction"]
    pairs = [{"sentence1": text(), "sentence2": text()} for _ in range(24)]
    rows: dict[str, list[dict[str, Any]]] = {
        "nli": [{**pair, "label": labels[n % 3]} for n, pair in enumerate(pairs)],
        "sts": [{**pair, "score": n % 6} for n, pair in enumerate(pairs)],
        "binary": [{**pair, "label": n % 2} for n, pair in enumerate(pairs)],
        "alike": [{**p, "label": ("alike", "other")[n % 2]} for n, p in enumerate(pairs)],
        "pairs": pairs,
        "triplets": [{"anchor": text(), "positive": text(), "negative": text()} for _ in range(24)],
        "groups": [{"texts": [text(), text(), text()]} for _ in range(8)],
        "texts": [{"text": text()} for _ in range(24)],
        "classes": [{"text": text(), "label": str(n % 4)} for n in range(24)],
    }
    files = {name: write(folder / f"{name}.jsonl", some) for name, some in rows.items()}
    return {"model": folder / "model", "teacher": folder / "teacher", **files}


def recipe_of(given: dict[str, Path], name: str, data: str, *more: str) -> BiEncoderRecipe:
    overrides = [f"model={given['model']}", f"data.train={given[data]}", "device=cpu"]
    quick = ["budget.steps=2", "batching.size=8", "optim.lr=1e-3", "schedule.warmup=0"]
    each = [*overrides, *quick, "evaluation.every=2", *more]
    return load_recipe(BiEncoderRecipe, "bi-encoder", name, each)


RECIPES = {
    "nli": ("nli",),
    "stsb": ("sts",),
    "triplet": ("triplets",),
    "mnrl-nli": ("nli",),
    "paraphrase": ("groups",),
    "query-passage": ("pairs",),
    "simcse": ("texts",),
    "distill": ("texts", "teacher=MODEL"),
    "static": ("texts", "teacher=MODEL", "model=static"),
    "nli-then-stsb": ("sts", "first.data.train=NLI", "first.budget.steps=2"),
}


def test_every_shipped_recipe_is_tried_here() -> None:
    assert set(RECIPES) == set(shipped_recipes("bi-encoder"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_ends_in_a_folder_that_the_library_loads(
    given: dict[str, Path], tmp_path: Path, name: str
) -> None:
    data, *more = RECIPES[name]
    more = [m.replace("MODEL", str(given["model"])).replace("NLI", str(given["nli"])) for m in more]
    recipe = recipe_of(given, name, data, f"data.dev={given['sts']}", *more)
    result = train_bi_encoder(recipe, tmp_path)
    assert result.state.step == 2
    ours = Embedder(tmp_path / "model", precision="fp32").encode(TEXTS)
    library = SentenceTransformer(str(tmp_path / "model"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(ours, library.encode(TEXTS), atol=2e-6)
    assert not np.allclose(
        ours, Embedder(given["model"], precision="fp32").encode(TEXTS), atol=1e-5
    )
    dev = [line for line in read_log(tmp_path / "log.jsonl") if line["kind"] == "dev"]
    assert [(line["step"], *line["figures"]) for line in dev] == [(0, "spearman"), (2, "spearman")]
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert given[data].name in card
    assert "| 2 (this model) |" in card
    assert f'name = "{recipe.loss.name}"' in card


def test_training_and_dev_data_have_the_prompts_of_the_model(
    given: dict[str, Path], tmp_path: Path
) -> None:
    prompts = '{query = "the cat ", document = "a dog "}'
    recipe = recipe_of(
        given, "query-passage", "pairs", f"data.dev={given['sts']}", f"prompts={prompts}"
    )
    train_bi_encoder(recipe, tmp_path / "run")
    first = next(line for line in read_log(tmp_path / "run" / "log.jsonl") if line["kind"] == "dev")
    start = Embedder(
        given["model"], prompts={"query": "the cat ", "document": "a dog "}, precision="fp32"
    )
    rows = [json.loads(line) for line in given["sts"].read_text().splitlines()]
    queries = start.encode_query([row["sentence1"] for row in rows])
    documents = start.encode_document([row["sentence2"] for row in rows])
    cosines = np.einsum("nd,nd->n", queries, documents)
    cosines /= np.linalg.norm(queries, axis=1) * np.linalg.norm(documents, axis=1)
    expected = spearmanr(cosines, [row["score"] for row in rows]).statistic
    assert first["figures"]["spearman"] == pytest.approx(expected, abs=1e-6)
    trained = Embedder(tmp_path / "run" / "model")
    assert trained.description.prompts == {"query": "the cat ", "document": "a dog "}
    with pytest.raises(ConfigError, match="no prompt 'querry'; it has: query, document"):
        train_bi_encoder(
            recipe_of(given, "nli", "nli", 'prompt_names=["querry"]', f"prompts={prompts}"),
            tmp_path / "wrong",
        )


LOSSES = {
    "contrastive": ("binary", "pairs"),
    "online_contrastive": ("binary", "pairs"),
    "cosent": ("sts", "pairs"),
    "angle": ("sts", "pairs"),
    "all_triplets": ("classes", "classes"),
    "hardest_triplets": ("classes", "classes"),
    "semi_hard_triplets": ("classes", "classes"),
    "margin_mse": ("triplets", "triplets"),
    "score_divergence": ("triplets", "triplets"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_every_other_loss_trains(given: dict[str, Path], tmp_path: Path, loss: str) -> None:
    data, form = LOSSES[loss]
    settings = [f"loss.name={loss}", f"data.form={form}"]
    if loss in ("margin_mse", "score_divergence"):
        settings.append(f"teacher={given['teacher']}")
    recipe = recipe_of(given, "stsb", data, *settings, "loss.matryoshka=[16, 8]")
    train_bi_encoder(recipe, tmp_path)
    losses = [line["loss"] for line in read_log(tmp_path / "log.jsonl") if line["kind"] == "step"]
    assert len(losses) == 2
    assert all(loss > 0 for loss in losses)


@pytest.mark.parametrize(
    ("name", "data", "dev", "figure"),
    [
        ("nli", "nli", "nli", "accuracy"),
        ("triplet", "triplets", "triplets", "triplets"),
        ("query-passage", "pairs", "pairs", "found"),
    ],
)
def test_dev_figures_follow_from_the_dev_file(
    given: dict[str, Path], tmp_path: Path, name: str, data: str, dev: str, figure: str
) -> None:
    recipe = recipe_of(given, name, data, f"data.dev={given[dev]}", "evaluation.every=1")
    train_bi_encoder(recipe, tmp_path)
    lines = [line for line in read_log(tmp_path / "log.jsonl") if line["kind"] == "dev"]
    assert [list(line["figures"]) for line in lines] == [[figure]] * 3  # steps 0, 1, 2
    assert all(0 <= line["figures"][figure] <= 1 for line in lines)


def test_the_best_checkpoint_becomes_the_model(given: dict[str, Path], tmp_path: Path) -> None:
    settings = ["evaluation.every=1", "budget.steps=4", "optim.lr=0.05", "schedule.warmup=0"]
    dev = tmp_path / "dev.jsonl"
    dev.write_text(given["sts"].read_text("utf-8") * 10, "utf-8")  # enough rows to choose by
    recipe = recipe_of(given, "stsb", "sts", f"data.dev={dev}", *settings)
    result = train_bi_encoder(recipe, tmp_path)
    assert result.best is not None
    best, published = (
        path / "model.safetensors" for path in (result.best / "model", tmp_path / "model")
    )
    assert best.read_bytes() == published.read_bytes()


def test_a_run_that_is_resumed_ends_in_the_same_model(
    given: dict[str, Path], tmp_path: Path
) -> None:
    settings = ["budget.steps=4", "checkpoint.every=2"]
    recipe = recipe_of(given, "mnrl-nli", "nli", *settings)
    train_bi_encoder(recipe, tmp_path / "whole")
    train_bi_encoder(recipe, tmp_path / "cut")
    for last in (tmp_path / "cut").glob("ckpt-00000004*/*"):
        if last.is_file():
            last.write_bytes(b"")  # damaged: the run goes back to step 2
    train_bi_encoder(recipe, tmp_path / "cut", resume=True)
    whole, cut = (tmp_path / name / "model" / "model.safetensors" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["mpnet", "xlm-roberta", "modernbert"])
def test_a_published_family_is_fine_tuned_and_a_stopped_run_loses_no_bit(
    given: dict[str, Path], tmp_path: Path, family: str
) -> None:
    start = bare(tmp_path / "start", family)
    settings = [f"model={start}", "budget.steps=4", "checkpoint.every=2"]
    recipe = recipe_of(given, "mnrl-nli", "nli", *settings)
    _, cut = (train_bi_encoder(recipe, tmp_path / name) for name in ("whole", "cut"))
    shutil.rmtree(cut.last)
    train_bi_encoder(recipe, tmp_path / "cut", resume=True)
    assert not unlike(tmp_path / "whole", tmp_path / "cut")
    trained = Embedder(tmp_path / "cut" / "model", precision="fp32")
    library = SentenceTransformer(str(tmp_path / "cut" / "model"), device="cpu")
    np.testing.assert_allclose(trained.encode(TEXTS), library.encode(TEXTS), atol=2e-6)
    assert (trained.identity.engine, trained.identity.architecture) == ("native", family)
    changed = trained.identity.differences(Embedder(start, precision="fp32").identity)
    assert [line.partition(":")[0] for line in changed][:1] == ["weights_sha256"]


def test_a_dev_file_that_has_changed_is_refused(given: dict[str, Path], tmp_path: Path) -> None:
    dev = tmp_path / "dev.jsonl"
    shutil.copy(given["sts"], dev)
    recipe = recipe_of(given, "stsb", "sts", f"data.dev={dev}")
    train_bi_encoder(recipe, tmp_path / "run")
    train_bi_encoder(recipe, tmp_path / "run", resume=True)
    write(dev, [{"sentence1": text(), "sentence2": text(), "score": n} for n in range(4)])
    with pytest.raises(CheckpointError, match="dev data was"):
        train_bi_encoder(recipe, tmp_path / "run", resume=True)


def test_a_run_interrupted_in_its_preliminary_run_goes_on(
    given: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"first.data.train={given['nli']}", "first.budget.steps=4"]
    recipe = recipe_of(given, "nli-then-stsb", "sts", *settings, "first.checkpoint.every=2")
    with pytest.raises(CheckpointError, match=r"no usable checkpoint to resume from\. Start again"):
        train_bi_encoder(recipe, tmp_path / "none", resume=True)
    assert not (tmp_path / "none" / "first").exists()
    train_bi_encoder(recipe, tmp_path / "whole")
    first = tmp_path / "cut" / "first"
    first.mkdir(parents=True)
    shutil.copytree(tmp_path / "whole" / "first" / "ckpt-00000002", first / "ckpt-00000002")
    done = CliRunner().invoke(train, ["bi-encoder", "--resume", str(first.parent)])
    assert done.exit_code == 2
    assert "Repeat the command that began" in " ".join(done.output.split())
    train_bi_encoder(recipe, first.parent, resume=True)
    assert [line["step"] for line in read_log(first / "log.jsonl") if line["kind"] == "step"] == [
        3,
        4,
    ]
    whole, cut = (tmp_path / name / "model" / "model.safetensors" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()


def test_a_preliminary_model_of_other_settings_or_data_is_refused(
    given: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nli, run = tmp_path / "nli.jsonl", tmp_path / "run"
    shutil.copy(given["nli"], nli)
    settings = [f"first.data.train={nli}", "first.budget.steps=2"]
    recipe = recipe_of(given, "nli-then-stsb", "sts", *settings)
    train_bi_encoder(recipe, run)
    for checkpoint in run.glob("ckpt-*"):
        shutil.rmtree(checkpoint)
    train_bi_encoder(recipe, run)
    for checkpoint in run.glob("ckpt-*"):
        shutil.rmtree(checkpoint)
    other = recipe_of(given, "nli-then-stsb", "sts", *settings, "first.optim.lr=0.5")
    with pytest.raises(
        CheckpointError, match=r"first.model was made .*: optim\.lr was .*, is 0\.5"
    ):
        train_bi_encoder(other, run)
    rows = nli.read_text("utf-8").splitlines()
    nli.write_text("\n".join(rows[:-1]), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"data are now train: `nli\.jsonl`, sha256"):
        train_bi_encoder(recipe, run)
    train_bi_encoder(recipe, run, allow_inexact=True)
    assert "was made with other settings or data" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("name", "data"), [("nli", "nli"), ("mnrl-nli", "nli")])
def test_a_batch_in_parts_has_the_loss_of_the_whole(
    given: dict[str, Path], tmp_path: Path, name: str, data: str
) -> None:
    encoder = tiny_encoder(hidden_dropout=0.0, attention_dropout=0.0)
    BiEncoder(encoder, tiny_tokenizer(tmp_path / "tokens")).save(tmp_path / "model")
    losses = []
    for parts in ("batching.window=1", "batching.micro_size=3"):
        recipe = recipe_of(given, name, data, f"model={tmp_path / 'model'}", parts)
        train_bi_encoder(
            replace(recipe, batching=replace(recipe.batching, window=1)), tmp_path / parts
        )
        log = read_log(tmp_path / parts / "log.jsonl")
        losses.append([line["loss"] for line in log if line["kind"] == "step"])
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-5)


@pytest.mark.thorough
def test_a_preset_is_made_afresh_with_a_tokenizer(given: dict[str, Path], tmp_path: Path) -> None:
    fresh = ["model=bert-tiny", 'pooling=["cls", "mean"]', "max_len=12"]
    with pytest.raises(ConfigError, match="set tokenizer="):
        train_bi_encoder(recipe_of(given, "stsb", "sts", *fresh), tmp_path / "no")
    recipe = recipe_of(given, "stsb", "sts", *fresh, f"tokenizer={given['model']}")
    train_bi_encoder(recipe, tmp_path / "yes")
    embedder = Embedder(tmp_path / "yes" / "model")
    assert (embedder.dim, embedder.max_len) == (256, 12)


@pytest.mark.parametrize("unit_length", [False, True])
def test_vectors_are_scaled_to_length_1_or_not_as_asked(
    given: dict[str, Path], tmp_path: Path, unit_length: bool
) -> None:
    model = open_model(recipe_of(given, "stsb", "sts", f"unit_length={not unit_length}".lower()))
    model.save(tmp_path / "other")
    settings = (f"model={tmp_path / 'other'}", f"unit_length={unit_length}".lower())
    train_bi_encoder(recipe_of(given, "stsb", "sts", *settings), tmp_path / "run")
    norms = [
        np.linalg.norm(Embedder(tmp_path / folder, precision="fp32").encode(["a b c"]))
        for folder in ("other", "run/model")
    ]
    assert [float(norm) == pytest.approx(1, abs=1e-6) for norm in norms] == [
        not unit_length,
        unit_length,
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("loss", ["all_triplets", "hardest_triplets", "semi_hard_triplets"])
@pytest.mark.parametrize(
    ("labels", "size", "steps"),
    [
        ([n // 2 for n in range(80)], 8, 10),
        ([n // 2 for n in range(200)], 16, 13),
        ([int(n % 20 == 0) for n in range(60)], 8, 10),
    ],
)
def test_every_step_of_a_loss_over_classes_has_a_gradient(
    given: dict[str, Path], tmp_path: Path, labels: list[int], size: int, steps: int, loss: str
) -> None:
    """Texts of a class differ in length, so sorting by length would part them."""
    words = [" ".join(some) for some in product(WORDS, repeat=3)]  # copies would be left out
    rows = [
        {"text": words[n] if n % 2 else f"{words[n]} {text()}", "label": str(label)}
        for n, label in enumerate(labels)
    ]
    write(tmp_path / "classes.jsonl", rows)
    recipe = recipe_of(
        {**given, "classes": tmp_path / "classes.jsonl"},
        "triplet",
        "classes",
        "data.form=classes",
        f"loss.name={loss}",
        "loss.margin=5",
        f"batching.size={size}",
    )
    recipe = replace(recipe, budget=BudgetConfig(epochs=1))
    train_bi_encoder(recipe, tmp_path / "run")
    log = read_log(tmp_path / "run" / "log.jsonl")
    norms = [line["gradient_norm"] for line in log if line["kind"] == "step"]
    assert len(norms) == steps
    assert min(norms) > 0


def test_a_run_over_classes_resumes_bit_for_bit(given: dict[str, Path], tmp_path: Path) -> None:
    def start(out: str, *more: str, resume: bool = False) -> None:
        settings = ("data.form=classes", "loss.name=all_triplets", "checkpoint.every=1", *more)
        recipe = recipe_of(given, "triplet", "classes", *settings)
        train_bi_encoder(recipe, tmp_path / out, resume=resume)

    start("whole", "budget.steps=5", "checkpoint.keep=9")
    start("part", "budget.steps=5", "checkpoint.keep=9")
    for step in (3, 4, 5):
        shutil.rmtree(tmp_path / "part" / f"ckpt-{step:08d}")
    start("part", "budget.steps=5", "checkpoint.keep=9", resume=True)
    assert not unlike(tmp_path / "whole", tmp_path / "part")


@pytest.mark.parametrize(
    ("passages", "size", "cause"),
    [
        (["one passage"] * 40, 8, "the rows share their texts or groups"),
        ([f"{word} passage" for word in WORDS], 1, r"batching\.size is 1 \(in rows\)"),
    ],
)
def test_pairs_that_are_never_negatives_of_each_other_are_refused(
    given: dict[str, Path], tmp_path: Path, passages: list[str], size: int, cause: str
) -> None:
    rows = [{"query": text(), "passage": passage} for passage in passages]
    files = {**given, "pairs": write(tmp_path / "pairs.jsonl", rows)}
    settings = ("mining.negatives=0", f"batching.size={size}")
    with pytest.raises(TrainingError, match=f"Every step would have one row, since {cause}"):
        train_bi_encoder(recipe_of(files, "query-passage", "pairs", *settings), tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


def test_triplets_that_are_learned_already_are_no_success(
    given: dict[str, Path], tmp_path: Path
) -> None:
    recipe = recipe_of(given, "triplet", "triplets", "loss.margin=-100")
    with pytest.raises(TrainingError, match="The gradient was 0 in all 2 steps"):
        train_bi_encoder(recipe, tmp_path / "run")
    assert (tmp_path / "run" / "ckpt-00000002").is_dir()
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize(
    ("recipe", "error"),
    [
        ("triplet", "No row has a usable negative"),
        ("query-passage", "Every step would have one row"),
    ],
)
def test_negatives_that_are_the_positive_are_no_success(
    given: dict[str, Path], tmp_path: Path, recipe: str, error: str
) -> None:
    rows = [{"anchor": "a sun", "positive": "the cat", "negative": "The cat"} for _ in range(24)]
    files = {**given, "triplets": write(tmp_path / "triplets.jsonl", rows)}
    settings = ("data.form=triplets", "mining.negatives=0")
    with pytest.raises(TrainingError, match=error):
        train_bi_encoder(recipe_of(files, recipe, "triplets", *settings), tmp_path / "run")


def test_classes_of_copies_are_no_success(given: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"text": WORDS[n % 4], "label": str(n % 4)} for n in range(24)]
    files = {**given, "classes": write(tmp_path / "classes.jsonl", rows)}
    settings = ("data.form=classes", "loss.name=hardest_triplets")
    with pytest.raises(TrainingError, match="Each of the 4 classes has one text"):
        train_bi_encoder(recipe_of(files, "triplet", "classes", *settings), tmp_path / "run")


def test_a_prompt_that_leaves_no_room_is_refused(given: dict[str, Path], tmp_path: Path) -> None:
    long = " ".join(["the"] * 20)
    for prompts in (f'{{query = "{long}"}}', f'{{document = "{long}"}}'):
        settings = ("max_len=12", f"prompts={prompts}", "mining.negatives=0")
        with pytest.raises(ModelError, match="A passage has 12 tokens, and the prompt 'the the"):
            train_bi_encoder(recipe_of(given, "query-passage", "pairs", *settings), tmp_path)


@pytest.mark.parametrize(("unit_length", "warned"), [("true", True), ("false", False)])
def test_classes_over_vectors_of_length_1_are_warned_of(
    given: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    unit_length: str,
    warned: bool,
) -> None:
    open_model(recipe_of(given, "nli", "nli", f"unit_length={unit_length}")).save(tmp_path / "m")
    train_bi_encoder(recipe_of(given, "nli", "nli", f"model={tmp_path / 'm'}"), tmp_path / "run")
    assert ("scales its embeddings to norm 1" in capsys.readouterr().err) == warned


@pytest.mark.parametrize(
    ("name", "data", "settings", "error", "message"),
    [
        ("nli", "triplets", ("data.form=triplets",), ConfigError, "reads no label"),
        ("triplet", "pairs", ("data.form=pairs",), ConfigError, r":1, read with .* has 2 texts"),
        ("distill", "texts", (), ConfigError, "learns from a bi-encoder; set teacher=MODEL"),
        ("stsb", "nli", ("loss.name=contrastive",), ConfigError, "takes two labels, but there are"),
        (
            "stsb",
            "alike",
            ("loss.name=contrastive",),
            ConfigError,
            "there are alike, other; set da",
        ),
        ("nli", "sts", ('loss.concatenation=["w"]',), ConfigError, "has 'w'; known: u, v"),
        ("nli", "nli", ("loss.concatenation=[]",), ConfigError, "loss.concatenation is empty"),
        ("stsb", "sts", ("model=static",), ConfigError, "learns the vectors of a teacher"),
        (
            "static",
            "texts",
            ("model=static", "teacher=x", "pooling=['cls']"),
            ConfigError,
            "pooling",
        ),
        ("stsb", "sts", ("teacher=x",), ConfigError, "the loss .* has no teacher; use another"),
        ("stsb", "sts", ("evaluation.patience=1",), ConfigError, "there are no dev data"),
        (
            "query-passage",
            "pairs",
            ("model=bert-tiny",),
            ConfigError,
            r"preset .* Set mining.model to a trained model, or set mining.negatives=0",
        ),
        (
            "distill",
            "classes",
            ("data.form=classes", "mining.negatives=1", "teacher=x"),
            ConfigError,
            "rows have one text; .* Set mining.negatives=0",
        ),
        ("stsb", "sts", ("data.limit=1",), TrainingError, "have the score 0"),
        ("stsb", "sts", ("loss.matryoshka=[32, 8]",), ConfigError, r"\[32, 8\], but .* 16 dimens"),
        ("nli", "nli", ('data.labels=["a", "b", "a"]',), ConfigError, "has 'a' twice"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused(
    given: dict[str, Path],
    tmp_path: Path,
    name: str,
    data: str,
    settings: tuple[str, ...],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        train_bi_encoder(recipe_of(given, name, data, *settings), tmp_path)


def test_a_teacher_refuses_rows_of_different_lengths(
    given: dict[str, Path], tmp_path: Path
) -> None:
    data = write(tmp_path / "rows.jsonl", [{"anchor": "a", "positive": "b", "negative": "c"}])
    more = write(
        tmp_path / "more.jsonl", [{"anchor": "a", "positive": "b", "negative": ["c", "d"]}]
    )
    settings = [f'data.train=["{data}", "{more}"]', "data.form=triplets"]
    with pytest.raises(TrainingError, match="Some rows have 3 texts and some have 4"):
        train_bi_encoder(
            recipe_of(given, "distill", "texts", f"teacher={given['model']}", *settings),
            tmp_path / "run",
        )


def test_the_command_tells_where_the_model_is(given: dict[str, Path], tmp_path: Path) -> None:
    sets = [f"model={given['model']}", f"data.train={given['nli']}", "budget.steps=1"]
    arguments = [part for each in sets for part in ("--set", each)]
    done = CliRunner().invoke(
        train, ["bi-encoder", "nli", *arguments, "--out", str(tmp_path), "--quiet", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["model"] == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("pooling", "told"),
    [
        ('["attention_mean"]', "attention_mean is for evaluation only"),
        ('["mean", "cls"]', r"can be saved only in the order cls\+mean"),
    ],
)
def test_a_pooling_that_cannot_be_saved_is_refused_before_training(
    given: dict[str, Path], pooling: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        open_model(recipe_of(given, "stsb", "sts", f"pooling={pooling}"))


def test_a_model_folder_whose_pooling_cannot_be_saved_is_refused_before_training(
    given: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(given["model"], tmp_path / "model")
    path = tmp_path / "model" / "1_Pooling" / "config.json"
    settings = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**settings, "pooling_mode": ["mean", "cls"]}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"can be saved only in the order cls\+mean"):
        open_model(recipe_of(given, "stsb", "sts", f"model={tmp_path / 'model'}"))


def test_the_targets_of_a_cross_encoder_are_its_logits(
    given: dict[str, Path], tmp_path: Path
) -> None:
    model = CrossEncoder.load(given["teacher"])
    assert isinstance(model.activation, nn.Sigmoid)
    examples = [Example(("a cat", "the dog sat", "far away"), None, "x:1")]
    rows = score_by_teacher(arrange([examples], ()), str(given["teacher"]), device="cpu")
    encoded = model.tokenizer.encode_pairs([("a cat", "the dog sat"), ("a cat", "far away")])
    logits = model(model.pack(encoded)).detach().numpy().reshape(1, 2)
    np.testing.assert_allclose(np.asarray(rows.targets, float), logits, atol=1e-5)
    shutil.copytree(given["teacher"], calibrated := tmp_path / "calibrated")
    write_side_file(calibrated, SideFile(temperature=4.0))
    rows = score_by_teacher(arrange([examples], ()), str(calibrated), device="cpu")
    np.testing.assert_allclose(np.asarray(rows.targets, float), logits, atol=1e-5)
    tiny_cross_encoder(tmp_path / "tokens", labels=("a", "b", "c")).save(tmp_path / "classes")
    with pytest.raises(ConfigError, match="has 3 labels and so no single score"):
        score_by_teacher(arrange([examples], ()), str(tmp_path / "classes"), device="cpu")


SHAPE = (
    'pooling=["cls"]',
    "max_len=9",
    "unit_length=false",
    'prompts={query="the ", document="a "}',
)


def test_the_preliminary_run_trains_a_model_of_the_same_shape(
    given: dict[str, Path], tmp_path: Path
) -> None:
    settings = (*SHAPE, 'prompt_names=["query", "document"]', f"first.data.train={given['nli']}")
    recipe = recipe_of(given, "nli-then-stsb", "sts", *settings, "first.budget.steps=2")
    train_bi_encoder(recipe, tmp_path)
    first, last = (BiEncoder.load(tmp_path / each) for each in ("first/model", "model"))
    assert first.describe() == last.describe()
    assert (first.pooling, first.tokenizer.max_len, len(first.head)) == (("cls",), 9, 0)


@pytest.mark.thorough
def test_mining_searches_with_the_model_as_it_is_trained(
    given: dict[str, Path], tmp_path: Path
) -> None:
    settings = (*SHAPE, "mining.negatives=1", "mining.margin=-2")
    train_bi_encoder(recipe_of(given, "query-passage", "pairs", *settings), tmp_path)
    trained = BiEncoder.load(tmp_path / "model").describe()
    assert BiEncoder.load(tmp_path / "mining" / "model").describe() == trained
    [index] = tmp_path.glob("mining/*/passages.index")
    assert Index.open(index).identity.pooling == "cls"


def test_only_the_first_rank_saves_the_model_that_mines(
    given: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    monkeypatch.setattr(
        bi_encoder_train,
        "mine_negatives",
        lambda rows, config, model, *_, **__: searched.append(model),
    )
    recipe = recipe_of(given, "query-passage", "pairs", *SHAPE, "mining.negatives=1")
    for rank, saved in ((2, False), (0, True), (1, True)):
        ranks = Ranks(rank, 3)
        bi_encoder_train._mine([[]], recipe, open_model(recipe), ["", ""], "", tmp_path, ranks)
        assert (tmp_path / "model/model.safetensors").is_file() == saved
        if saved:
            (tmp_path / "model/kept").touch()
    assert (tmp_path / "model/kept").is_file()
    assert searched == [str(tmp_path / "model")] * 3


def test_a_pooling_that_the_head_of_the_model_does_not_take_is_refused(
    given: dict[str, Path], tmp_path: Path
) -> None:
    model = BiEncoder.load(given["model"])
    head = [Dense(model.encoder.config.hidden_size, 8)]
    BiEncoder(model.encoder, model.tokenizer, head=head).save(tmp_path / "dense")
    settings = (f"model={tmp_path / 'dense'}", 'pooling=["cls", "mean"]')
    with pytest.raises(ConfigError, match="takes vectors of 16 dimensions, but those before it"):
        open_model(recipe_of(given, "stsb", "sts", *settings))


def test_a_static_model_starts_with_the_mean_vectors_of_texts(
    given: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["red sun", "red cat", "cat", "\u200d"]  # the last one has no token
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = ["model=static", f"teacher={given['model']}", f"data.train={data}"]
    recipe = recipe_of(given, "static", "texts", *settings, "optim.lr=1e-12", "unit_length=false")
    train_bi_encoder(recipe, tmp_path / "run")
    assert "1 rows have a text without tokens" in capsys.readouterr().err
    sun, other, cat, _ = Embedder(given["model"], precision="fp32").encode(texts)
    made = Embedder(tmp_path / "run" / "model").encode(["red", "sun", "cat", "mat"])
    expected = [(sun + other) / 2, sun, (other + cat) / 2, np.zeros_like(sun)]
    np.testing.assert_allclose(made, expected, atol=1e-6)


@pytest.mark.thorough
def test_a_static_model_answers_queries_over_the_index_of_its_teacher(
    given: dict[str, Path], tmp_path: Path
) -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=5)) for _ in range(400)]
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = [
        "model=static",
        f"teacher={given['model']}",
        f"data.train={data}",
        "budget={epochs=9}",
    ]
    recipe = recipe_of(given, "static", "texts", *settings, "optim.lr=0.01")
    train_bi_encoder(recipe, tmp_path / "run")
    index = Index.from_texts(texts[:200], model=given["model"])
    assert index.add_query_model(tmp_path / "run" / "model").cosine > 0.5


def test_a_static_model_may_have_words_of_its_own(given: dict[str, Path], tmp_path: Path) -> None:
    own = tiny_tokenizer(tmp_path / "own", 16)
    own.save(tmp_path / "own")
    settings = ["model=static", f"teacher={given['model']}", f"tokenizer={tmp_path / 'own'}"]
    train_bi_encoder(recipe_of(given, "static", "texts", *settings), tmp_path / "run")
    made = Embedder(tmp_path / "run" / "model")
    assert made.tokenizer.vocab_size == own.vocab_size
    assert not made.tokenize(["the cat " * 99]).lost.any()


@pytest.mark.parametrize("max_len", [2, 5])
def test_a_static_model_truncates_as_it_did_in_training(
    given: dict[str, Path], tmp_path: Path, max_len: int
) -> None:
    recipe = recipe_of(
        given, "static", "texts", "model=static", f"teacher={given['model']}", f"max_len={max_len}"
    )
    train_bi_encoder(recipe, tmp_path / "run")
    made = Embedder(tmp_path / "run" / "model")
    text = "cat red sun the mat dog " * 20
    tokens = made.tokenize([text])
    assert (made.max_len, tokens.lengths[0], tokens.lost[0]) == (max_len, max_len, 120 - max_len)
    table = load_file(tmp_path / "run" / "model" / "model.safetensors")["embedding.weight"]
    expected = table[tokens.ids[0]].mean(axis=0)  # as a batch of the training computes it
    expected /= np.linalg.norm(expected)
    np.testing.assert_allclose(made.encode(text), expected, atol=1e-6)
    theirs = SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    np.testing.assert_allclose(theirs.encode(text), expected, atol=1e-6)


def test_sentence_transformers_opens_a_static_model_and_saves_it_for_us(
    given: dict[str, Path], tmp_path: Path
) -> None:
    settings = ["model=static", f"teacher={given['model']}"]
    train_bi_encoder(recipe_of(given, "static", "texts", *settings), tmp_path / "run")
    texts = ["the red cat", "", "sun " * 99, "\u200d"]
    expected = Embedder(tmp_path / "run" / "model").encode(texts)
    theirs = SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    assert type(theirs[0]).__name__ == "StaticEmbedding"
    np.testing.assert_allclose(theirs.encode(texts), expected, atol=1e-6)
    theirs.save(str(tmp_path / "theirs"))
    again = Embedder(tmp_path / "theirs")
    assert again.identity.engine == "static"
    np.testing.assert_array_equal(again.encode(texts), expected)
