"""Cross-encoders on graded candidates and on labelled pairs; embedders on triplets."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import CorpusError, EvaluationError
from sbert_search.evaluate.cross_encoders import evaluate_nli, evaluate_rerank, rerank
from sbert_search.evaluate.metrics.ranking import score_run
from sbert_search.evaluate.report import markdown, write_reports
from sbert_search.evaluate.similarity import evaluate_triplets
from sbert_search.evaluate.tasks import EvalTask, Kind
from sbert_search.search.rerankers import Reranker
from sbert_search.text.labelled.candidates import Candidates
from tests.models.tiny import tiny_cross_encoder

CANDIDATES = [
    ("the cat", "it sat on the mat", 1),
    ("the cat", "the red sun", 0),
    ("the cat", "a dog ran", 0),
    ("the dog", "far away", 0),
    ("the dog", "it ran", 2),
    ("the sun", "red", 1),
    ("the mat", "away", 0),
]


def write(path: Path, kind: Kind, rows: list[dict[str, Any]], **task: Any) -> EvalTask:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return EvalTask(name="mini", kind=kind, path=Path(path.name), **task)


def graded(folder: Path, **task: Any) -> EvalTask:
    rows = [{"question": q, "answer": a, "label": grade} for q, a, grade in CANDIDATES]
    return write(folder / "graded.jsonl", "rerank", rows, **task)


def test_candidates_are_judged_in_the_order_of_their_scores(tmp_path: Path) -> None:
    reranker = Reranker(tiny_cross_encoder(tmp_path / "tokenizer"))
    result = evaluate_rerank(graded(tmp_path), reranker, data=tmp_path)
    scores = reranker.predict([(q, a) for q, a, _ in CANDIDATES])
    run = {"0": {f"0-{n}": float(scores[n]) for n in range(3)}}
    assert result.per_item["MAP"]["0"] == score_run(run, {"0": {"0-0": 1}}, ["MAP"])["MAP"]["0"]
    assert result.per_item["MRR"]["2"] == 1.0  # its one candidate is relevant
    assert result.per_item["MAP"]["3"] == 0.0  # it has no relevant one
    assert result.counts == {
        "queries": 4,
        "queries whose candidates are all relevant or all not": 2,
        "candidates": 7,
    }
    assert result.scores["MAP"] == pytest.approx(np.mean([*result.per_item["MAP"].values()]))


def test_a_score_that_is_no_number_is_refused() -> None:
    class Broken:
        def predict(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
            return np.array([1, np.nan, 2], np.float32)

    asked = Candidates("q", "the cat", {"a": "x", "b": "y", "c": "z"}, {"a": 0, "b": 0, "c": 1})
    with pytest.raises(EvaluationError, match="document 'b' for query 'q' is NaN"):
        rerank([asked], cast(Reranker, Broken()), ["MRR"])


def test_equal_scores_do_not_rank_in_the_order_of_the_file() -> None:
    texts = {f"{number}": f"text {number}" for number in range(400)}
    grades = {doc_id: int(int(doc_id) < 40) for doc_id in texts}

    class Constant:
        def predict(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
            return [0.5] * len(pairs)

    def average(ids: Iterable[str]) -> float:
        candidates = Candidates("q", "query", {doc_id: texts[doc_id] for doc_id in ids}, grades)
        return rerank([candidates], cast(Reranker, Constant())).per_query["MAP"]["q"]

    assert average(texts) == average(reversed(texts))
    assert average(texts) == pytest.approx(0.1, abs=0.06)  # a random order: about 40 of 400


def test_clean_leaves_out_queries_that_cannot_go_wrong(tmp_path: Path) -> None:
    reranker = Reranker(tiny_cross_encoder(tmp_path / "tokenizer"))
    clean = evaluate_rerank(graded(tmp_path, queries="clean"), reranker, data=tmp_path)
    assert set(clean.per_item["MAP"]) == {"0", "1"}
    assert clean.manifest["settings"] == {"queries": "clean"}
    assert "queries clean" in markdown([clean])
    only = write(tmp_path / "one.jsonl", "rerank", [{"text1": "a", "text2": "b", "label": 1}])
    with pytest.raises(EvaluationError, match="no query has both relevant and other candidates"):
        evaluate_rerank(
            EvalTask(name="mini", kind="rerank", path=only.path, queries="clean"),
            reranker,
            data=tmp_path,
        )


def test_what_cannot_be_reranked_is_named(tmp_path: Path) -> None:
    several = Reranker(tiny_cross_encoder(tmp_path / "tokenizer", labels=("a", "b")))
    with pytest.raises(EvaluationError, match="2 labels; reranking needs one score"):
        evaluate_rerank(graded(tmp_path), several, data=tmp_path)
    unknown = Reranker(tiny_cross_encoder(tmp_path / "one"))
    with pytest.raises(EvaluationError, match="'AP' is not a metric; use nDCG@k"):
        evaluate_rerank(graded(tmp_path, main_metric="AP"), unknown, data=tmp_path / "none")
    task = write(tmp_path / "bad.jsonl", "rerank", [{"text1": "a", "text2": "b", "label": "x"}])
    with pytest.raises(CorpusError, match=r"bad\.jsonl:1: label is 'x'; it must be 0, 1, 2"):
        evaluate_rerank(task, Reranker(tiny_cross_encoder(tmp_path / "other")), data=tmp_path)


def test_nli_counts_the_pairs_that_get_their_label(tmp_path: Path) -> None:
    labels = ("Entailment", "neutral", "contradiction")
    model = Reranker(tiny_cross_encoder(tmp_path / "tokenizer", labels=labels))
    texts = [("the cat sat", "it sat"), ("a dog", "the sun"), ("it ran", "it slept"), ("a", "b")]
    found = [labels[place].lower() for place in model.predict(texts).argmax(axis=1)]
    gold = [found[0], found[1], "neutral" if found[2] != "neutral" else "entailment", "-"]
    labelled = zip(texts, gold, strict=True)
    rows = [{"premise": a, "hypothesis": b, "label": label} for (a, b), label in labelled]
    task = write(tmp_path / "pairs.jsonl", "nli", rows)
    result = evaluate_nli(task, model, data=tmp_path)
    assert result.scores["accuracy"] == pytest.approx(2 / 3)
    assert result.per_item["accuracy"] == {"0": 1.0, "1": 1.0, "2": 0.0}
    assert result.counts["pairs left out (no label)"] == 1
    report, record, picture = write_reports([result], tmp_path / "out")
    assert "66.67" in report.read_text()
    assert json.loads(record.read_text())["interval"] == list(result.interval or ())
    assert picture.read_text().startswith("<svg")
    rows[0]["label"] = "entails"
    with pytest.raises(EvaluationError, match=re.escape("pairs.jsonl:1: Unknown label 'entails'")):
        evaluate_nli(write(tmp_path / "pairs.jsonl", "nli", rows), model, data=tmp_path)


def test_triplets_are_hits_when_the_positive_is_nearest(tmp_path: Path) -> None:
    rows = [
        {"anchor": "a cat sat", "positive": "a cat sat here", "negative": "the red sun"},
        {"anchor": "a cat sat", "positive": "the red sun", "negative": "a cat sat here"},
        {"anchor": "far away", "positive": "one", "negative": "two"},  # equally far: no hit
    ]
    task = write(tmp_path / "triplets.jsonl", "triplets", rows)
    result = evaluate_triplets(task, HashingEmbedder(), data=tmp_path)
    assert result.per_item["accuracy"] == {"0": 1.0, "1": 0.0, "2": 0.0}
    assert result.scores == pytest.approx({"accuracy": 1 / 3, "cosine accuracy": 1 / 3})
    assert "| mini | test | 3 | 33.33 |" in markdown([result])


def test_pairs_without_any_label_are_refused(tmp_path: Path) -> None:
    labels = ("entailment", "neutral", "contradiction")
    model = Reranker(tiny_cross_encoder(tmp_path / "tokenizer", labels=labels))
    rows = [{"premise": "a", "hypothesis": "b", "label": "-"}] * 2
    with pytest.raises(EvaluationError, match=r"pairs\.jsonl: no pair has a label, only '-'"):
        evaluate_nli(write(tmp_path / "pairs.jsonl", "nli", rows), model, data=tmp_path)
