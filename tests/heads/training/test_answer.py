"""Models that answer questions are learned, over windows, with and without unanswerable ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoModelForQuestionAnswering

from sbert_search.config import from_mapping
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.evaluate.metrics.classification import answer_f1
from sbert_search.heads.predictor import Predictor
from sbert_search.heads.train_answerer import (
    ALWAYS,
    AnswerRecipe,
    BestSpan,
    answer_metrics,
    best_threshold,
    score_answers,
    train_answerer,
)
from sbert_search.heads.training_rows import WindowConfig, WindowRows
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.side_file import SideFile, read_side_file
from sbert_search.models.token_classifier import QuestionAnswerer
from sbert_search.text.labelled.records import Answer, Question
from sbert_search.train.recipe import load_recipe, shipped_recipes
from tests.heads.training.small import (
    QUICK,
    asked_devices,
    dev_figures,
    encoder_folder,
    write_rows,
)
from tests.models.tiny import FAMILIES, TEXTS, tiny_answerer
from tests.train.small import unlike

WORDS = ["the", "sun", "far", "away", "and", "then"]


def questions(n: int, unanswerable: bool) -> list[dict[str, Any]]:
    """The answer is the animal of the text; a text without one has no answer."""
    draw, rows = np.random.default_rng(1), []
    for place in range(n):
        words = draw.choice(WORDS, draw.integers(3, 12)).tolist()
        answers = []
        if not unanswerable or place % 3:
            at = int(draw.integers(len(words)))
            words[at] = ("cat", "dog")[place % 2]
            answers = [[words[at], len(" ".join(words[:at])) + (at > 0)]]
        row = {"id": str(place), "title": str(place), "question": "on", "context": " ".join(words)}
        rows.append(row | {"answers": answers})
    return rows


def recipe(folder: Path, *, unanswerable: bool = True, **settings: Any) -> AnswerRecipe:
    train = write_rows(folder / "questions.jsonl", questions(160, unanswerable))
    data = {"train": str(train), "held_out": 0.4} | settings.pop("data", {})
    fixed = {"data": data, "model": str(encoder_folder(folder)), "budget": {"epochs": 10}}
    windows = {"windows": {"overlap": 2}}
    return from_mapping(AnswerRecipe, QUICK | fixed | windows | {"max_len": 16} | settings)


@pytest.mark.thorough
@pytest.mark.parametrize("unanswerable", [True, False])
def test_answers_are_learned_and_transformers_computes_the_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unanswerable: bool
) -> None:
    asked = asked_devices(monkeypatch)
    train_answerer(recipe(tmp_path, unanswerable=unanswerable), tmp_path / "run")
    assert asked == ["cpu"]  # for the threshold
    figures = dev_figures(tmp_path / "run")
    assert figures[-1]["f1"] > 0.7 > figures[0]["f1"]
    folder = tmp_path / "run" / "model"
    assert (read_side_file(folder).no_answer_threshold == ALWAYS) == (not unanswerable)
    assert read_side_file(folder).overlap == 2
    model = QuestionAnswerer.load(folder)
    theirs = AutoModelForQuestionAnswering.from_pretrained(folder)
    ids = model.tokenizer.encode_pairs([("on", "the cat ran")])
    with torch.no_grad():
        output = theirs(torch.tensor(ids.ids), token_type_ids=torch.tensor(ids.types))
        expected = torch.stack([output.start_logits[0], output.end_logits[0]], dim=-1)
        ours = model(PackedTokens.from_lists(ids.ids, ids.types))
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("side", [SideFile(), SideFile(max_answer=1), SideFile(overlap=1)])
def test_a_model_is_measured_by_the_answers_that_it_predicts(
    tmp_path: Path, side: SideFile
) -> None:
    model = tiny_answerer(tmp_path, side)
    text = "the cat sat on the mat and then a dog ran far away in the red sun"
    asked = [Question(str(n), TEXTS[n], text, (Answer(start=0, text=text[:11]),)) for n in range(3)]
    found = Predictor(model).answer([(question.text, text) for question in asked])
    expected = np.mean([answer_f1(answer.text, [text[:11]]) for answer in found])
    assert answer_metrics(model, asked)["f1"] == pytest.approx(expected)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bert", {}),
        ("bert", {"tune": "head"}),
        ("bert", {"adversarial": {"kind": "sift"}}),
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
        train_answerer(made, tmp_path / out)
    (tmp_path / "b" / "ckpt-00000006").rename(tmp_path / "gone")
    train_answerer(made, tmp_path / "b", resume=True)
    assert not unlike(tmp_path / "a", tmp_path / "b")


def test_targets_are_the_tokens_of_the_answer_in_the_windows_that_hold_it(tmp_path: Path) -> None:
    model = QuestionAnswerer.start(encoder_folder(tmp_path), labels=("s", "e"), max_len=12)
    context = "the sun and the mat, then a red dog ran far away in the sun and slept"
    answer = Answer(context.index("red"), "red dog")
    asked = [
        Question("1", "cat", context, (answer,)),
        Question("2", "cat", context, ()),
    ]
    rows = WindowRows.of(model, asked, WindowConfig(overlap=3))
    targets = rows.targets(asked)
    assert len(rows.windows) > 4
    found = []
    for window, owner, (first, last) in zip(rows.windows, rows.question_ids, targets, strict=True):
        if (first, last) != (0, 0):
            start = window.offsets[first - window.start][0]
            found.append((owner, context[start : window.offsets[last - window.start][1]]))
    assert found
    assert set(found) == {(0, "red dog")}
    part = [w for w in rows.windows if w.offsets[0][0] <= answer.start < w.offsets[-1][1]]
    assert len(found) <= len(part)
    blank = Question("3", "cat", " red dog ", (Answer(0, " red dog "),))
    alone = WindowRows.of(model, [blank], WindowConfig())
    assert alone.targets([blank]).any()  # although no token covers the blanks


NEIGHBOURS = st.sampled_from([1.0, math.nextafter(1, 2), 1 + 2**-51, 5e-324, 0.0, -0.0, -5e-324])


@given(
    st.lists(
        st.tuples(
            st.integers(-3, 3) | NEIGHBOURS | st.floats(-10, 10),
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=9,
    )
)
@example([(math.nextafter(1, 2), 1, 0), (1 + 2**-51, 0, 1)])
def test_the_threshold_gives_the_highest_sum(rows: list[tuple[float, int, int]]) -> None:
    margins, answered, none = (
        [float(value) for value in column] for column in zip(*rows, strict=True)
    )

    def total(threshold: float) -> float:
        chosen = zip(margins, answered, none, strict=True)
        return sum(a if m <= threshold else n for m, a, n in chosen)

    best = max(total(t) for t in [-11.0, *margins])
    assert total(best_threshold(margins, answered, none)) == best


def test_a_question_without_a_span_is_never_answered() -> None:
    assert best_threshold([0.0, math.inf], [1.0, 0.0], [0.0, 1.0]) < math.inf
    assert best_threshold([math.inf], [0.0], [1.0]) < math.inf


def test_scores_that_are_nan_give_metrics_that_are_nan() -> None:
    questions = [Question("1", "q", "c", (Answer(0, "c"),)), Question("2", "q", "c", ())]
    found = [BestSpan("c", 1.0, 0.0), BestSpan("", math.nan, math.nan)]
    f1, exact, threshold = score_answers(found, questions)
    assert math.isnan(f1)
    assert math.isnan(exact)
    assert threshold == ALWAYS


def test_wrong_data_and_settings_are_refused(tmp_path: Path) -> None:
    rows = [{"question": "who?", "context": "a cat", "answers": [["dog", 2]]}]
    data = {"train": str(write_rows(tmp_path / "bad.jsonl", rows)), "held_out": 0.0}
    with pytest.raises(CorpusError, match=r"bad\.jsonl:1.*'dog'"):
        train_answerer(recipe(tmp_path, data=data), tmp_path / "run")
    write_rows(tmp_path / "bad.jsonl", [{"question": "who?", "context": "a cat", "answers": []}])
    dev = {"dev": str(tmp_path / "bad.jsonl")}
    with pytest.raises(CorpusError, match=r"bad\.jsonl:1: none of the 1 dev questions"):
        train_answerer(recipe(tmp_path, data=dev), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"windows\.max_answer is 0; it must be at least 1"):
        recipe(tmp_path, windows={"max_answer": 0})


@pytest.mark.parametrize("name", shipped_recipes("qa"))
def test_shipped_recipes_reach_their_first_checkpoint(tmp_path: Path, name: str) -> None:
    data = write_rows(tmp_path / "rows.jsonl", questions(700, True))
    settings = [f"data.train={data}", f"model={encoder_folder(tmp_path)}", "budget.steps=1"]
    made = load_recipe(AnswerRecipe, "qa", name, [*settings, "device=cpu", "max_len=24"])
    assert train_answerer(made, tmp_path / "run").best is not None
