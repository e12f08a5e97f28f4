"""Probes are fitted to convergence, on the sentence vectors for which a model was trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge

from sbert_search.config import from_mapping
from sbert_search.embed.embedder import Embedder
from sbert_search.errors import CheckpointError, ConfigError, TrainingError
from sbert_search.heads.predictor import Predictor
from sbert_search.heads.train_answerer import train_answerer
from sbert_search.heads.train_classifier import ClassifyRecipe, train_classifier
from sbert_search.heads.train_tagger import train_tagger
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.heads import Normalize
from sbert_search.models.sequence_classifier import SequenceClassifier, trained_pooling
from sbert_search.models.side_file import SideFile, read_side_file
from sbert_search.train.loop import loop
from sbert_search.train.loop.checkpoint import checkpoints, read_checkpoint
from sbert_search.train.loop.log import read_log
from sbert_search.train.loop.step import ConvexFit
from sbert_search.train.recipe import load_recipe
from tests.heads.training import test_answer, test_tag
from tests.heads.training.small import QUICK, encoder_folder, write_rows
from tests.heads.training.test_classify import labelled, texts
from tests.models.tiny import FAMILIES, tiny_encoder, tiny_tokenizer
from tests.train.small import unlike

Matrix = NDArray[np.float32]
N = 90


def sentence_encoder(folder: Path, *pooling: str, unit_length: bool = True) -> Path:
    """Write a bi-encoder whose pooling is ``pooling``."""
    name = folder / f"{'-'.join(pooling)}-{unit_length}"
    head = [Normalize()] if unit_length else []
    encoder = tiny_encoder(initializer_range=0.3)
    BiEncoder(encoder, tiny_tokenizer(folder / "tokens"), pooling=pooling, head=head).save(name)
    return name


def probe(folder: Path, task: str = "class", **settings: Any) -> ClassifyRecipe:
    data = {"train": str(labelled(folder, task, N))}
    model = settings.pop("model", None) or str(encoder_folder(folder))
    fixed = {"task": task, "data": data, "model": model, "tune": "probe", "budget": {"steps": 1}}
    return from_mapping(ClassifyRecipe, QUICK | fixed | settings)


def fitted(run: Path) -> tuple[Matrix, Matrix]:
    """Return the weights and the biases of the probe of a run."""
    saved = read_checkpoint(checkpoints(run)[-1]).tensors("model")
    return saved["probe.weight"].numpy(), saved["probe.bias"].numpy()


def states_of(run: Path) -> Matrix:
    model = SequenceClassifier.load(run / "model")
    tokens = model.pack(model.encode([(row["sentence"], None) for row in texts(N)]))
    with torch.no_grad():
        found: Matrix = model.states(tokens).numpy()
    return found


@pytest.mark.parametrize("unit_length", [True, False])
def test_a_probe_of_classes_is_the_logistic_regression_of_scikit_learn(
    tmp_path: Path, unit_length: bool
) -> None:
    model = sentence_encoder(tmp_path, "mean", unit_length=unit_length)
    train_classifier(probe(tmp_path, model=str(model)), tmp_path / "run")
    weight, bias = fitted(tmp_path / "run")
    states = states_of(tmp_path / "run")
    np.testing.assert_allclose(
        states, Embedder(model).encode([r["sentence"] for r in texts(N)]), atol=1e-5
    )
    names = [("none", "one", "two")[len(row["animals"])] for row in texts(N)]
    scale = np.sqrt((states**2).sum(axis=1).mean())
    theirs = LogisticRegression(tol=1e-8, max_iter=10_000).fit(states / scale, names)
    np.testing.assert_allclose(weight * scale, theirs.coef_, atol=2e-3)
    np.testing.assert_allclose(bias - bias.mean(), theirs.intercept_, atol=2e-3)
    found = Predictor(tmp_path / "run" / "model").classify([row["sentence"] for row in texts(N)])
    assert [each.label for each in found] == theirs.predict(states / scale).tolist()


def test_a_probe_of_several_classes_is_a_regression_for_each(tmp_path: Path) -> None:
    train_classifier(probe(tmp_path, "several"), tmp_path / "run")
    weight, bias = fitted(tmp_path / "run")
    states = states_of(tmp_path / "run")
    scale = np.sqrt((states**2).sum(axis=1).mean())
    for n, animal in enumerate(("cat", "dog")):
        present = [animal in row["animals"] for row in texts(N)]
        theirs = LogisticRegression(tol=1e-8, max_iter=10_000).fit(states / scale, present)
        np.testing.assert_allclose(weight[n] * scale, theirs.coef_[0], atol=2e-3)
        assert bias[n] == pytest.approx(theirs.intercept_[0], abs=2e-3)


def test_a_probe_of_numbers_is_ridge_regression(tmp_path: Path) -> None:
    train_classifier(probe(tmp_path, "number"), tmp_path / "run")
    weight, bias = fitted(tmp_path / "run")
    states = states_of(tmp_path / "run")
    scale = np.sqrt((states**2).sum(axis=1).mean())
    numbers = [len(row["animals"]) / 2 for row in texts(N)]
    theirs = Ridge(alpha=0.5).fit(states / scale, numbers)
    np.testing.assert_allclose(weight[0] * scale, theirs.coef_, atol=2e-3)
    assert bias[0] == pytest.approx(theirs.intercept_, abs=2e-3)


def test_a_probe_does_not_depend_on_the_settings_of_steps(tmp_path: Path) -> None:
    others: list[dict[str, Any]] = [
        {"seed": 5},
        {"budget": {"epochs": 7}, "batching": {"size": 4}},
        {"optim": {"lr": 1e-9}, "schedule": {"kind": "cosine"}, "precision": "bf16"},
    ]
    train_classifier(probe(tmp_path), tmp_path / "run")
    expected = fitted(tmp_path / "run")
    for n, settings in enumerate(others):
        result = train_classifier(probe(tmp_path, **settings), tmp_path / str(n))
        assert result.state.step == 1
        for one, other in zip(fitted(tmp_path / str(n)), expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-3)
    (line,) = [each for each in read_log(tmp_path / "run" / "log.jsonl") if each["kind"] == "step"]
    assert line["gradient_norm"] > 0  # of the first pass, not of the end of the fit


@pytest.mark.thorough
@pytest.mark.parametrize("crf", [True, False])
def test_a_probe_of_tags_does_not_depend_on_the_seed(tmp_path: Path, crf: bool) -> None:
    runs = []
    for seed in (0, 5):
        made = test_tag.recipe(tmp_path, tune="probe", crf=crf, seed=seed)
        result = train_tagger(made, tmp_path / str(seed))
        runs.append(read_checkpoint(result.last).tensors("model")["out.weight"])
        figures = [
            line["figures"]["f1"]
            for line in read_log(result.last.parent / "log.jsonl")
            if line["kind"] == "dev"
        ]
        assert figures[-1] > max(0.5, figures[0])
    torch.testing.assert_close(*runs, atol=1e-2, rtol=1e-2)


def test_a_probe_of_answers_does_not_depend_on_the_seed(tmp_path: Path) -> None:
    runs = []
    for seed in (0, 5):
        made = test_answer.recipe(tmp_path, tune="probe", seed=seed)
        result = train_answerer(made, tmp_path / str(seed))
        runs.append(read_checkpoint(result.last).tensors("model")["out.weight"])
    torch.testing.assert_close(*runs, atol=1e-2, rtol=1e-2)


def test_a_fit_that_is_killed_leaves_no_checkpoint_and_is_the_same_when_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = probe(tmp_path)
    train_classifier(made, tmp_path / "a")
    passes = ConvexFit._evaluate

    def killed(*given: Any) -> Any:
        raise RuntimeError("killed")

    monkeypatch.setattr(ConvexFit, "_evaluate", killed)
    with pytest.raises(RuntimeError, match="killed"):
        train_classifier(made, tmp_path / "b")
    monkeypatch.setattr(ConvexFit, "_evaluate", passes)
    assert not checkpoints(tmp_path / "b")
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        train_classifier(made, tmp_path / "b", resume=True)
    train_classifier(made, tmp_path / "b")
    assert not unlike(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "model").rename(tmp_path / "gone")  # killed before the model was published
    train_classifier(made, tmp_path / "b", resume=True)
    assert not unlike(tmp_path / "a", tmp_path / "b")
    assert read_side_file(tmp_path / "a" / "model") == read_side_file(tmp_path / "b" / "model")


def test_a_run_of_steps_is_not_resumed_as_a_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions trained probes by steps."""
    real = loop.train
    monkeypatch.setattr(
        "sbert_search.train.run.run_loop",
        lambda *given, **named: real(*given, **named | {"penalties": None}),
    )
    made = probe(tmp_path, budget={"steps": 3})
    train_classifier(made, tmp_path / "run")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="fitted to convergence"):
        train_classifier(made, tmp_path / "run", resume=True)


def test_a_text_with_two_labels_is_no_success(tmp_path: Path) -> None:
    rows = [{"sentence": "the cat", "label": label} for label in ("a", "b") * 8]
    data = {"train": str(write_rows(tmp_path / "rows.jsonl", rows))}
    with pytest.raises(TrainingError, match="each with several labels"):
        train_classifier(probe(tmp_path, data=data), tmp_path / "run")


def test_a_fit_of_states_that_are_not_finite_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = SequenceClassifier.states
    monkeypatch.setattr(SequenceClassifier, "states", lambda *given: states(*given) * torch.nan)
    with pytest.raises(TrainingError, match="loss cross_entropy is nan"):
        train_classifier(probe(tmp_path), tmp_path / "run")


@pytest.mark.thorough
@pytest.mark.parametrize("unit_length", [True, False])
@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (("mean",), "mean"),
        (("cls",), "cls"),
        (("max",), "max"),
        (("lasttoken",), "lasttoken"),
        (("weightedmean",), "weightedmean"),
        (("cls", "mean"), "cls"),
    ],
)
def test_a_head_reads_the_state_for_which_the_model_was_trained(
    tmp_path: Path, modes: tuple[str, ...], expected: str, unit_length: bool
) -> None:
    model = sentence_encoder(tmp_path, *modes, unit_length=unit_length)
    assert trained_pooling(model) == (expected, unit_length)
    for tune in ("probe", "full"):
        made = probe(tmp_path, model=str(model), tune=tune)
        train_classifier(made, tmp_path / tune)
        side = read_side_file(tmp_path / tune / "model")
        assert side == SideFile(pooling=expected, unit_length=unit_length and tune == "probe")  # type: ignore[arg-type]
        card = (tmp_path / tune / "model" / "README.md").read_text()
        as_transformers = side == SideFile()
        assert ("from transformers import pipeline" in card) == as_transformers
        assert ("from sbert_search import Predictor" in card) != as_transformers


def test_a_set_pooling_is_kept_and_an_encoder_alone_reads_its_first_token(tmp_path: Path) -> None:
    model = sentence_encoder(tmp_path, "mean")
    for pooling, unit_length in (("cls", False), ("max", False), ("mean", True)):
        train_classifier(probe(tmp_path, model=str(model), pooling=pooling), tmp_path / pooling)
        side = read_side_file(tmp_path / pooling / "model")
        assert (side.pooling, side.unit_length) == (pooling, unit_length)
    assert trained_pooling(tmp_path / "max" / "model") == ("max", False)  # a classifier
    (model / "modules.json").unlink()
    assert trained_pooling(model) == ("cls", False)
    with pytest.raises(ConfigError, match="pooling"):
        probe(tmp_path, pooling="meen")


def test_a_few_labelled_texts_suffice(tmp_path: Path) -> None:
    rows = [(r["sentence"], r["animals"][0]) for r in texts(240) if len(r["animals"]) == 1]
    lines = [f'"{text}",{label}\n' for text, label in rows[:64]]
    (tmp_path / "few.csv").write_text("".join(["text,label\n", *lines]))
    settings = [f"data.train={tmp_path / 'few.csv'}", f"model={sentence_encoder(tmp_path, 'mean')}"]
    made = load_recipe(ClassifyRecipe, "classify", "few", [*settings, "max_len=24"])
    result = train_classifier(made, tmp_path / "run")
    assert (result.best, result.state.rows) == (None, 64)
    predictor = Predictor(tmp_path / "run" / "model")
    assert predictor.labels == ("cat", "dog")
    found = [each.label for each in predictor.classify([text for text, _ in rows[64:]])]
    assert np.mean([a == b for a, (_, b) in zip(found, rows[64:], strict=True)]) > 0.6


@pytest.mark.parametrize("task", ["classify", "tag", "qa"])
def test_a_head_with_a_norm_is_no_probe(tmp_path: Path, task: str) -> None:
    """As the heads of ModernBERT, which no weights make linear."""
    encoder_folder(tmp_path, **FAMILIES["modernbert"])
    trains: dict[str, Callable[[], object]] = {
        "classify": lambda: train_classifier(probe(tmp_path), tmp_path / "run"),
        "tag": lambda: train_tagger(test_tag.recipe(tmp_path, tune="probe"), tmp_path / "run"),
        "qa": lambda: train_answerer(test_answer.recipe(tmp_path, tune="probe"), tmp_path / "run"),
    }
    with pytest.raises(ConfigError, match=r"heads of the layout 'modernbert' have a norm.*head"):
        trains[task]()
