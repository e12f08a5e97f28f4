"""Fitted temperatures, stored with the model and applied to its scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from sbert_search.errors import ConfigError, CorpusError
from sbert_search.heads.calibrate import calibrate
from sbert_search.heads.predictor import Predictor
from sbert_search.models.side_file import read_side_file
from sbert_search.search.rerankers import Reranker
from tests.cli.process import sbert_search
from tests.models.tiny import WORDS, tiny_classifier, tiny_cross_encoder, tiny_tagger

pytestmark = pytest.mark.usefixtures("one_thread")

PAIRS = [(f"the {a}", f"{b} sat on the {a}") for a in WORDS for b in WORDS]


def test_the_scores_of_a_cross_encoder_become_probabilities(tmp_path: Path) -> None:
    model = tiny_cross_encoder(tmp_path / "tokens")
    model.out.weight.data *= 8  # far too sure
    model.save(tmp_path / "model")
    before = Reranker(tmp_path / "model", device="cpu", precision="fp32").predict(PAIRS)
    logits = np.log(before) - np.log1p(-before)
    chances = 1 / (1 + np.exp(-logits / 5))
    drawn = np.random.default_rng(0).random(len(PAIRS)) < chances
    rows = [
        {"sentence1": a, "sentence2": b, "label": int(own)}
        for (a, b), own in zip(PAIRS, drawn, strict=True)
    ]
    source = tmp_path / "judged.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = sbert_search("calibrate", tmp_path / "model", source, "--device", "cpu", "--json")
    assert found.code == 0, found.err
    (told,) = found.records
    assert told["texts"] == len(PAIRS)
    assert told["temperature"] > 1.5
    assert told["error"] < told["error_before"]
    after = Reranker(tmp_path / "model", device="cpu", precision="fp32").predict(PAIRS)
    expected = 1 / (1 + np.exp(-logits / told["temperature"]))
    np.testing.assert_allclose(after, expected, atol=1e-4)
    again = calibrate(tmp_path / "model", source, device="cpu")
    assert again.error_before == again.error == pytest.approx(told["error"])
    rows[3]["label"] = 2
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(CorpusError, match=r"judged\.jsonl:4: Unknown class in 'label' '2'"):
        calibrate(tmp_path / "model", source, device="cpu")


def test_a_classifier_keeps_its_classes(tmp_path: Path) -> None:
    tiny_classifier(tmp_path / "tokens").save(tmp_path / "model")
    texts = [first for first, _ in PAIRS[::7]]
    source = tmp_path / "dev.jsonl"
    rows = [{"text": text, "label": ("no", "yes", "maybe")[n % 3]} for n, text in enumerate(texts)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = Predictor(tmp_path / "model", device="cpu", precision="fp32").classify(texts)
    found = calibrate(tmp_path / "model", source, device="cpu")
    after = Predictor(tmp_path / "model", device="cpu", precision="fp32").classify(texts)
    assert [own.label for own in after] == [own.label for own in before]
    assert [own.score for own in after] != [own.score for own in before]
    assert read_side_file(tmp_path / "model").temperature == pytest.approx(found.temperature)


def test_several_classes_of_a_model_with_one_class(tmp_path: Path) -> None:
    model = tiny_classifier(tmp_path / "tokens", ("toxic",), "several")
    model.out.weight.data *= 8  # far too sure
    model.save(tmp_path / "model")
    texts = [first for first, _ in PAIRS[::7]]
    gold: list[list[str]] = [["toxic"] if n % 3 else [] for n in range(len(texts))]
    source = tmp_path / "dev.jsonl"
    rows = [{"text": text, "label": own} for text, own in zip(texts, gold, strict=True)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = calibrate(tmp_path / "model", source, device="cpu")
    assert found.temperature > 1.5


def test_labels_are_numbers_of_classes_without_names(tmp_path: Path) -> None:
    names = ("LABEL_0", "LABEL_1", "LABEL_2")
    tiny_classifier(tmp_path / "tokens", names).save(tmp_path / "model")
    source = tmp_path / "dev.jsonl"
    found = []
    for labels in ((0, 1, 2), names):
        rows = [{"text": f"the {word}", "label": labels[n % 3]} for n, word in enumerate(WORDS)]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found.append(calibrate(tmp_path / "model", source, device="cpu").temperature)
    assert found[0] == found[1]
    source.write_text('{"text": "cat", "label": 3}\n')
    with pytest.raises(CorpusError, match=r"dev\.jsonl:1: Unknown class of the model '3'"):
        calibrate(tmp_path / "model", source, device="cpu")


def test_scores_that_are_no_probabilities_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "judged.jsonl"
    source.write_text('{"sentence1": "cat", "sentence2": "dog", "label": 1}\n')
    tiny_cross_encoder(tmp_path / "tokens", activation=nn.Identity()).save(tmp_path / "mse")
    with pytest.raises(ConfigError, match=r"activation of .*mse is torch.*Identity.*loss=bce"):
        calibrate(tmp_path / "mse", source, device="cpu")
    tiny_classifier(tmp_path / "tokens", ("score",), "number").save(tmp_path / "number")
    with pytest.raises(ConfigError, match="number predicts numbers, which are no probabilities"):
        calibrate(tmp_path / "number", source, device="cpu")
    for folder in ("mse", "number"):
        assert read_side_file(tmp_path / folder).temperature == 1


def test_a_missing_column_is_to_be_renamed(tmp_path: Path) -> None:
    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "model")
    source = tmp_path / "judged.jsonl"
    source.write_text('{"sentence1": "cat", "sentence2": "dog", "gold": 1}\n')
    with pytest.raises(CorpusError, match=r"Rename a column to label or .* or score\.$"):
        calibrate(tmp_path / "model", source, device="cpu")


def test_models_without_probabilities_are_refused(tmp_path: Path) -> None:
    tiny_tagger(tmp_path / "tokens").save(tmp_path / "model")
    with pytest.raises(ConfigError, match="is a model for tag; calibrate a classifier"):
        calibrate(tmp_path / "model", tmp_path / "dev.jsonl", device="cpu")
    with pytest.raises(ConfigError, match="is no folder of a model"):
        calibrate(tmp_path / "none", tmp_path / "dev.jsonl")


@pytest.mark.parametrize("right", [True, False])
def test_a_temperature_at_the_end_of_the_range_is_noted(
    right: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_classifier(tmp_path / "tokens", ("no", "yes")).save(tmp_path / "model")
    texts = [first for first, _ in PAIRS[::29]]
    found = Predictor(tmp_path / "model", device="cpu", precision="fp32").classify(texts)
    other = {"no": "yes", "yes": "no"}
    rows = [
        {"text": text, "label": own.label if right else other[own.label]}
        for text, own in zip(texts, found, strict=True)
    ]
    source = tmp_path / "dev.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fitted = calibrate(tmp_path / "model", source, device="cpu").temperature
    assert fitted == pytest.approx(0.05 if right else 20)
    told = f"The temperature is {'0.05, the lowest' if right else '20, the highest'} that is tried"
    assert told in capsys.readouterr().err
