"""Taggers are learned with and without a CRF, and their folders load in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification

from sbert_search.config import from_mapping
from sbert_search.errors import ConfigError, CorpusError, TrainingError
from sbert_search.heads.labelled_spans import read_tagged_tokens
from sbert_search.heads.train_tagger import TagRecipe, tag_targets, train_tagger
from sbert_search.heads.training_rows import WordRows, predict_emissions
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.side_file import SideFile, read_side_file
from sbert_search.models.token_classifier import TokenClassifier
from sbert_search.tag_schemes import tag_names
from sbert_search.text.labelled.records import TaggedTokens
from sbert_search.train.recipe import load_recipe, shipped_recipes
from tests.heads.training.small import (
    QUICK,
    asked_devices,
    dev_figures,
    encoder_folder,
    write_rows,
)
from tests.models.tiny import FAMILIES
from tests.train.small import unlike


def sentences(n: int) -> list[dict[str, Any]]:
    """An animal begins an entity, which goes on if the next word is "mat"."""
    draw, rows = np.random.default_rng(1), []
    for _ in range(n):
        tokens = draw.choice(["cat", "dog", "mat", "sun", "ran", "far"], 7).tolist()
        tags, before = [], "O"
        for token in tokens:
            inside = token == "mat" and before != "O"
            before = "B-animal" if token in ("cat", "dog") else "I-animal" if inside else "O"
            tags.append(before)
        rows.append({"tokens": tokens, "tags": tags})
    return rows


def recipe(folder: Path, **settings: Any) -> TagRecipe:
    train = write_rows(folder / "tags.jsonl", sentences(180))
    data = {"train": str(train), "held_out": 0.4} | settings.pop("data", {})
    fixed = {"data": data, "model": str(encoder_folder(folder)), "budget": {"epochs": 8}}
    return from_mapping(TagRecipe, QUICK | fixed | settings)


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [{}, {"crf": True, "data": {"to": "bilou"}}])
def test_entities_are_learned_and_transformers_computes_the_emissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    asked = asked_devices(monkeypatch)
    train_tagger(recipe(tmp_path, **settings), tmp_path / "run")
    assert asked == ([] if "crf" in settings else ["cpu"])  # for the temperature
    figures = dev_figures(tmp_path / "run")
    assert figures[-1]["f1"] > 0.8 > figures[0]["f1"]
    folder = tmp_path / "run" / "model"
    model = TokenClassifier.load(folder)
    assert (model.crf is not None) == settings.get("crf", False)
    assert (read_side_file(folder).temperature == 1.0) == (model.crf is not None)
    theirs = AutoModelForTokenClassification.from_pretrained(folder)
    assert tuple(theirs.config.id2label.values()) == model.labels
    ids = model.tokenizer.encode(["the cat ran"])[0]
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits[0]
        torch.testing.assert_close(model(PackedTokens.from_lists(ids)), expected, atol=1e-5, rtol=0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bert", {"crf": True}),
        ("bert", {"tune": "head"}),
        ("bert", {"adversarial": {"kind": "smart"}}),
        ("modernbert", {"crf": True}),
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
        train_tagger(made, tmp_path / out)
    (tmp_path / "b" / "ckpt-00000006").rename(tmp_path / "gone")
    train_tagger(made, tmp_path / "b", resume=True)
    assert not unlike(tmp_path / "a", tmp_path / "b")


def test_words_behind_the_limit_have_no_emissions(tmp_path: Path) -> None:
    model = TokenClassifier.start(encoder_folder(tmp_path), labels=["O", "B-a"], max_len=6)
    rows = recipe(tmp_path)  # writes the sentences
    words = WordRows.of(model, read_tagged_tokens(rows.data.files[0])[:3])
    assert [len(each) for each in predict_emissions(model.eval(), words)] == [4, 4, 4]


def test_the_tags_of_a_cut_sentence_follow_the_scheme(tmp_path: Path) -> None:
    scheme = SideFile(scheme="bilou", crf=True)
    labels = tag_names(["a"], "bilou")
    model = TokenClassifier.start(encoder_folder(tmp_path), labels=labels, max_len=5, side=scheme)
    rows = [
        TaggedTokens(("cat", "dog", "sun", "ran", "far"), tags, "f:1")
        for tags in (
            ("O", "B-a", "I-a", "I-a", "L-a"),  # three words are left
            ("O", "O", "B-a", "L-a", "O"),
            ("O", "O", "O", "B-a", "L-a"),
        )
    ]
    words = WordRows.of(model, rows)
    found = [[labels[n] for n in own] for own in tag_targets(model, rows, words)]
    assert found == [["O", "B-a", "L-a"], ["O", "O", "U-a"], ["O", "O", "O"]]
    hidden = [TaggedTokens(("cat", "\u0001", "sun"), ("B-a", "I-a", "L-a"), "f:1")]
    (own,) = tag_targets(model, hidden, WordRows.of(model, hidden))
    assert [labels[n] for n in own] == ["B-a", "L-a"]


def test_wrong_data_and_settings_are_refused(tmp_path: Path) -> None:
    bad = write_rows(tmp_path / "bad.jsonl", [{"tokens": ["a", "cat"], "tags": ["O", "I-animal"]}])
    data = {"train": str(bad), "held_out": 0.0}
    with pytest.raises(CorpusError, match=r"bad\.jsonl:1.*'I-animal'.*repair"):
        train_tagger(recipe(tmp_path, data=data), tmp_path / "run")
    settings = data | {"bad_tags": "repair", "types": ["person"]}
    with pytest.raises(TrainingError, match=r"bad\.jsonl:1: the type 'animal' is not in"):
        train_tagger(recipe(tmp_path, data=settings), tmp_path / "run")
    write_rows(bad, [{"tokens": ["a"], "tags": ["O"]}])
    with pytest.raises(TrainingError, match="No token of the 1 rows"):
        train_tagger(recipe(tmp_path, data=data), tmp_path / "run")
    write_rows(bad, [{"tokens": ["\u0001"], "tags": ["B-animal"]}])
    with pytest.raises(
        CorpusError, match=r"bad\.jsonl:1: the tokenizer of the model makes no token"
    ):
        train_tagger(recipe(tmp_path, data=data), tmp_path / "run")
    with pytest.raises(ConfigError, match="class_weights has no effect on a CRF"):
        recipe(tmp_path, crf=True, class_weights="balanced")


@pytest.mark.parametrize(("token", "tag"), [("cat", "O"), ("\u0001", "B-animal")])
def test_dev_data_without_entities_that_a_model_can_find_are_refused(
    tmp_path: Path, token: str, tag: str
) -> None:
    dev = write_rows(tmp_path / "dev.jsonl", [{"tokens": [token], "tags": [tag]}])
    with pytest.raises(CorpusError, match=r"dev\.jsonl:1: in the 1 dev rows .* no word that has"):
        train_tagger(recipe(tmp_path, data={"dev": str(dev)}), tmp_path / "run")


@pytest.mark.parametrize("name", shipped_recipes("tag"))
def test_shipped_recipes_reach_their_first_checkpoint(tmp_path: Path, name: str) -> None:
    data = write_rows(tmp_path / "rows.jsonl", sentences(700))
    settings = [f"data.train={data}", f"model={encoder_folder(tmp_path)}", "budget.steps=1"]
    made = load_recipe(TagRecipe, "tag", name, [*settings, "device=cpu", "max_len=24"])
    assert train_tagger(made, tmp_path / "run").best is not None
