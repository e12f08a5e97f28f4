"""Cross-encoders train on classes, scores and relevance, and load in sentence-transformers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch

from sbert_search.config import from_mapping
from sbert_search.errors import ConfigError, CorpusError, TrainingError
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.sequence_classifier import CrossEncoder
from sbert_search.search.rerankers import Reranker
from sbert_search.text.labelled.candidates import Candidates, judged_candidates
from sbert_search.text.labelled.retrieval import write_run
from sbert_search.train.cross_encoder import CrossEncoderRecipe, train_cross_encoder
from sbert_search.train.data.pair_dataset import relevance_rows
from sbert_search.train.loop.log import read_log
from sbert_search.train.recipe import load_recipe
from tests.models.tiny import tiny_bi_encoder, tiny_encoder, tiny_tokenizer
from tests.parity.folders import bare
from tests.train.small import unlike

WORDS = ["cat", "dog", "mat", "sun", "red", "far", "sat", "ran"]
QUICK = {
    "device": "cpu",
    "budget": {"epochs": 6},
    "optim": {"lr": 5e-3},
    "batching": {"size": 8},
}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pairs(rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    """A second text that sleeps is alike, entailed, relevant."""
    rows = []
    for place in range(n):
        word, other = rng.choice(WORDS, 2, replace=False).tolist()
        second = f"then it {'slept' if place % 2 else 'ran'} {other}"
        rows.append({"sentence1": f"the {word}", "sentence2": second, "alike": place % 2 == 1})
    return rows


@pytest.fixture
def start(tmp_path: Path) -> Path:
    model = tiny_bi_encoder(tmp_path / "tokenizer")
    model.save(tmp_path / "start")
    return tmp_path / "start"


def recipe(start: Path, data: dict[str, Any], **settings: Any) -> CrossEncoderRecipe:
    fixed = {"model": str(start), "max_len": 16, "data": data}
    return from_mapping(CrossEncoderRecipe, QUICK | fixed | settings)


def files(folder: Path, make: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    names = {"train": 160, "dev": 60}
    return {
        name: str(write(folder / f"{name}.jsonl", [make(row) for row in pairs(rng, n)]))
        for name, n in names.items()
    }


def dev_figures(out: Path) -> list[dict[str, float]]:
    return [line["figures"] for line in read_log(out / "log.jsonl") if line["kind"] == "dev"]


@pytest.mark.thorough
def test_scores_are_learned_and_vanilla_cross_encoder_gives_them(
    start: Path, tmp_path: Path
) -> None:
    data = files(tmp_path, lambda row: row | {"score": 5.0 * row["alike"]})
    result = train_cross_encoder(recipe(start, data, task="scores", loss="bce"), tmp_path / "run")
    figures = dev_figures(tmp_path / "run")
    assert figures[-1]["spearman"] > 0.7
    assert result.best is not None
    saved = tmp_path / "run" / "model"
    assert "CrossEncoder" in (saved / "README.md").read_text()
    checked = [("the cat", "then it slept"), ("the cat", "then it ran"), ("the sun", "red")]
    vanilla = sentence_transformers.CrossEncoder(str(saved), device="cpu")
    ours = Reranker(saved, precision="fp32").predict(checked)
    assert vanilla.predict(checked) == pytest.approx(ours, abs=1e-6)


def test_a_model_that_scores_all_dev_pairs_equally_is_trained_on(
    start: Path, tmp_path: Path
) -> None:
    """With a prediction for all pairs, no correlation is defined; the best model is the last."""
    data = files(tmp_path, lambda row: row | {"score": 5.0 * row["alike"]})
    alike = [{"sentence1": "a", "sentence2": "b", "score": n} for n in (0, 5)]
    write(tmp_path / "dev.jsonl", alike * 30)
    settings = recipe(start, data, task="scores", loss="bce", budget={"steps": 1})
    result = train_cross_encoder(settings, tmp_path / "run")
    assert result.best is None
    assert all(math.isnan(each["spearman"]) for each in dev_figures(tmp_path / "run"))
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    write(tmp_path / "dev.jsonl", [{"sentence1": "a", "sentence2": "b", "score": 5}] * 2)
    with pytest.raises(TrainingError, match=r"dev\.jsonl:2 have the score 1, with which no corr"):
        train_cross_encoder(settings, tmp_path / "other")


@pytest.mark.thorough
def test_classes_keep_their_names(start: Path, tmp_path: Path) -> None:
    data = files(tmp_path, lambda row: row | {"label": ("no", "yes")[row["alike"]]})
    settings = recipe(start, data | {"labels": ["yes", "no"]}, task="classes", loss="cross_entropy")
    result = train_cross_encoder(settings, tmp_path / "run")
    assert dev_figures(tmp_path / "run")[-1]["accuracy"] > 0.9
    assert CrossEncoder.load(result.last / "model").labels == ("yes", "no")


@pytest.mark.thorough
@pytest.mark.parametrize("loss", ["bce", "pairwise", "list_net", "list_softmax"])
def test_relevance_is_learned_from_a_run(start: Path, tmp_path: Path, loss: str) -> None:
    collection(tmp_path / "beir")
    data = {
        "train": str(tmp_path / "beir"),
        "runs": [str(tmp_path / "found.trec")],
        "dev": str(tmp_path / "beir"),
        "dev_run": str(tmp_path / "found.trec"),
        "dev_split": "train",
        "negatives": 3,
    }
    settings = recipe(start, data, task="relevance", loss=loss, budget={"epochs": 12})
    train_cross_encoder(settings, tmp_path / "run")
    figures = dev_figures(tmp_path / "run")
    assert figures[-1]["MRR"] > 0.9
    assert set(figures[0]) == {"nDCG@10", "MAP", "MRR"}


def collection(folder: Path) -> None:
    """A BEIR folder where what is red is relevant, and a run that puts it last."""
    (folder / "qrels").mkdir(parents=True)
    write(folder / "corpus.jsonl", [{"_id": w, "text": f"it slept and {w}"} for w in WORDS])
    write(folder / "queries.jsonl", [{"_id": f"q-{w}", "text": f"the {w}"} for w in WORDS])
    lines = [f"q-{w}\tred\t1\n" for w in WORDS]
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    found = sorted(WORDS, key=lambda word: word == "red")
    run = [
        f"q-{query} Q0 {word} {rank} {-rank} t\n"
        for query in WORDS
        for rank, word in enumerate(found, 1)
    ]
    (folder.parent / "found.trec").write_text("".join(run))


def test_negatives_are_mined_for_pairs_that_belong_together(start: Path, tmp_path: Path) -> None:
    rows = [{"query": f"the {word}", "passage": f"it slept and {word}"} for word in WORDS]
    data = {"train": str(write(tmp_path / "positives.jsonl", rows))}
    mining = {"negatives": 2, "last": 8, "margin": -2.0}
    settings = recipe(
        start, data, task="relevance", loss="pairwise", mining=mining, budget={"steps": 2}
    )
    result = train_cross_encoder(settings, tmp_path / "run")
    assert result.state.rows == 16
    assert (tmp_path / "run" / "mining").is_dir()
    graded = [row | {"label": n % 2} for n, row in enumerate(rows)]
    other = {"train": str(write(tmp_path / "graded.jsonl", graded))}
    with pytest.raises(CorpusError, match="has grades, in the column 'label'"):
        train_cross_encoder(
            recipe(start, other, task="relevance", loss="pairwise", mining=mining), tmp_path / "no"
        )
    with pytest.raises(ConfigError, match="for the task relevance, not for scores"):
        recipe(start, data, task="scores", loss="bce", mining=mining)


def test_a_limit_is_for_training_rows_only(start: Path, tmp_path: Path) -> None:
    data = files(tmp_path, lambda row: row | {"score": 5.0 * row["alike"]}) | {"limit": 8}
    train_cross_encoder(
        recipe(start, data, task="scores", loss="bce", budget={"steps": 1}), tmp_path / "scores"
    )
    unlimited = recipe(
        start, data | {"limit": None}, task="scores", loss="bce", budget={"steps": 1}
    )
    train_cross_encoder(unlimited, tmp_path / "all")
    assert dev_figures(tmp_path / "scores")[0] == dev_figures(tmp_path / "all")[0]
    collection(tmp_path / "beir")
    beir = {"train": str(tmp_path / "beir"), "runs": [str(tmp_path / "found.trec")], "limit": 3}
    for more in ({"rename": {"a": "b"}}, {"skip_labels": ["0"]}):
        with pytest.raises(ConfigError, match=r"no effect with the task relevance"):
            recipe(start, beir | more, task="relevance", loss="bce")
    settings = recipe(start, beir, task="relevance", loss="bce", budget={"epochs": 1})
    assert train_cross_encoder(settings, tmp_path / "relevance").state.rows == 3


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["bert", "mpnet", "xlm-roberta", "modernbert"])
def test_a_killed_run_ends_with_the_same_weights(family: str, tmp_path: Path) -> None:
    start = bare(tmp_path / "start", family)
    data = files(tmp_path, lambda row: row | {"score": 5.0 * row["alike"]})
    whole = recipe(start, data, task="scores", loss="bce", budget={"steps": 6})
    train_cross_encoder(whole, tmp_path / "whole")
    constant = {"schedule": {"kind": "linear", "warmup": 0}, "checkpoint": {"every": 3, "keep": 9}}
    for out in ("a", "b"):
        settings = recipe(start, data, task="scores", loss="bce", budget={"steps": 6}, **constant)
        train_cross_encoder(settings, tmp_path / out)
    (last,) = (tmp_path / "b").glob("ckpt-00000006")
    last.rename(tmp_path / "gone")
    train_cross_encoder(settings, tmp_path / "b", resume=True)
    assert not [name for name in unlike(tmp_path / "a", tmp_path / "b") if name != "log.jsonl"]


def test_rows_use_every_text_and_repeat_what_is_scarce() -> None:
    grades = {"good": 2, "better": 1, "judged bad": 0}
    texts = {name: name for name in ("b1", "good", "b2", "judged bad", "better", "b3", " ")}
    found = Candidates("q", "query", texts, grades)
    rows = [row.texts for row in relevance_rows([found], 3, seed=1)]
    assert [row[:2] for row in rows] == [("query", "good"), ("query", "better")]
    assert {*rows[0][2:], *rows[1][2:]} == {"b1", "b2", "b3", "judged bad"}
    (wide, again) = [row.texts for row in relevance_rows([found], 9, seed=1)]
    assert sorted(wide[2:]) == sorted(again[2:]) == ["b1", "b2", "b3", "judged bad"]
    assert list(relevance_rows([Candidates("q", "query", {"a": "a"}, {"a": 1})], 3, 0)) == []


def test_a_copy_of_a_relevant_text_is_not_irrelevant() -> None:
    texts = {"good": "A cat", "copy": "a  cat", "other": "a dog"}
    found = Candidates("q", "query", texts, {"good": 1})
    (row,) = relevance_rows([found], 3, seed=1)
    assert row.texts == ("query", "A cat", "a dog")


@pytest.mark.parametrize("loss", ["list_softmax", "bce"])
def test_negatives_that_are_the_positive_are_left_out(
    start: Path, tmp_path: Path, loss: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"anchor": f"{word} sun", "positive": "cat", "negative": "Cat"} for word in WORDS]
    data = {"train": str(write(tmp_path / "rows.jsonl", rows)), "form": "triplets"}
    settings = recipe(start, data, task="relevance", loss=loss, budget={"steps": 1})
    if loss == "bce":  # learns from the positives alone
        train_cross_encoder(settings, tmp_path / "run")
        assert "8 negatives are left out, such as the one at " in capsys.readouterr().err
        return
    with pytest.raises(TrainingError, match="No row has a usable negative"):
        train_cross_encoder(settings, tmp_path / "run")


def test_a_query_is_not_irrelevant_to_itself(tmp_path: Path) -> None:
    texts = {"a": "Uniforms save time.", "a-con": "Uniforms cost more.", "b": "Trains are slow."}
    asked = {"a": texts["a"], "q": "uniforms  SAVE time.", "b": "slow"}
    for name, rows in (("corpus", texts), ("queries", asked)):
        write(tmp_path / f"{name}.jsonl", [{"_id": key, "text": t} for key, t in rows.items()])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("a 0 a-con 1\nq 0 a-con 1\nb 0 a-con 1\n")
    run = {query: {"a": 3.0, "b": 2.0, "a-con": 1.0} for query in asked}
    write_run(run, tmp_path / "run.trec")
    found = judged_candidates(tmp_path, tmp_path / "run.trec", split="train", depth=2)
    # "a" is the document a; "b" only shares its id with a document; "q" has another id.
    assert [[*each.texts] for each in found] == [["b", "a-con"], ["a", "b"], ["a", "b"]]
    found = judged_candidates(
        tmp_path, tmp_path / "run.trec", split="train", depth=2, with_relevant=True
    )
    made = [row.texts for row in relevance_rows(found, 9, seed=0)]
    assert [set(row[2:]) for row in made] == [{texts["b"]}, {texts["b"]}, {texts["a"], texts["b"]}]


@pytest.mark.parametrize(("loss", "activation"), [("bce", "Sigmoid"), ("mse", "Identity")])
def test_predictions_are_on_the_scale_of_the_loss(
    start: Path, tmp_path: Path, loss: str, activation: str
) -> None:
    data = files(tmp_path, lambda row: row | {"score": 5.0 * row["alike"]})
    settings = recipe(start, data, task="scores", loss=loss, budget={"steps": 1})
    train_cross_encoder(settings, tmp_path / "run")
    model = CrossEncoder.load(tmp_path / "run" / "model")
    assert type(model.activation).__name__ == activation


@pytest.mark.parametrize("pooler", [False, True])
def test_any_encoder_can_start(tmp_path: Path, pooler: bool) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    encoder = tiny_encoder(pooler=pooler)
    BiEncoder(encoder, tokenizer).save(tmp_path / "start")
    model = CrossEncoder.start(tmp_path / "start", labels=["a", "b"], max_len=12)
    assert model.tokenizer.max_len == 12
    assert torch.equal(model.encoder.embeddings.word.weight, encoder.embeddings.word.weight)
    model.save(tmp_path / "saved")
    assert CrossEncoder.load(tmp_path / "saved").labels == ("a", "b")


@pytest.mark.parametrize("name", ["nli", "stsb", "relevance"])
def test_shipped_recipes_hold_together(name: str, tmp_path: Path) -> None:
    overrides = [f"data.train={tmp_path / 'pairs.jsonl'}"]
    assert load_recipe(CrossEncoderRecipe, "cross-encoder", name, overrides).model is None


def test_settings_and_data_that_do_not_fit_are_named(start: Path, tmp_path: Path) -> None:
    data = files(tmp_path, lambda row: row | {"score": 5.0, "label": "2"})
    with pytest.raises(ConfigError, match="does not fit the task scores; use bce, mse"):
        recipe(start, data, task="scores", loss="pairwise")
    with pytest.raises(ConfigError, match=r"data\.labels must name two or more classes"):
        recipe(start, data, task="classes", loss="cross_entropy")
    for form in ("groups", "texts", "triplets", "nli"):
        with pytest.raises(ConfigError, match=f"'{form}', but the task scores needs .* a score"):
            recipe(start, data | {"form": form}, task="scores", loss="bce")
    of_classes = data | {"form": "classes", "labels": ["1", "2"]}
    with pytest.raises(ConfigError, match=r"needs pairs with a label; use data\.form = 'pairs'"):
        recipe(start, of_classes, task="classes", loss="cross_entropy")
    with pytest.raises(ConfigError, match=r"has 1 folders, but data\.runs has 0 files"):
        recipe(start, {"train": str(tmp_path)}, task="relevance", loss="bce")
    beir = {"train": str(tmp_path), "form": "beir", "runs": ["a.trec"]}
    with pytest.raises(ConfigError, match=r"data\.form is 'beir', .* Remove data\.runs; or remove"):
        recipe(start, beir, task="relevance", loss="bce")
    for form in ("classes", "beir", "nli", "groups", "texts", "sections"):
        mined = {"negatives": 7 if form == "classes" else 0}
        with pytest.raises(ConfigError, match=rf"data\.form is '{form}', whose rows have"):
            recipe(start, data | {"form": form}, task="relevance", loss="bce", mining=mined)
    with pytest.raises(CorpusError, match="no query has both a relevant and an irrelevant text"):
        train_cross_encoder(recipe(start, data, task="relevance", loss="bce"), tmp_path / "run")
    write(tmp_path / "train.jsonl", [{"query": "a", "answer": "b", "label": "good"}])
    with pytest.raises(CorpusError, match=r"train.jsonl:1: label is 'good'; it must be 0, 1, 2"):
        train_cross_encoder(recipe(start, data, task="relevance", loss="bce"), tmp_path / "run")


@pytest.mark.parametrize("loss", ["list_softmax", "list_net", "pairwise", "bce"])
def test_every_step_has_negatives_although_mining_finds_few(
    start: Path, tmp_path: Path, loss: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No hit is below a positive by this margin, so all negatives are random passages."""
    rows = [{"query": f"{a} {b}", "passage": f"the {a} ran {b}"} for a in WORDS for b in WORDS]
    data = {"train": str(write(tmp_path / "train.jsonl", rows))}
    mining = {"negatives": 3, "margin": 5.0}
    settings = {"task": "relevance", "loss": loss, "mining": mining, "budget": {"epochs": 1}}
    train_cross_encoder(recipe(start, data, **settings), tmp_path / "run")
    told = " ".join(capsys.readouterr().err.split())
    assert "64 of 64 rows got fewer than 3 hard negatives, 64 of them none." in told
    steps = [line for line in read_log(tmp_path / "run" / "log.jsonl") if line["kind"] == "step"]
    assert len(steps) == 8
    assert all(step["loss"] > 0 and step["gradient_norm"] > 0 for step in steps)


@pytest.mark.thorough
def test_rows_without_an_irrelevant_text_are_left_out_of_listwise_losses(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"query": "cat", "passage": f"the {word}"} for word in WORDS]
    one = write(tmp_path / "one.jsonl", rows)
    mining = {"negatives": 2, "margin": -5.0}
    settings: dict[str, Any] = {"task": "relevance", "mining": mining, "budget": {"steps": 2}}
    listwise = recipe(start, {"train": str(one)}, loss="list_softmax", **settings)
    with pytest.raises(
        CorpusError, match=r"one\.jsonl: no row has an irrelevant text, and the loss"
    ):
        train_cross_encoder(listwise, tmp_path / "none")
    rows.append({"query": "dog", "passage": "a mat"})
    rows += [{"query": "cat", "passage": "a mat"}]
    two = {"train": str(write(tmp_path / "two.jsonl", rows))}
    train_cross_encoder(recipe(start, two, loss="list_softmax", **settings), tmp_path / "run")
    told = " ".join(capsys.readouterr().err.split())
    assert "9 of 10 rows without an irrelevant text are left out" in told
    steps = [line for line in read_log(tmp_path / "run" / "log.jsonl") if line["kind"] == "step"]
    assert all(step["gradient_norm"] > 0 for step in steps)
    train_cross_encoder(recipe(start, two, loss="bce", **settings), tmp_path / "bce")


def test_logits_that_are_nan_have_no_accuracy(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = files(tmp_path, lambda row: row | {"label": "yes" if row["alike"] else "no"})
    monkeypatch.setattr(Reranker, "predict", lambda self, pairs: np.full((len(pairs), 2), np.nan))
    settings = {"task": "classes", "loss": "cross_entropy", "budget": {"steps": 1}}
    made = recipe(start, data | {"labels": ["no", "yes"]}, **settings)
    result = train_cross_encoder(made, tmp_path / "run")
    assert all(math.isnan(figures["accuracy"]) for figures in dev_figures(tmp_path / "run"))
    assert result.best is None


def test_relevance_without_labels_names_the_mining_of_negatives(
    start: Path, tmp_path: Path
) -> None:
    data = files(tmp_path, lambda row: {"query": row["sentence1"], "passage": row["sentence2"]})
    with pytest.raises(CorpusError, match=r"no label column .*mining\.negatives=7\."):
        train_cross_encoder(
            recipe(start, data, task="relevance", loss="list_softmax"), tmp_path / "run"
        )


@pytest.mark.thorough
@pytest.mark.parametrize("loss", ["list_softmax", "list_net", "pairwise"])
def test_a_reranker_that_learns_nothing_is_told(start: Path, tmp_path: Path, loss: str) -> None:
    data = files(tmp_path, lambda row: row | {"label": int(row["alike"]), "sentence1": "same"})
    for name, lr in (("stuck", 0.0), ("learns", 5e-3)):
        settings = {"task": "relevance", "loss": loss, "optim": {"lr": lr}}
        settings |= {"budget": {"steps": 80}, "batching": {"size": 4}}
        made = recipe(start, data | {"negatives": 3, "labels": []}, **settings)
        train_cross_encoder(made, tmp_path / name)
        told = [r["message"] for r in read_log(tmp_path / name / "log.jsonl") if "message" in r]
        assert any("the same score" in message for message in told) == (name == "stuck")


def test_dev_data_without_a_relevant_text_are_refused(start: Path, tmp_path: Path) -> None:
    rows = [
        {"query": f"the {w}", "passage": f"it {w}", "label": n % 2} for n, w in enumerate(WORDS)
    ]
    pairs_of = [row | {"query": "one"} for row in rows]
    data = {
        "train": str(write(tmp_path / "train.jsonl", pairs_of)),
        "dev": str(write(tmp_path / "dev.jsonl", [row | {"label": 0} for row in pairs_of])),
    }
    with pytest.raises(CorpusError, match=r"dev\.jsonl: no query has a relevant text"):
        train_cross_encoder(recipe(start, data, task="relevance", loss="bce"), tmp_path / "run")
