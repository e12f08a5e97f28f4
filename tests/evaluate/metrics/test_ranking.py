import math
import sys
from typing import Any

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.errors import EvaluationError
from sbert_search.evaluate.metrics.ranking import (
    mean,
    score_run,
)
from sbert_search.records import Qrels, Run

QRELS = {"q": {"a": 2, "b": 1, "c": 0, "d": 1}}
RUN = {"q": {"c": 0.9, "a": 0.8, "x": 0.7, "b": 0.6}}


def value(measure: str, run: Run = RUN, qrels: Qrels = QRELS) -> float:
    return score_run(run, qrels, [measure])[measure]["q"]


def test_hand_worked_values() -> None:
    gain = 2 / math.log2(3) + 1 / math.log2(5)  # a at rank 2, b at rank 4
    ideal = 2 + 1 / math.log2(3) + 1 / math.log2(4)  # a, then b and d
    assert value("nDCG@10") == pytest.approx(gain / ideal)
    assert value("nDCG@1") == 0.0
    assert value("recall@100") == pytest.approx(2 / 3)
    assert value("recall@2") == pytest.approx(1 / 3)
    assert value("MRR@10") == pytest.approx(1 / 2)
    assert value("MRR@1") == 0.0
    assert value("MAP") == pytest.approx((1 / 2 + 2 / 4) / 3)


def test_every_judged_query_counts_and_no_other() -> None:
    qrels = {"found": {"a": 1}, "empty": {"a": 1}, "absent": {"a": 1}, "no relevant": {"a": 0}}
    run: dict[str, dict[str, float]] = {
        "found": {"a": 1.0},
        "empty": {},
        "no relevant": {"a": 1.0},
        "not judged": {"a": 1.0},
    }
    for per_query in score_run(run, qrels).values():
        assert per_query == {"found": 1.0, "empty": 0.0, "absent": 0.0, "no relevant": 0.0}
        assert mean(per_query) == 0.25


def test_negative_grades_count_as_0() -> None:
    """With grades of -2, as for spam in TREC's web tracks, pytrec_eval ended the process."""
    grades = {f"q{n}": {f"d{k}": -2 if n % 2 else 1 for k in range(n % 7 + 1)} for n in range(100)}
    run = {query: {f"d{k}": 1.0 for k in range(20)} for query in grades}
    for per_query in score_run(run, grades).values():
        assert list(per_query.values()) == [1.0, 0.0] * 50
    mixed = {"q": {"a": -2, "b": 1}}
    assert value("MAP", {"q": {"a": 2.0, "b": 1.0}}, mixed) == 0.5


@pytest.mark.parametrize("shown", [["a", "b"], ["b", "a"]])
def test_equal_scores_are_judged_in_the_order_shown(shown: list[str]) -> None:
    """trec_eval would rank b first, MS MARCO's MRR a; neither uses the order that was shown."""
    run = {"q": dict.fromkeys(shown, 0.5)}
    expected = 1 / (1 + shown.index("a"))
    assert value("MRR@10", run, {"q": {"a": 1}}) == expected
    assert value("MAP", run, {"q": {"a": 1}}) == expected


def test_scores_that_differ_beyond_32_bits_keep_their_order() -> None:
    run = {"q": {"a": 1.00000002, "b": 1.00000001}}
    assert np.float32(run["q"]["a"]) == np.float32(run["q"]["b"])
    assert value("MAP", run, {"q": {"a": 1}}) == 1.0


@pytest.mark.parametrize("name", ["nDCG", "ndcg@10", "MAP@10", "recall@0", "P@5"])
def test_an_unknown_measure_is_named(name: str) -> None:
    with pytest.raises(EvaluationError, match=f"'{name}' is not a metric; use nDCG@k"):
        score_run(RUN, QRELS, [name])


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_measures", None)  # its import fails
    with pytest.raises(EvaluationError, match=r"ir-measures; run: python -m pip install -e \. in"):
        score_run(RUN, QRELS, ["MRR"])


def test_a_mean_over_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no queries"):
        mean({})


doc_ids = st.sampled_from([f"d{n}" for n in range(8)])
grades = st.dictionaries(doc_ids, st.integers(0, 3), min_size=1)
hits = st.lists(doc_ids, unique=True)


@given(st.dictionaries(st.sampled_from("pqr"), grades, min_size=1), st.data())
def test_equals_ir_measures_on_runs_without_ties(qrels: Any, data: st.DataObject) -> None:
    shown = {query: data.draw(hits) for query in qrels}
    run = {q: {d: -float(rank) for rank, d in enumerate(docs)} for q, docs in shown.items()}
    ours = score_run(run, qrels, ["nDCG@3", "recall@5", "MRR@2", "MAP"])
    theirs = [ir_measures.nDCG @ 3, ir_measures.R @ 5, ir_measures.RR @ 2, ir_measures.AP]
    reference = ir_measures.calc_aggregate(theirs, qrels, run)
    for per_query, measure in zip(ours.values(), theirs, strict=True):
        assert mean(per_query) == pytest.approx(reference[measure])


def test_equals_trec_eval_itself() -> None:
    """Compared with pytrec_eval directly, on grades and a run of realistic size."""
    rng = np.random.default_rng(0)
    qrels = {f"q{n}": {f"d{d}": int(rng.integers(0, 4)) for d in range(40)} for n in range(20)}
    run = {q: {f"d{d}": float(rng.permutation(60)[0]) + d / 100 for d in range(60)} for q in qrels}
    names = {"nDCG@10": "ndcg_cut_10", "recall@5": "recall_5", "MAP": "map"}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, set(names.values())).evaluate(run)
    for name, per_query in score_run(run, qrels, names).items():
        expected = {query: values[names[name]] for query, values in theirs.items()}
        assert per_query == pytest.approx(expected, abs=1e-12)


def test_a_score_that_is_no_number_is_refused() -> None:
    run = {"q": {"a": 1.0, "b": math.nan, "c": 2.0}}
    with pytest.raises(EvaluationError, match="document 'b' for query 'q' is NaN"):
        score_run(run, {"q": {"c": 1}}, ["MRR"])
