"""Classes that a server predicts, in the form of text-embeddings-inference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sbert_search.heads.predictor import Predictor
from tests.models.tiny import tiny_classifier
from tests.serve import routes
from tests.serve.live import Live, live_server


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    tiny_classifier(folder / "tokens").save(folder / "classes")
    return folder / "classes"


@pytest.fixture(scope="module")
def server(classes: Path) -> Iterator[Live]:
    options = ("--predict", classes, "--precision", "fp32")
    with live_server(*options, cwd=classes.parent) as live:
        yield live


def test_the_root_predicts_where_no_other_model_is_served(server: Live) -> None:
    assert [one["label"] for one in server.post("/", inputs="cat").json]
    assert server.post("/embed", inputs="cat").status == 404
    assert server.ask("GET", "/v1/models/classes").json["id"] == "classes"


def test_a_recorded_request_is_answered(server: Live) -> None:
    recorded = json.loads((Path(routes.__file__).parent / "clients.json").read_text())
    [request] = [one for one in recorded if one["path"] == "/predict"]
    answer = server.ask("POST", request["path"], request["body"])
    assert (answer.status, isinstance(answer.json, list)) == (200, True)


def test_classes_are_predicted_as_tei_does(server: Live, classes: Path) -> None:
    predictor = Predictor(classes, precision="fp32")
    [expected] = predictor.classify(["the cat sat"])
    found = server.post("/predict", inputs="the cat sat").json
    assert [one["label"] for one in found] == sorted(
        predictor.labels, key=lambda label: -expected.scores[label]
    )
    for one in found:
        assert one["score"] == pytest.approx(expected.scores[one["label"]], abs=1e-6)
    logits = predictor.logits([("the cat", "a dog"), ("cat", "sun")])
    pairs = [["the cat", "a dog"], ["cat", "sun"]]
    batch = server.post("/v1/predict", inputs=pairs, raw_scores=True).json
    for row, own in zip(batch, logits, strict=True):
        scores = {one["label"]: one["score"] for one in row}
        np.testing.assert_allclose([scores[name] for name in predictor.labels], own, atol=1e-5)
    assert server.post("/predict", inputs=pairs[0]).json[0] == pytest.approx(
        {**server.post("/predict", inputs=[pairs[0]]).json[0][0]}
    )
    too_long = server.post("/predict", inputs="cat " * 50, truncate=False)
    assert (too_long.status, too_long.json["error_type"]) == (413, "Validation")


@pytest.mark.parametrize("inputs", [[], [[]], [["a", "b", "c"]], ["a", "b", "c"], ["a", ["b"]]])
def test_wrong_inputs_of_predict_are_named(server: Live, inputs: object) -> None:
    answer = server.post("/predict", inputs=inputs)
    assert answer.status == 400
    assert answer.json["error"].startswith("`inputs")
