"""Evaluations of task heads on small files, by hand, and their comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from sbert_search.errors import CorpusError, EvaluationError
from sbert_search.evaluate.comparison import compare_runs
from sbert_search.evaluate.report import write_reports
from sbert_search.evaluate.tasks import EvalTask, Kind, TaskColumns
from sbert_search.heads.calibration import expected_calibration_error
from sbert_search.heads.evaluation import evaluate_classify, evaluate_qa, evaluate_tag
from sbert_search.heads.labelled_spans import read_tagged_tokens
from sbert_search.heads.predictor import Predictor
from sbert_search.models.sequence_classifier import SequenceClassifier
from tests.cli.process import sbert_search
from tests.models.tiny import TEXTS, WORDS, tiny_answerer, tiny_classifier, tiny_tagger

pytestmark = pytest.mark.usefixtures("one_thread")

LABELS = ("no", "maybe", "yes")


def written(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def task(kind: Kind, path: Path, main_metric: str = "") -> EvalTask:
    return EvalTask(name="t", kind=kind, path=Path(path.name), main_metric=main_metric)


def balanced(model: SequenceClassifier, texts: Sequence[str]) -> Predictor:
    """Move the logits of a random model, so that it predicts every class."""
    predictor = Predictor(model)
    mean = predictor.logits(texts).mean(axis=0)
    model.out.bias.data -= model.out.bias.new_tensor(mean)
    return predictor


def test_classes_by_scikit_learn_with_calibration_before_and_after(tmp_path: Path) -> None:
    texts = [f"{a} {b}" for a in WORDS[:8] for b in WORDS[8:]]
    gold = np.random.default_rng(0).choice(LABELS, len(texts)).tolist()
    rows = [{"text": t, "label": label} for t, label in zip(texts, gold, strict=True)]
    path = written(tmp_path / "d.jsonl", rows)
    model = tiny_classifier(tmp_path / "m")
    model.temperature = 3.0
    predictor = balanced(model, texts)
    found = predictor.classify(texts)
    own = [text.label for text in found]
    result = evaluate_classify(
        task("classify", path, main_metric="Matthews"), predictor, data=tmp_path
    )
    assert result.scores["accuracy"] == pytest.approx(sk.accuracy_score(gold, own))
    assert result.scores["Matthews"] == pytest.approx(sk.matthews_corrcoef(gold, own))
    assert result.scores["macro F1"] == pytest.approx(sk.f1_score(gold, own, average="macro"))
    right = [a == b for a, b in zip(own, gold, strict=True)]
    error = expected_calibration_error([text.score for text in found], right)
    assert result.scores["ECE"] == pytest.approx(error)
    assert result.scores["ECE at temperature 1"] != result.scores["ECE"]
    assert result.interval is not None
    assert result.interval[0] < result.scores["Matthews"] < result.interval[1]
    assert result.manifest["settings"] == {"temperature": 3.0}


def test_several_classes_and_numbers(tmp_path: Path) -> None:
    several = Predictor(tiny_classifier(tmp_path, kind="several", threshold=0.4))
    found = several.classify(TEXTS[:3])
    gold = [["no"], ["no", "yes"], []]
    rows = [{"text": t, "label": own} for t, own in zip(TEXTS[:3], gold, strict=True)]
    path = written(tmp_path / "d.jsonl", rows)
    result = evaluate_classify(task("classify", path), several, data=tmp_path)
    hits = sum(len({*text.labels} & {*own}) for text, own in zip(found, gold, strict=True))
    expected = 2 * hits / (sum(len(text.labels) for text in found) + 3)
    assert result.scores["F1"] == pytest.approx(expected)
    number = Predictor(tiny_classifier(tmp_path, ("score",), "number"))
    numbers = [{"text": t, "label": n} for n, t in enumerate(("cat", "dog", "sun", "mat"))]
    path = written(tmp_path / "n.jsonl", numbers)
    result = evaluate_classify(task("classify", path), number, data=tmp_path)
    assert set(result.scores) == {"spearman", "pearson"}
    assert result.main_score == result.scores["spearman"]
    written(path, [{"text": row["text"], "stars": row["label"]} for row in numbers])
    stars = EvalTask(
        name="t", kind="classify", path=Path(path.name), columns=TaskColumns(score="stars")
    )
    assert evaluate_classify(stars, number, data=tmp_path).scores == result.scores
    written(path, numbers)
    named = task("classify", path, main_metric="pearson")
    result = evaluate_classify(named, number, data=tmp_path)
    assert result.main_score == result.scores["pearson"]
    write_reports([result], tmp_path / "out")


def test_tags_in_another_scheme_and_entities_that_are_all_right(tmp_path: Path) -> None:
    model = Predictor(tiny_tagger(tmp_path))
    sentences = [["the", "cat", "sat"], ["a", "red", "sun"], ["far", "away", "."]]
    tags = model.tag_words(sentences)
    assert {tag for own in tags for tag in own} & {"B-per", "B-loc", "I-per", "I-loc"}
    rows = [{"tokens": s, "tags": t} for s, t in zip(sentences, tags, strict=True)]
    path = written(tmp_path / "d.jsonl", rows)
    repaired = EvalTask(name="t", kind="tag", path=Path("d.jsonl"), bad_tags="repair")
    result = evaluate_tag(repaired, model, data=tmp_path)
    assert result.scores["F1"] == result.scores["recall"] == 1.0
    bilou = read_tagged_tokens(path, to="bilou", bad_tags="repair")
    written(path, [{"tokens": s.tokens, "tags": s.tags} for s in bilou])
    again = evaluate_tag(repaired, model, data=tmp_path)
    assert again.scores["F1"] == 1.0
    assert again.counts["entities"] == result.counts["entities"] > 0
    with pytest.raises(EvaluationError, match="is no classifier of texts"):
        evaluate_classify(repaired, model, data=tmp_path)
    with pytest.raises(EvaluationError, match="does not answer questions"):
        evaluate_qa(repaired, model, data=tmp_path)
    with pytest.raises(EvaluationError, match="does not tag entities"):
        evaluate_tag(repaired, Predictor(tiny_classifier(tmp_path)), data=tmp_path)


def test_answers_with_and_without_an_answer(tmp_path: Path) -> None:
    context = "red cat sat on mat"
    model = Predictor(tiny_answerer(tmp_path), no_answer_threshold=1000.0)
    (found,) = model.answer([("cat", context)])
    rows: list[dict[str, object]] = [
        {"id": "a", "question": "cat", "context": context, "answers": [[found.text, found.start]]},
        {"id": "b", "question": "cat", "context": context, "answers": []},
    ]
    result = evaluate_qa(task("qa", written(tmp_path / "d.jsonl", rows)), model, data=tmp_path)
    assert result.scores["F1"] == result.scores["exact match"] == 0.5
    assert result.scores["F1 with answer"] == 1
    assert result.scores["exact match without answer"] == 0
    assert result.per_item["F1"] == {"a": 1.0, "b": 0.0}
    assert result.manifest["settings"] == {"no_answer_threshold": 1000.0}
    path = written(tmp_path / "d.jsonl", rows[:1])  # no question without an answer
    answered = evaluate_qa(task("qa", path), model, data=tmp_path)
    assert answered.scores == {"F1": 1.0, "exact match": 1.0}
    always = Predictor(tiny_answerer(tmp_path), no_answer_threshold=np.inf)
    record = json.loads(evaluate_qa(task("qa", path), always, data=tmp_path).to_json())
    assert record["manifest"]["settings"] == {"no_answer_threshold": "inf"}


def test_questions_of_several_files_may_have_equal_ids(tmp_path: Path) -> None:
    model = Predictor(tiny_answerer(tmp_path), no_answer_threshold=-1000.0)
    for name, answers in (("d", []), ("e", [["cat", 4]])):
        row = {"id": "a", "question": "cat", "context": "red cat", "answers": answers}
        written(tmp_path / f"{name}.jsonl", [row])
    both = EvalTask(name="t", kind="qa", path=Path("d.jsonl"), more=(Path("e.jsonl"),))
    result = evaluate_qa(both, model, data=tmp_path)
    assert result.per_item["F1"] == {"d.jsonl: a": 1.0, "e.jsonl: a": 0.0}
    named = replace(both, columns=TaskColumns(text1="ask"))
    with pytest.raises(EvaluationError, match=r"t: questions have the columns .* \[columns\]"):
        evaluate_qa(named, model, data=tmp_path)


def test_a_main_metric_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "d.jsonl", [{"text": "cat", "label": ["no"]}])
    several = Predictor(tiny_classifier(tmp_path, kind="several"))
    matthews = task("classify", path, main_metric="Matthews")
    with pytest.raises(EvaluationError, match=r"t: 'Matthews' is no metric .* of: F1, accuracy, E"):
        evaluate_classify(matthews, several, data=tmp_path)


def test_two_runs_are_compared_by_a_metric_of_sums(tmp_path: Path) -> None:
    texts = [f"{a} {b}" for a in WORDS for b in WORDS]
    model = balanced(tiny_classifier(tmp_path / "m"), texts)
    own = [text.label for text in model.classify(texts)]
    rng = np.random.default_rng(0)
    gold = np.where(rng.random(len(own)) < 0.8, own, rng.choice(LABELS, len(own)))
    rows = [{"text": t, "label": label} for t, label in zip(texts, gold.tolist(), strict=True)]
    path = written(tmp_path / "d.jsonl", rows)
    measured = task("classify", path, main_metric="Matthews")
    write_reports([evaluate_classify(measured, model, data=tmp_path)], tmp_path / "good")
    other = tiny_classifier(tmp_path / "m")
    other.out.bias.data += 3 * other.out.bias.new_tensor([0.0, 0.0, 1.0])
    write_reports([evaluate_classify(measured, Predictor(other), data=tmp_path)], tmp_path / "bad")
    (found,) = compare_runs(tmp_path / "bad", tmp_path / "good")
    assert found.metric == "Matthews"
    assert found.verdict == "second is better"
    assert found.difference.value == pytest.approx(found.second - found.first)
    assert found.difference.low > 0
    with pytest.raises(
        EvaluationError, match="'recall' can be compared; it has those of: accuracy, macro F1"
    ):
        compare_runs(tmp_path / "bad", tmp_path / "good", metrics=["recall"])


def test_models_with_the_classes_in_another_order_are_compared(tmp_path: Path) -> None:
    texts = [f"{a} {b}" for a in WORDS[:8] for b in WORDS[8:]]
    model = tiny_classifier(tmp_path / "m")
    other = tiny_classifier(tmp_path / "m", ("yes", "no", "maybe"))  # the same model, turned by one
    other.load_state_dict(model.state_dict())
    balanced(model, texts)
    with torch.no_grad():
        other.out.weight.copy_(model.out.weight.roll(1, dims=0))
        other.out.bias.copy_(model.out.bias.roll(1))
    gold = np.random.default_rng(0).choice(LABELS, len(texts)).tolist()
    rows = [{"text": t, "label": label} for t, label in zip(texts, gold, strict=True)]
    measured = task("classify", written(tmp_path / "d.jsonl", rows), main_metric="Matthews")
    results = [
        evaluate_classify(measured, Predictor(each), data=tmp_path) for each in (model, other)
    ]
    assert results[0].per_item == results[1].per_item
    numbers = [results[0].per_item["gold class"][str(n)] for n in range(len(gold))]
    assert numbers == [sorted(LABELS).index(label) for label in gold]
    for name, result in zip("ab", results, strict=True):
        write_reports([result], tmp_path / name)
    (found,) = compare_runs(tmp_path / "a", tmp_path / "b")
    assert (found.difference.value, found.difference.p_value) == (0, 1)
    wider = tiny_classifier(tmp_path / "m", (*LABELS, "both"))
    write_reports([evaluate_classify(measured, Predictor(wider), data=tmp_path)], tmp_path / "c")
    with pytest.raises(EvaluationError, match=r"by Matthews: the classes .* different numbers"):
        compare_runs(tmp_path / "a", tmp_path / "c")
    (found,) = compare_runs(tmp_path / "a", tmp_path / "c", metrics=["accuracy"])
    assert (found.metric, found.first) == ("accuracy", results[0].scores["accuracy"])


def test_labels_that_are_no_classes_and_classes_without_names(tmp_path: Path) -> None:
    path = written(tmp_path / "d.jsonl", [{"text": "cat", "label": "mabye"}])
    model = Predictor(tiny_classifier(tmp_path))
    with pytest.raises(CorpusError, match="Unknown class of the model 'mabye'; did you mean"):
        evaluate_classify(task("classify", path), model, data=tmp_path)
    written(path, [{"text": "cat", "label": 1}, {"text": "dog", "label": 0}])
    plain = Predictor(tiny_classifier(tmp_path, ("LABEL_0", "LABEL_1")))
    result = evaluate_classify(task("classify", path), plain, data=tmp_path)
    assert set(result.per_item["gold class"].values()) == {0.0, 1.0}


@pytest.mark.parametrize("command", ["classify", "tag", "qa"])
def test_a_head_has_no_option_that_it_ignores(command: str) -> None:
    done = sbert_search("eval", command, "data.jsonl", "--model", "m", "--engine", "onnx")
    assert (done.code, "No such option '--engine'" in done.err) == (2, True)
