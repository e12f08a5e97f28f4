"""Run files: what is written is read back in the same order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.errors import CorpusError
from sbert_search.evaluate.metrics.ranking import score_run
from sbert_search.text.labelled.retrieval import read_run, strictly_falling, write_run

SEPARATORS = "\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2003\u2028\u2029\u3000"  # not those of C
OTHERS = st.characters(codec="utf-8", exclude_characters="\0 \t\n\v\f\r")
IDS = st.text(st.sampled_from(SEPARATORS) | OTHERS, min_size=1, max_size=8).filter(
    lambda text: not text.startswith("\ufeff")
)
SCORES = st.floats(allow_nan=False, allow_infinity=False)


def test_ranks_begin_at_one_and_follow_the_order_shown(tmp_path: Path) -> None:
    write_run({"q": {"late": 0.1, "b": 0.5, "a": 0.5}}, tmp_path / "run.trec", tag="us")
    assert (tmp_path / "run.trec").read_text() == (
        "q Q0 b 1 0.5 us\nq Q0 a 2 0.4999999701976776 us\nq Q0 late 3 0.1 us\n"
    )
    assert list(read_run(tmp_path / "run.trec")["q"]) == ["b", "a", "late"]


@pytest.mark.thorough
@given(st.dictionaries(IDS, st.dictionaries(IDS, SCORES, min_size=1), min_size=1))
def test_a_run_survives_the_file(
    tmp_path_factory: pytest.TempPathFactory, run: dict[str, dict[str, float]]
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.trec"
    write_run(run, path)
    read = read_run(path)
    assert read.keys() == run.keys()
    for query_id, hits in run.items():
        order = sorted(hits, key=lambda doc_id: -hits[doc_id])
        assert list(read[query_id]) == order
        with np.errstate(over="ignore"):
            exact = np.array([hits[doc_id] for doc_id in order]).astype(np.float32)
        written = np.array([read[query_id][doc_id] for doc_id in order]).astype(np.float32)
        assert np.isfinite(written).all()
        assert (written[1:] < written[:-1]).all()
        if (exact[1:] < exact[:-1]).all() and np.isfinite(exact).all():
            assert read[query_id] == hits


@pytest.mark.thorough
@given(
    st.lists(
        st.sampled_from([0.0, -0.0, 1.0, 1 + 2**-30, 5e-324, 1e-45, -1e-45, 3.4e38, 1e39, -1e39])
        | SCORES,
        min_size=1,
        max_size=12,
    ),
    st.data(),
)
def test_trec_eval_scores_the_order_that_this_package_scores(
    tmp_path_factory: pytest.TempPathFactory, scores: list[float], data: st.DataObject
) -> None:
    ids = data.draw(st.permutations([f"s{n}" for n in range(len(scores))]))
    run = {"q": dict(zip(ids, scores, strict=True))}
    qrels = {"q": {data.draw(st.sampled_from(ids)): 2, data.draw(st.sampled_from(ids)): 1}}
    path = tmp_path_factory.mktemp("run") / "run.trec"
    write_run(run, path)
    for name, measure in (("nDCG@10", ir_measures.nDCG @ 10), ("MRR", ir_measures.RR)):
        rows: Iterable[object] = ir_measures.read_trec_run(str(path))  # type: ignore[no-untyped-call]
        outside = ir_measures.calc_aggregate([measure], qrels, rows)
        own = [score_run(hits, qrels, [name])[name]["q"] for hits in (run, read_run(path))]
        assert own == [own[0]] * 2
        assert outside[measure] == pytest.approx(own[0], abs=1e-12)


def test_the_lowest_scores_leave_room_for_an_order() -> None:
    lowest = float(np.finfo(np.float32).min)
    found = strictly_falling({"a": lowest, "b": lowest, "c": -1e300})
    assert found["a"] > found["b"] > found["c"] == lowest


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"q 1": {"d": 1.0}}, "The query id 'q 1' is empty or has white space"),
        ({"q": {"d\t1": 1.0}}, r"The document id 'd\t1' is empty or has white space"),
        ({"q": {"": 1.0}}, "The document id '' is empty"),
        ({"\ufeffq": {"d": 1.0}}, "begins with a byte order mark"),
        ({"q": {"d\udcff": 1.0}}, "The document id 'd\\udcff' has a lone surrogate"),
        ({"q": {"d": float("nan")}}, "'q', 'd': the score nan is not finite"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(
    tmp_path: Path, run: dict[str, dict[str, float]], message: str
) -> None:
    with pytest.raises(CorpusError) as caught:
        write_run(run, tmp_path / "run.trec")
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("", "The tag '' is empty"),
        ("my run", "The tag 'my run' is empty or has white space"),
        ("\ud800", "The tag '\\ud800' has a lone surrogate"),
    ],
)
def test_a_tag_is_one_cell(tmp_path: Path, tag: str, message: str) -> None:
    with pytest.raises(CorpusError) as caught:
        write_run({"q": {"d": 1.0}}, tmp_path / "run.trec", tag=tag)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_json_run_holds_every_id(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_run({"q 1": {"b c.pdf": 0.5, "": 1}, "\ufeff\udcff": {}}, path)
    assert json.loads(path.read_text()) == {"q 1": {"": 1.0, "b c.pdf": 0.5}, "\ufeff\udcff": {}}
    path.write_text('{"q": {"a": 1, "b c": 2.5, "d": -1}}')
    assert [*read_run(path)["q"].items()] == [("b c", 2.5), ("a", 1), ("d", -1)]


@given(st.dictionaries(st.text(), st.dictionaries(st.text(), SCORES), min_size=1))
def test_a_json_run_is_read_back_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, run: dict[str, dict[str, float]]
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.json"
    write_run(run, path)
    found = read_run(path)
    assert found.keys() == run.keys()
    for query_id, hits in run.items():
        assert [*found[query_id]] == sorted(hits, key=lambda doc_id: -hits[doc_id])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "run.json: holds no hits"),
        ("{", "run.json: broken JSON"),
        ("[]", "run.json: the row is not a JSON object ([])"),
        ('{"q": ["d"]}', "run.json: query 'q' has no object of scores by document id"),
        ('{"q": {"d": true}}', "no object of scores by document id"),
        ('{"q": {"d": 1e400}}', "'q', 'd': the score inf is not finite"),
        (f'{{"q": {{"d": 1{400 * "0"}}}}}', "is not finite"),
    ],
)
def test_a_wrong_json_run_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(CorpusError) as caught:
        read_run(tmp_path / "run.json")
    assert message in str(caught.value)


def test_ranks_from_zero_and_with_gaps_are_read_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text("q Q0 c 7 0 us\nq Q0 a 0 2 us\nq Q0 b 3 1 us\n")
    assert list(read_run(tmp_path / "run.trec")["q"]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "run.trec: holds no hits"),
        ("q Q0 d 1 0.5\n", "run.trec:1: 5 cells; a hit has six"),
        (
            "q Q0 d 1.5 0.5 us\n",
            "run.trec:1: the rank '1.5' must be a whole number, the score '0.5' a number",
        ),
        ("q Q0 d 1_0 0.5 us\n", "run.trec:1: the rank '1_0' must be a whole number, the score '0"),
        ("q Q0 d 1 1_0 us\n", "run.trec:1: the rank '1' must be a whole number, the score '1_0'"),
        (
            "q Q0 d 1 high us\n",
            "run.trec:1: the rank '1' must be a whole number, the score 'high' a number",
        ),
        ("q Q0 d 1 inf us\n", "run.trec:1: the score is not finite"),
        ("q Q0 d 1 2 us\nq Q0 e 1 1 us\n", "run.trec:2: query 'q' had rank 1 before ('e')"),
        (
            "q Q0 d 1 2 us\nq Q0 d 2 1 us\n",
            "run.trec:2: the query has this document at an earlier rank too",
        ),
        (
            "q Q0 d 1 1 us\nq Q0 e 2 2 us\n",
            "run.trec:2: its score 2.0 is higher than 1.0, the score of the rank before it ('e')",
        ),
    ],
)
def test_bad_runs_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "run.trec").write_text(content)
    with pytest.raises(CorpusError) as caught:
        read_run(tmp_path / "run.trec")
    assert message in str(caught.value)


def test_a_run_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"run\.trec: cannot be written: No such file"):
        write_run({"q": {"d": 1.0}}, tmp_path / "no" / "run.trec")
    with pytest.raises(CorpusError, match=r"run\.trec: cannot be read: No such file"):
        read_run(tmp_path / "run.trec")
