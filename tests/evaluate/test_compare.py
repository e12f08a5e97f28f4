import contextlib
import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.errors import EvaluationError, SbertSearchError
from sbert_search.evaluate.comparison import compare_runs
from sbert_search.evaluate.manifest import read_evaluation
from sbert_search.evaluate.metrics.classification import COUNTS
from sbert_search.evaluate.metrics.correlation import spearman
from sbert_search.evaluate.metrics.significance import compare_means
from sbert_search.evaluate.report import draw

Change = Callable[[dict[str, Any]], object]


def record(task: str, per_item: dict[str, list[float]], *, kind: str = "retrieval") -> Any:
    """What an evaluation writes, as far as a comparison reads it."""
    scores = {name: float(np.mean(values)) for name, values in per_item.items()}
    if kind == "sts":
        scores = {"spearman": spearman(per_item["predicted"], per_item["gold"])}
    return {
        "format": 1,
        "task": {"name": task, "kind": kind, "split": "test", "main_metric": next(iter(scores))},
        "scores": scores,
        "counts": {"documents": 9},
        "manifest": {
            "data_sha256": {f"{task}/corpus.jsonl": "c" * 64},
            "model": {"name": "minilm", "weights_sha256": "a" * 64},
            "settings": {"mode": "dense"},
            "code": {"commit": "0" * 40},
            "seed": 0,
        },
        "per_item": {m: {f"q{n}": v for n, v in enumerate(vs)} for m, vs in per_item.items()},
    }


def write(path: Path, *records: Any) -> Path:
    path.mkdir(exist_ok=True)
    for each in records:
        (path / f"{each['task']['name']}.json").write_text(json.dumps(each))
    return path


def test_wins_losses_and_the_corrected_p_value(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base = rng.random(60).round(2)
    better, same = base + 0.1 + 0.02 * rng.normal(size=60), base + 0.1 * rng.normal(size=60)
    first = write(
        tmp_path / "a", record("one", {"nDCG@10": [*base]}), record("two", {"nDCG@10": [*base]})
    )
    second = write(
        tmp_path / "b", record("one", {"nDCG@10": [*better]}), record("two", {"nDCG@10": [*same]})
    )
    one, two = compare_runs(first, second, draws=2_000)
    assert one.difference == compare_means(base, better, draws=2_000)
    assert one.corrected == pytest.approx(2 * one.difference.p_value)  # the smaller of two
    assert (one.verdict, two.verdict) == ("second is better", "no difference shown")
    assert (one.conclusion, two.conclusion) == (one.verdict, two.verdict)
    few = replace(two, changes=two.changes[:49])
    assert few.conclusion.startswith("no difference shown (only 49 compared; fewer than 50 show")
    assert (len(one.wins), len(one.losses)) == (60, 0)
    best = int(np.argmax(better - base))
    assert one.changes[0].item == f"q{best}"
    assert one.changes[0].gain == pytest.approx(better[best] - base[best])
    worst = two.losses[0]
    assert worst.second - worst.first == worst.gain == pytest.approx((same - base).min())
    assert one.differs == two.differs == {}


def test_runs_of_sts_compare_correlations(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    gold = rng.random(80).round(1)
    close, far = gold + 0.1 * rng.normal(size=80), gold + rng.normal(size=80)
    first, second = (
        write(tmp_path / name, record("sts", {"predicted": [*c], "gold": [*gold]}, kind="sts"))
        for name, c in (("a", far), ("b", close))
    )
    (found,) = compare_runs(first / "sts.json", second, draws=1_000)
    assert (found.metric, found.verdict) == ("spearman", "second is better")
    assert found.difference.value == pytest.approx(spearman(close, gold) - spearman(far, gold))
    assert found.wins[0].first > found.wins[0].second  # nearer to its place in the gold order


def test_items_of_sums_are_paired_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    counts = {name: rng.integers(0, 4, 40).tolist() for name in COUNTS}
    one = record("tags", {"accuracy": rng.random(40).tolist(), **counts}, kind="tag")
    one["scores"]["F1"] = 0.5
    two = json.loads(json.dumps(one))
    two["per_item"] = {
        name: dict(reversed(values.items())) for name, values in one["per_item"].items()
    }
    first, second = write(tmp_path / "a", one), write(tmp_path / "b", two)
    (found,) = compare_runs(first, second, metrics=["F1"], draws=200)
    assert (found.difference.low, found.difference.high) == (0, 0)
    assert {change.gain for change in found.changes} <= {0.0}


def test_what_was_made_otherwise_is_named(tmp_path: Path) -> None:
    first, other = record("one", {"MAP": [0.1, 0.2]}), record("one", {"MAP": [0.1, 0.2]})
    other["manifest"]["settings"] = {"mode": "hybrid", "reranker": "ce"}
    equal = record("two", {"MAP": [0.3, 0.4]})
    found, same = compare_runs(
        write(tmp_path / "a", first, equal), write(tmp_path / "b", other, equal)
    )
    assert found.differs == {"mode": ("dense", "hybrid"), "reranker": (None, "ce")}
    assert same.differs == {}
    assert (found.corrected, found.verdict) == (1.0, "no difference shown")


DIFFERENT: list[tuple[Change, str]] = [
    (
        lambda r: r["manifest"]["data_sha256"].update({"one/corpus.jsonl": "d" * 64}),
        r"one: .* corpus\.jsonl has sha256 cccccccccccc and dddddddddddd",
    ),
    (lambda r: r["per_item"]["MAP"].pop("q1"), "1 items are in only one .* 'q1'"),
    (lambda r: r["counts"].update(documents=8), "9 and 8 documents"),
    (lambda r: r["task"].update(split="dev"), "split test and dev"),
    (lambda r: r["task"].update(kind="rerank"), "kind retrieval and rerank"),
    (lambda r: r["task"].update(name="two"), "Only one of the two runs has one, two"),
]


@pytest.mark.parametrize(("change", "message"), DIFFERENT)
def test_different_data_are_refused(tmp_path: Path, change: Change, message: str) -> None:
    other = record("one", {"MAP": [0.1, 0.2]})
    change(other)
    first = write(tmp_path / "a", record("one", {"MAP": [0.1, 0.2]}))
    with pytest.raises(EvaluationError, match=message):
        compare_runs(first, write(tmp_path / "b", other))


def test_files_of_equal_names_are_compared_by_all_their_hashes(tmp_path: Path) -> None:
    runs = []
    for name, hashes in {
        "a": {"a/x.tsv": "1" * 64, "b/x.tsv": "2" * 64},
        "moved": {"c/x.tsv": "2" * 64, "d/x.tsv": "1" * 64},
        "other": {"a/x.tsv": "9" * 64, "b/x.tsv": "2" * 64},
    }.items():
        each = record("one", {"MAP": [0.1, 0.2]})
        each["manifest"]["data_sha256"] = hashes
        runs.append(write(tmp_path / name, each))
    assert len(compare_runs(runs[0], runs[1])) == 1
    shown = "x.tsv has sha256 111111111111, 222222222222 and 222222222222, 999999999999"
    with pytest.raises(EvaluationError, match=shown):
        compare_runs(runs[0], runs[2])


def test_items_that_are_numbered_over_files_need_the_same_order(tmp_path: Path) -> None:
    runs = []
    for name, hashes in {
        "a": {"a/x.tsv": "1" * 64, "b/y.tsv": "2" * 64},
        "b": {"b/y.tsv": "2" * 64, "a/x.tsv": "1" * 64},
    }.items():
        each = record("one", {"accuracy": [1.0, 0.0]}, kind="classify")
        each["manifest"]["data_sha256"] = hashes
        runs.append(write(tmp_path / name, each))
    with pytest.raises(EvaluationError, match="data files are in different orders"):
        compare_runs(runs[0], runs[1])


def test_other_gold_scores_of_one_file_are_refused(tmp_path: Path) -> None:
    one = record("one", {"predicted": [0.1, 0.2, 0.3], "gold": [1.0, 2.0, 3.0]}, kind="sts")
    other = record("one", {"predicted": [0.1, 0.2, 0.3], "gold": [3.0, 2.0, 1.0]}, kind="sts")
    with pytest.raises(EvaluationError, match="gold scores differ"):
        compare_runs(write(tmp_path / "a", one), write(tmp_path / "b", other))


def test_two_records_of_one_task_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", record("one", {"MAP": [0.1, 0.2]}))
    (folder / "one-old.json").write_bytes((folder / "one.json").read_bytes())
    with pytest.raises(EvaluationError, match=r"one\.json are records of the same task, one"):
        compare_runs(folder, folder)


def test_rankings_of_trec_are_for_another_command(tmp_path: Path) -> None:
    (tmp_path / "bm25.trec").write_text("q1 Q0 d1 1 2.5 bm25\n")
    with pytest.raises(EvaluationError, match="compared by `eval run`, in Python by `evaluate_run"):
        read_evaluation(tmp_path / "bm25.trec")


def test_a_record_that_is_nested_too_deep_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[" * 100_000)
    with pytest.raises(EvaluationError, match=r"x\.json is not an evaluation record"):
        compare_runs(tmp_path, tmp_path)


def test_a_metric_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first, second = (
        write(tmp_path / name, record("one", {"MAP": rng.random(30).tolist()})) for name in "ab"
    )
    (once,) = compare_runs(first, second, metrics=["MAP"], draws=200)
    (found,) = compare_runs(first, second, metrics=["MAP", "MAP"], draws=200)
    assert found.corrected == once.corrected == once.difference.p_value


DAMAGED: list[tuple[Change, str]] = [
    (lambda r: r.pop("task"), "task is no JSON object"),
    (lambda r: r["task"].pop("split"), r"task\.split is no text"),
    (lambda r: r["manifest"].pop("settings"), r"manifest\.settings is no JSON object"),
    (lambda r: r["manifest"].pop("seed"), r"manifest\.seed is no integer"),
    (lambda r: r["per_item"].update(MAP=[1]), r"per_item\.MAP is no JSON object"),
    (lambda r: r["per_item"]["MAP"].update(q1=None), "MAP of item 'q1' is None, which is no fin"),
    (lambda r: r["per_item"]["MAP"].update(q1=float("nan")), "MAP of item 'q1' is nan"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGED)
def test_a_damaged_record_is_named(tmp_path: Path, change: Change, message: str) -> None:
    damaged = record("one", {"MAP": [0.1, 0.2]})
    change(damaged)
    (tmp_path / "one.json").write_text(json.dumps(damaged))
    with pytest.raises(EvaluationError, match=rf"one\.json is damaged: {message}.*run the eval"):
        compare_runs(tmp_path / "one.json", tmp_path / "one.json")


KINDS: dict[str, Any] = {
    "retrieval": {"MAP": [0.1, 0.2, 0.4], "nDCG@10": [0.5, 0.5, 1.0]},
    "sts": {"predicted": [0.1, 0.2, 0.3], "gold": [1, 3, 2]},
    "classify": {
        "accuracy": [1.0, 0.0, 1.0],
        "gold class": [0, 1, 1],
        "predicted class": [0, 0, 1],
    },
}


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every value in nested objects."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield (*path, name)
        yield from places(inner, (*path, name))


DAMAGES: list[Any] = [None, "x", [], {}, True, -1, 0.5, 10**400, -(10**400), math.nan, math.inf]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_every_damage_is_named_or_harmless(tmp_path: Path, kind: str) -> None:
    sound = record("one", KINDS[kind], kind=kind)
    if kind == "classify":
        sound["scores"] |= {"macro F1": 0.5}
        sound["task"]["main_metric"] = "macro F1"
    first = write(tmp_path / "a", sound)
    compare_runs(first, first, draws=50)
    for path in places(sound):
        for damage in (*DAMAGES, "gone"):
            damaged = copy.deepcopy(sound)
            holder = damaged
            for name in path[:-1]:
                holder = holder[name]
            holder[path[-1]] = damage
            if damage == "gone":
                del holder[path[-1]]
            file = tmp_path / "b" / "one.json"
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(damaged))
            with contextlib.suppress(SbertSearchError):
                compare_runs(first, file, draws=50)
            with contextlib.suppress(SbertSearchError):
                compare_runs(file, file, draws=50)
            with contextlib.suppress(SbertSearchError):
                draw(read_evaluation(file))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    first = write(tmp_path / "a", record("one", {"MAP": [0.1, 0.2]}))
    with pytest.raises(EvaluationError, match=r"'recall@5' can be compared; .*: MAP\. Comp"):
        compare_runs(first, first, metrics=["recall@5"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(EvaluationError, match="holds no evaluation records"):
        compare_runs(first, tmp_path / "empty")
    pairs = record("sts", {"predicted": [0.1, 0.2, 0.3], "gold": [1, 2, 3]}, kind="sts")
    second = write(tmp_path / "sts", pairs)
    with pytest.raises(EvaluationError, match="'MAP' can be compared; it has those of: spearman"):
        compare_runs(second, second, metrics=["MAP"])
    own = record("tag", {"sentence right": [1.0, 0.0], **{name: [1, 2] for name in COUNTS}})
    own["scores"] = {"F1": 0.5, "tag accuracy": 0.5}
    own["task"]["main_metric"] = "F1"
    third = write(tmp_path / "tag", own)
    for metric in ("sentence right", "gold", "tag accuracy"):
        with pytest.raises(EvaluationError, match=f"'{metric}' can be .* it has those of: F1"):
            compare_runs(third, third, metrics=[metric])
