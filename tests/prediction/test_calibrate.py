"""Fitted temperatures, stored with the model and applied to its scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sbert_search.errors import ConfigError, CorpusError
from sbert_search.models.side_file import read_side_file
from sbert_search.prediction.calibrate import calibrate
from sbert_search.prediction.predictor import Predictor
from sbert_search.search.rerankers.reranker import Reranker
from tests.cli.process import sbert_search
from tests.models.tiny import WORDS, tiny_cross_encoder
from tests.prediction.test_predictor import classifier, tagger

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
    rows[3]["label"] = 2
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(CorpusError, match=r"judged\.jsonl:4: Unknown class in 'label' '2'"):
        calibrate(tmp_path / "model", source, device="cpu")


def test_a_classifier_keeps_its_classes(tmp_path: Path) -> None:
    classifier(tmp_path / "tokens").save(tmp_path / "model")
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


def test_models_without_probabilities_are_refused(tmp_path: Path) -> None:
    tagger(tmp_path / "tokens").save(tmp_path / "model")
    with pytest.raises(ConfigError, match="is a model for tag; calibrate a classifier"):
        calibrate(tmp_path / "model", tmp_path / "dev.jsonl", device="cpu")
    with pytest.raises(ConfigError, match="is no folder of a model"):
        calibrate(tmp_path / "none", tmp_path / "dev.jsonl")
