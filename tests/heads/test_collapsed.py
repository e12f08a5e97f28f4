"""A head that cannot tell texts apart gets the metrics of chance, and NaN is never a result."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from sbert_search.heads.train_answerer import answer_metrics
from sbert_search.heads.training_rows import dev_metrics, tag_metrics
from sbert_search.text.labelled.records import Answer, Question, TaggedTokens
from tests.evaluate.test_collapsed import N, fails
from tests.models.tiny import tiny_answerer, tiny_tagger


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_dev_metrics_of_taggers_and_answers(tmp_path: Path, value: float) -> None:
    tags = tiny_tagger(tmp_path / "tags")
    answers = tiny_answerer(tmp_path / "answers")
    with torch.no_grad():
        for parameter in (*tags.out.parameters(), *answers.out.parameters()):
            parameter.fill_(value)
    entity = next(label for label in tags.labels if label != "O")
    gold = [TaggedTokens(("the", "cat"), ("O", entity)), TaggedTokens(("a", "dog"), ("O", "O"))]
    questions = [
        Question("1", "cat", "the cat sat", (Answer(4, "cat sat"),)),
        Question("2", "dog", "the red sun", ()),
    ]
    for found in (tag_metrics(tags, gold), answer_metrics(answers, questions)):
        for metric in found.values():
            assert math.isnan(metric) if fails(value) else metric <= 0.5


@pytest.mark.parametrize("value", [0.0, 1.0, math.nan, math.inf])
def test_dev_metrics_of_classifiers(value: float) -> None:
    gold = np.arange(3 * N) % 3
    logits = np.full((3 * N, 3), value, np.float32)
    one = dev_metrics("class", logits, gold)
    several = dev_metrics("several", logits, np.eye(3)[gold])
    for found in (*one.values(), *several.values()):
        assert math.isnan(found) if fails(value) else found <= 0.5
    logits = np.tile(np.eye(3, dtype=np.float32), (N, 1))
    logits[0, 0] = value
    found = dev_metrics("class", logits, gold)["accuracy"]
    assert math.isnan(found) if fails(value) else found > 0.9
