"""The mission's rows of task heads; see `tests/test_mission.py`."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from sbert_search import Predictor
from tests.cli.process import sbert_search as run
from tests.cli.process import told
from tests.world import World

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "figure", "least"),
    [
        ("classify", "accuracy", 0.2),
        ("frozen", "accuracy", 0.2),
        ("probe", "accuracy", 0.5),
        ("tag", "f1", 0.5),
        ("crf", "f1", 0.5),
        ("answer", "f1", 0.5),
    ],
)
def test_a_recipe_learns(world: World, name: str, figure: str, least: float) -> None:
    assert world.gain(name, figure) > least


def test_classes_entities_and_answers_are_predicted(world: World, tmp_path: Path) -> None:
    text = world.small.sentence(3, 3)
    assert Predictor(world.model("probe"), precision="fp32").classify([text])[0].label == "space"
    (found,) = Predictor(world.model("crf"), precision="fp32").tag([text])
    words = [text[each.start : each.end] for each in found.entities]
    assert words == [text.split()[1], text[:-1].split()[-1]]
    answered = told("predict", world.model("answer"), world.folder / "questions.jsonl")
    contexts = [row["context"] for row in map(
        json.loads, (world.folder / "questions.jsonl").read_text().splitlines()
    )]  # fmt: skip
    assert answered[0]["answer"] == contexts[0].split()[1]
    (fitted,) = told("calibrate", world.model("classify"), world.folder / "classes.jsonl")
    assert fitted["temperature"] > 0


def test_a_head_fills_a_column_that_filters_read(world: World, tmp_path: Path) -> None:
    source = world.small.write_rows(
        tmp_path / "t.jsonl",
        [{"_id": str(n), "text": world.small.sentence(n, n)} for n in range(8)],
    )
    line = ("index", "build", source, "--model", "hashing", "--out", tmp_path / "i")
    told(*line, "--classify", f"{world.model('probe')}=topic")
    hits = told("search", tmp_path / "i", "moon", "--where", "topic = 'space'", "-k", 8)
    assert {hit["doc_id"] for hit in hits} == {"3", "7"}


def test_its_names_and_commands_are_there() -> None:
    assert {"Predictor"} <= {*import_module("sbert_search").__all__}
    for command in ("predict", "calibrate", "train tag", "eval qa"):
        done = run(*command.split(), "--help")
        assert (done.code, f"sbert-search {command}" in done.out) == (0, True)
