"""Classifiers are learned, calibrated and resumed to the same bits; wrong data are refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sbert_search.config import from_mapping
from sbert_search.errors import CheckpointError, ConfigError, CorpusError, TrainingError
from sbert_search.heads.train_classifier import ClassifyRecipe, train_classifier
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.side_file import read_side_file
from sbert_search.train.loop import loop
from sbert_search.train.loop.checkpoint import newest_checkpoint, read_checkpoint
from sbert_search.train.loop.log import read_log
from sbert_search.train.loop.loop import Result
from sbert_search.train.recipe import load_recipe, shipped_recipes
from tests.heads.training.small import (
    QUICK,
    asked_devices,
    dev_figures,
    encoder_folder,
    write_rows,
)
from tests.models.tiny import FAMILIES, WORDS
from tests.train.small import step_losses, unlike

Rows = list[dict[str, Any]]


def texts(n: int) -> Rows:
    """A text is about a cat, a dog, both, or none of them."""
    draw, rows = np.random.default_rng(1), []
    for place in range(n):
        animals = [word for bit, word in enumerate(("cat", "dog")) if place >> bit & 1]
        words = [*draw.choice(WORDS[8:], 4), *animals]
        rows.append({"sentence": " ".join(draw.permutation(words)), "animals": animals})
    return rows


def labelled(folder: Path, task: str, n: int = 260) -> Path:
    def label(animals: list[str]) -> Any:
        count = len(animals)
        return {"class": ("none", "one", "two")[count], "several": animals}.get(task, count / 2)

    rows = [{"sentence": r["sentence"], "label": label(r["animals"])} for r in texts(n)]
    return write_rows(folder / f"{task}.jsonl", rows)


def recipe(folder: Path, task: str = "class", **settings: Any) -> ClassifyRecipe:
    data = {"train": str(labelled(folder, task)), "held_out": 0.3} | settings.pop("data", {})
    model = settings.pop("model", None) or str(encoder_folder(folder))
    fixed = {"task": task, "data": data, "model": model, "budget": {"epochs": 6}}
    return from_mapping(ClassifyRecipe, QUICK | fixed | settings)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("task", "metric"), [("class", "accuracy"), ("several", "micro_f1"), ("number", "spearman")]
)
def test_each_kind_of_label_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, metric: str
) -> None:
    asked = asked_devices(monkeypatch)
    train_classifier(recipe(tmp_path, task, pooling="cls"), tmp_path / "run")
    assert asked == ([] if task == "number" else ["cpu"])  # for the temperature
    figures = dev_figures(tmp_path / "run")
    assert figures[-1][metric] > 0.7 > figures[0][metric]
    folder = tmp_path / "run" / "model"
    ours = SequenceClassifier.load(folder).eval()
    assert ours.kind == task
    theirs = AutoModelForSequenceClassification.from_pretrained(folder)
    batch = AutoTokenizer.from_pretrained(folder)("the red cat ran", return_tensors="pt")
    with torch.no_grad():
        expected = theirs(**batch).logits
        torch.testing.assert_close(
            ours(ours.pack(ours.encode([("the red cat ran", None)]))), expected, atol=1e-5, rtol=0
        )
    fitted = read_side_file(folder).temperature
    assert (fitted == 1.0) == (task == "number")


@pytest.mark.thorough
def test_pairs_are_learned(tmp_path: Path) -> None:
    words = ["cat", "dog", "sun", "mat"]
    pairs = [(a, b) for a in words for b in words] * 8
    rows = [{"sentence1": f"the {a}", "sentence2": f"a {b}", "label": a == "cat"} for a, b in pairs]
    rows = [row | {"label": str(row["label"])} for row in rows]
    data = {"train": str(write_rows(tmp_path / "pairs.jsonl", rows)), "held_out": 0.0}
    train_classifier(recipe(tmp_path, data=data), tmp_path / "run")
    model = SequenceClassifier.load(tmp_path / "run" / "model")
    assert model.labels == ("False", "True")
    found = model(model.pack(model.encode([("the cat", "a sun"), ("the sun", "a cat")])))
    assert found.argmax(dim=1).tolist() == [1, 0]


def test_the_card_has_the_hash_of_the_data_that_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = recipe(tmp_path, budget={"steps": 1})
    (path,) = settings.data.files
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    def and_remove(*arguments: Any, **more: Any) -> Result:
        result = loop.train(*arguments, **more)
        path.unlink()
        return result

    monkeypatch.setattr("sbert_search.train.run.run_loop", and_remove)
    train_classifier(settings, tmp_path / "run")
    assert f"`{digest}`" in (tmp_path / "run" / "model" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("tune", ["head", "probe"])
def test_a_head_is_not_resumed_on_another_encoder(tmp_path: Path, tune: str) -> None:
    """The states of the texts come from the encoder in the folder, not from the checkpoint."""
    model = encoder_folder(tmp_path)
    settings = recipe(tmp_path, tune=tune, model=str(model), budget={"steps": 2})
    train_classifier(settings, tmp_path / "run")
    path = model / "model.safetensors"
    tensors = {name: tensor + 0.01 for name, tensor in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"data was .*, frozen encoder"):
        train_classifier(settings, tmp_path / "run", resume=True)


def test_an_interrupt_while_states_are_computed_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(model: SequenceClassifier, tokens: object) -> torch.Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(SequenceClassifier, "states", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_classifier(recipe(tmp_path, tune="head"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("tune", ["head", "probe"])
@pytest.mark.parametrize("layout", ["bert", "electra"])
def test_a_frozen_encoder_stays_as_it_is(tmp_path: Path, tune: str, layout: str) -> None:
    folder = encoder_folder(tmp_path, layout=layout)
    before = SequenceClassifier.start(folder)
    settings = recipe(tmp_path, tune=tune, model=str(folder), budget={"epochs": 10})
    result = train_classifier(settings, tmp_path / "run")
    model = SequenceClassifier.load(tmp_path / "run" / "model")
    kept_as_is = before.encoder.blocks.state_dict().items()
    assert all(torch.equal(model.encoder.blocks.state_dict()[n], part) for n, part in kept_as_is)
    losses = step_losses(read_log(tmp_path / "run" / "log.jsonl"))
    if tune == "head":
        assert np.mean(losses[-30:]) < np.mean(losses[:30])
    else:
        kept = read_checkpoint(result.best or result.last).tensors("model")
        tokens = model.pack(model.encode([(row["sentence"], None) for row in texts(9)]))
        with torch.no_grad():
            linear = model.states(tokens) @ kept["probe.weight"].T + kept["probe.bias"]
            torch.testing.assert_close(model(tokens), linear, atol=2e-4, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bert", {}),
        ("bert", {"tune": "head"}),
        ("bert", {"adversarial": {"kind": "sift"}, "pooling": "mean"}),
        ("modernbert", {"tune": "head"}),
    ],
)
def test_a_resumed_run_ends_in_the_same_bits(
    tmp_path: Path, family: str, settings: dict[str, Any]
) -> None:
    encoder_folder(tmp_path, **FAMILIES[family])
    settings = settings | {"budget": {"steps": 6}, "checkpoint": {"every": 3, "keep": 9}}
    made = recipe(tmp_path, **settings)
    for out in ("a", "b"):
        train_classifier(made, tmp_path / out)
    (tmp_path / "b" / "ckpt-00000006").rename(tmp_path / "gone")
    train_classifier(made, tmp_path / "b", resume=True)
    assert not unlike(tmp_path / "a", tmp_path / "b")
    assert read_side_file(tmp_path / "a" / "model") == read_side_file(tmp_path / "b" / "model")


def test_mean_pooling_and_random_weights_are_kept(tmp_path: Path) -> None:
    settings = recipe(tmp_path, pooling="mean", random_weights=True, budget={"steps": 1})
    train_classifier(settings, tmp_path / "run")
    model = SequenceClassifier.load(tmp_path / "run" / "model")
    assert model.pooling == "mean"
    start = SequenceClassifier.start(tmp_path / "encoder")
    assert not torch.allclose(
        model.encoder.embeddings.word.weight, start.encoder.embeddings.word.weight, atol=0.05
    )


@pytest.mark.thorough
def test_the_adversarial_loss_is_reported_and_changes_the_weights(tmp_path: Path) -> None:
    runs = {}
    for kind in ("none", "sift", "smart"):
        made = recipe(tmp_path, adversarial={"kind": kind}, budget={"steps": 4})
        train_classifier(made, tmp_path / kind)
        runs[kind] = newest_checkpoint(tmp_path / kind).tensors("model")["out.weight"]
    assert not torch.equal(runs["none"], runs["sift"])
    assert not torch.equal(runs["smart"], runs["sift"])
    lines = (tmp_path / "sift" / "log.jsonl").read_text()
    assert '"adversarial"' in lines
    assert '"adversarial"' not in (tmp_path / "none" / "log.jsonl").read_text().split("\n")[-2]


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="but tune is probe; set tune=full"):
        recipe(tmp_path, tune="probe", adversarial={"kind": "smart"})
    with pytest.raises(ConfigError, match="has 'b' twice; name each class once"):
        recipe(tmp_path, data={"labels": ["b", "a", "b"]})
    with pytest.raises(ConfigError, match=r"is 'balanced', .* no classes; set class_weights=none"):
        recipe(tmp_path, "number", class_weights="balanced")
    with pytest.raises(ConfigError, match=r"class_weights has 1 values; the 3 classes are none"):
        train_classifier(recipe(tmp_path, class_weights=[1.0]), tmp_path / "run")


def test_data_that_cannot_be_learned_from_are_refused(tmp_path: Path) -> None:
    bad = write_rows(tmp_path / "bad.jsonl", [{"sentence": "a cat", "label": "nome"}])
    data = {"train": str(bad), "labels": ["none", "one"], "held_out": 0.0}
    with pytest.raises(
        CorpusError, match=r"bad\.jsonl:1.*'nome'.*did you mean 'none'.*data\.labels"
    ):
        train_classifier(recipe(tmp_path, data=data), tmp_path / "run")
    pairs = [{"sentence1": "a cat", "sentence2": "a dog", "label": n} for n in ("none", "one")]
    both = write_rows(tmp_path / "both.jsonl", pairs)
    single = write_rows(tmp_path / "single.jsonl", [{"sentence": "a cat", "label": "one"}])
    for mixed in ({"train": str(both), "dev": str(single)}, {"train": [str(single), str(both)]}):
        with pytest.raises(
            CorpusError, match=r"single\.jsonl:1 has one text, but .*both\.jsonl:1 has two"
        ):
            train_classifier(recipe(tmp_path, data=mixed | {"held_out": 0.0}), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"the classes none, one, and .*'data.labels=\[\]'"):
        recipe(tmp_path, "number", data=data)
    data = {"train": str(bad), "held_out": 0.0}
    with pytest.raises(TrainingError, match=r"All 1 rows .* have the label 'nome'"):
        train_classifier(recipe(tmp_path, data=data), tmp_path / "run")


def test_dev_data_too_few_to_choose_by_neither_choose_nor_calibrate(tmp_path: Path) -> None:
    rows = [{"sentence": "a cat", "label": "one"}, {"sentence": "a sun", "label": "none"}]
    data = {"dev": str(write_rows(tmp_path / "dev.jsonl", rows))}
    result = train_classifier(recipe(tmp_path, data=data, budget={"steps": 6}), tmp_path / "run")
    assert result.best is None
    assert read_side_file(tmp_path / "run" / "model").temperature == 1.0
    assert "| 6 (this model) |" in (tmp_path / "run" / "model" / "README.md").read_text()


@pytest.mark.parametrize("name", shipped_recipes("classify"))
def test_shipped_recipes_reach_their_first_checkpoint(tmp_path: Path, name: str) -> None:
    plain = load_recipe(ClassifyRecipe, "classify", name, ["data.train=rows.jsonl"])
    labels = plain.data.labels or ("one", "two")
    rows = [
        {"sentence1": f"the {word} {n}", "sentence2": "a cat", "label": labels[n % len(labels)]}
        for n, word in enumerate(WORDS * 60)
    ]
    if name in ("sst2", "cola", "few"):
        rows = [{"sentence": row["sentence1"], "label": row["label"]} for row in rows]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    settings = [f"data.train={data}", f"model={encoder_folder(tmp_path)}", "budget.steps=1"]
    made = load_recipe(ClassifyRecipe, "classify", name, [*settings, "device=cpu", "max_len=24"])
    result = train_classifier(made, tmp_path / "run")
    assert result.last.is_dir()
    assert (result.best is None) == (made.data.held_out == 0)
