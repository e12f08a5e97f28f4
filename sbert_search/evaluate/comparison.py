"""Compare the scores of two runs on the same tasks, or of one run with expected scores.

A run is an evaluation of one model on one or more tasks. An item is a query, a pair of texts or a
triplet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.config import from_mapping, read_toml
from sbert_search.errors import EvaluationError, SbertSearchError
from sbert_search.evaluate.manifest import Evaluation, EvaluationRecord, read_evaluation
from sbert_search.evaluate.metrics.classification import CLASSES, class_count, compare_sums, summed
from sbert_search.evaluate.metrics.correlation import ranks
from sbert_search.evaluate.metrics.significance import (
    DRAWS,
    Correlation,
    Difference,
    compare_correlations,
    compare_means,
    holm,
)
from sbert_search.models.loading.identity import sha256_of
from sbert_search.text.labelled.pairs import read_triplets
from sbert_search.text.labelled.retrieval import collection_of_pairs, queries_file, read_queries

ALPHA = 0.05
FEW = 50  # items; fewer show large differences only
CORRELATIONS: tuple[Correlation, ...] = ("spearman", "pearson")
# Counts that must be equal in both runs.
_COUNTED = ("queries", "judgements", "documents", "pairs", "texts", "sentences", "questions")


@dataclass(frozen=True, slots=True)
class ItemChange:
    """One item in both runs; a positive ``gain`` is an improvement.

    ``first`` and ``second`` are values of the metric. For a correlation, they are the absolute
    difference between the predicted and the gold rank of the pair, divided by the number of pairs
    (lower is better). For a metric of sums over all items, such as F1, they are those of another
    metric, such as accuracy.
    """

    item: str  # id of a query, or index of a pair or triplet in its file
    first: float
    second: float
    gain: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of one task in both runs."""

    task: str
    metric: str
    first: float
    second: float
    difference: Difference  # second minus first
    corrected: float  # the p-value, corrected for the number of comparisons (Holm)
    changes: Sequence[ItemChange] = field(repr=False)  # all items, by descending gain
    # properties of the model, settings, commit and seed that differ: both values, by name
    differs: Mapping[str, tuple[object, object]]

    @property
    def verdict(self) -> str:
        """The conclusion at a significance level of 5 %."""
        if self.corrected >= ALPHA:
            return "no difference shown"
        return "second is better" if self.difference.value > 0 else "second is worse"

    @property
    def conclusion(self) -> str:
        """The verdict and, if no difference is shown of few items, that these may hide one."""
        if self.corrected < ALPHA or (n := len(self.changes)) >= FEW:
            return self.verdict
        return f"{self.verdict} (only {n} compared; fewer than {FEW} show large differences only)"

    def __str__(self) -> str:
        """Show both values, the difference with its interval, and the conclusion."""
        change = self.difference
        return (
            f"{self.metric}: {self.first:.3f} and {self.second:.3f}, difference "
            f"{change.value:+.3f} ({change.low:+.3f} to {change.high:+.3f}), "
            f"p = {self.corrected:.4f}: {self.conclusion}"
        )

    @property
    def wins(self) -> list[ItemChange]:
        """Items on which the second run is better, by descending gain."""
        return [change for change in self.changes if change.gain > 0]

    @property
    def losses(self) -> list[ItemChange]:
        """Items on which the second run is worse, by descending loss."""
        return [change for change in reversed(self.changes) if change.gain < 0]


def compare(
    first: Evaluation,
    second: Evaluation,
    *,
    metric: str | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """Compare two evaluations on the same data: is the second system better than the first?

    Both systems answered the same queries (or pairs), so the differences of the single queries are
    tested. The p-value is that of a randomisation test, and the interval of the difference comes
    from a bootstrap.

    Args:
        first: An evaluation of `evaluate` or `evaluate_run`.
        second: Another one, of the same data.
        metric: The metric; None: the main metric of the first evaluation.
        draws: Resamples of the bootstrap, and permutations of the test.
        seed: Seed of both.

    Raises:
        EvaluationError: The evaluations are of other data, or have no values of each item for the
            metric.

    Example:
        >>> rows = [{"query": "mill", "positive": "A mill"}, {"query": "rye", "positive": "Rye"}]
        >>> words = evaluate("hashing", rows)
        >>> compare(words, words).difference.value
        0.0

    Source: Smucker, Allan & Carterette 2007, A comparison of statistical significance tests for
    information retrieval evaluation.
    """
    records = first.record(), second.record()
    if reasons := list(_why_not_comparable(*records)):
        raise EvaluationError(f"The evaluations cannot be compared: {'; '.join(reasons)}.")
    named = metric or first.task.main_metric
    return _compare_metric(first.task.name, *records, named, draws, seed)


def compare_runs(
    first: Path, second: Path, *, metrics: Sequence[str] = (), draws: int = DRAWS, seed: int = 0
) -> list[Comparison]:
    """Compare two runs on all their tasks, by their main metrics if none is named.

    Each path is a record that an evaluation wrote, or a folder of records. ``draws`` is the number
    of resamples for each interval and of permutations for each test.
    """
    return corrected_together(
        [
            _compare_metric(task, a, b, metric, draws, seed)
            for task, (a, b) in _pair_records(read_runs(first), read_runs(second)).items()
            for metric in dict.fromkeys(metrics or (a["task"]["main_metric"],))
        ]
    )


def query_texts(run: Path) -> dict[str, dict[str, str]]:
    """Return the texts of queries by task and id, where their file is still what the run read."""
    found = {}
    for name, record in read_runs(run).items():
        path = Path(str({**record["task"]}.get("path")))
        if record["task"]["kind"] != "retrieval" or not path.exists():
            continue
        with suppress(SbertSearchError):  # of a run file, only the judgements are known
            if sha256_of(queries_file(path)) in record["manifest"]["data_sha256"].values():
                encoding = str(record["manifest"]["settings"].get("encoding", "utf-8"))
                if path.is_dir():
                    queries = read_queries(path, encoding=encoding)
                else:
                    pairs = read_triplets(path, allow_pairs=True, encoding=encoding)
                    _, queries, _ = collection_of_pairs(pairs)
                found[name] = {query.query_id: query.text for query in queries}
    return found


def corrected_together(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Correct the p-values of comparisons for their number (Holm)."""
    corrected = holm([each.difference.p_value for each in comparisons])
    pairs = zip(comparisons, corrected, strict=True)
    return [replace(each, corrected=p_value) for each, p_value in pairs]


def read_runs(path: Path) -> dict[str, EvaluationRecord]:
    """Read one record, or all records of a folder, by task name."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise EvaluationError(f"{path} holds no evaluation records; `eval ... --out` writes them.")
    found: dict[str, EvaluationRecord] = {}
    of_task: dict[str, Path] = {}
    for file in files:
        record = read_evaluation(file)
        task = record["task"]["name"]
        if task in of_task:
            raise EvaluationError(
                f"{of_task[task]} and {file} are records of the same task, {task}; remove one."
            )
        found[task], of_task[task] = record, file
    return found


def _pair_records(
    first: Mapping[str, EvaluationRecord], second: Mapping[str, EvaluationRecord]
) -> dict[str, tuple[EvaluationRecord, EvaluationRecord]]:
    if unshared := sorted(first.keys() ^ second.keys()):
        raise EvaluationError(
            f"Only one of the two runs has {', '.join(unshared)}; compare runs of the same tasks, "
            "or name one record file of each run."
        )
    for task, record in first.items():
        if reasons := list(_why_not_comparable(record, second[task])):
            raise EvaluationError(f"{task}: the runs cannot be compared: {'; '.join(reasons)}.")
    return {task: (record, second[task]) for task, record in first.items()}


def _why_not_comparable(first: EvaluationRecord, second: EvaluationRecord) -> Iterator[str]:
    """Yield a message for each difference of two runs in kind, split, data, counts or items."""
    tasks = first["task"], second["task"]
    if tasks[0]["kind"] != tasks[1]["kind"]:
        yield f"kind {tasks[0]['kind']} and {tasks[1]['kind']}"
    if tasks[0]["split"] != tasks[1]["split"]:
        yield f"split {tasks[0]['split']} and {tasks[1]['split']}"
    hashes = [_hashes_by_name(record["manifest"]["data_sha256"]) for record in (first, second)]
    for name in sorted(hashes[0].keys() | hashes[1].keys()):
        if hashes[0].get(name) != hashes[1].get(name):
            shown = [
                ", ".join(sha256[:12] for sha256 in by_name.get(name, ["absent"]))
                for by_name in hashes
            ]
            yield f"{name} has sha256 {shown[0]} and {shown[1]}"
    yield from _other_items(first, second)
    counts = first["counts"], second["counts"]
    for name in _COUNTED:
        if counts[0].get(name) != counts[1].get(name):
            yield f"{counts[0].get(name)} and {counts[1].get(name)} {name}"
    items = [set(next(iter(record["per_item"].values()), ())) for record in (first, second)]
    if unshared := sorted(items[0] ^ items[1]):
        yield f"{len(unshared)} items are in only one of the runs, the first is {unshared[0]!r}"


def _other_items(first: EvaluationRecord, second: EvaluationRecord) -> Iterator[str]:
    """Yield reasons why items with the same name in both runs are not the same items."""
    orders = [list(record["manifest"]["data_sha256"].values()) for record in (first, second)]
    numbered = first["task"]["kind"] in ("classify", "tag")  # items are numbered through all files
    if numbered and sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]:
        yield "their data files are in different orders, so that equal numbers are other items"
    if first["per_item"].get("gold") != second["per_item"].get("gold"):
        yield "their gold scores differ, for example because they come from different columns"


def _hashes_by_name(data_sha256: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the sorted hashes of the files, by file name; names of folders are ignored."""
    found: dict[str, list[str]] = {}
    for path, sha256 in sorted(data_sha256.items(), key=lambda item: item[1]):
        found.setdefault(Path(path).name, []).append(sha256)
    return found


def _compare_metric(
    task: str, first: EvaluationRecord, second: EvaluationRecord, metric: str, draws: int, seed: int
) -> Comparison:
    """Compare two runs by a metric; the p-value is not corrected yet."""
    for record in (first, second):
        if metric not in (known := _comparable(record)):
            raise EvaluationError(
                f"{task}: a record has no values from which {metric!r} can be compared; it has "
                f"those of: {', '.join(known)}. Compare one of these metrics."
            )
    if metric in CORRELATIONS:
        difference, changes = _compare_correlation(first, second, metric, draws, seed)
    elif metric in first["per_item"]:
        items, x, y = _values(first, second, metric)
        difference = compare_means(x, y, draws=draws, seed=seed)
        changes = _changes(items, x, y, y - x)
    else:
        difference, changes = _compare_function_of_sums(first, second, metric, draws, seed)
    a, b = (float(record["scores"][metric]) for record in (first, second))
    differs = _differing_settings(first, second)
    return Comparison(task, metric, a, b, difference, difference.p_value, changes, differs)


def _values(
    first: EvaluationRecord, second: EvaluationRecord, metric: str
) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64]]:
    """Return the items and their values of a metric in both runs, (n,) each."""
    a, b = (record["per_item"][metric] for record in (first, second))
    items = list(a)
    x, y = (np.array([values[item] for item in items]) for values in (a, b))
    return items, x, y


def _comparable(record: EvaluationRecord) -> list[str]:
    items = record["per_item"]
    return [
        metric
        for metric in record["scores"]
        if metric in items
        or (metric in CORRELATIONS and "predicted" in items and "gold" in items)
        or summed(metric, items) is not None
    ]


def _compare_correlation(
    first: EvaluationRecord, second: EvaluationRecord, metric: str, draws: int, seed: int
) -> tuple[Difference, list[ItemChange]]:
    kind: Correlation = "pearson" if metric == "pearson" else "spearman"
    scores = (
        first["per_item"]["predicted"],
        second["per_item"]["predicted"],
        first["per_item"]["gold"],
    )
    items = list(scores[2])
    a, b, gold = (np.array([values[item] for item in items]) for values in scores)
    difference = compare_correlations(a, b, gold, kind=kind, draws=draws, seed=seed)
    x, y = (np.abs(ranks(predicted) - ranks(gold)) / len(items) for predicted in (a, b))
    return difference, _changes(items, x, y, x - y)


def _compare_function_of_sums(
    first: EvaluationRecord, second: EvaluationRecord, metric: str, draws: int, seed: int
) -> tuple[Difference, list[ItemChange]]:
    """Compare a metric that is a function of sums over items, such as F1.

    Such a metric has no value for one item. The changes therefore show the first metric in the
    records that has one, such as accuracy.
    """
    shown = next(name for name in first["per_item"] if name in second["per_item"])
    items = list(first["per_item"][shown])
    records = [
        {name: {item: values[item] for item in items} for name, values in record.items()}
        for record in (first["per_item"], second["per_item"])
    ]
    n_classes = None
    if all(CLASSES[0] in own for own in records):
        if records[0][CLASSES[0]] != records[1][CLASSES[0]]:
            raise EvaluationError(
                f"The runs cannot be compared by {metric}: the classes of the items have different "
                "numbers. Evaluate both models again, compare models of the same classes, or "
                "choose another metric."
            )
        n_classes = class_count(*records)
    sums = [summed(metric, own, n_classes) for own in records]
    assert sums[0] is not None
    assert sums[1] is not None
    difference = compare_sums(sums[0][0], sums[1][0], sums[0][1], draws=draws, seed=seed)
    items, x, y = _values(first, second, shown)
    return difference, _changes(items, x, y, y - x)


def _changes(
    items: Sequence[str],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    gains: NDArray[np.float64],
) -> list[ItemChange]:
    gains = np.where(np.abs(gains) < 1e-12, 0.0, gains)  # a rounding error is no win and no loss
    columns = (first.tolist(), second.tolist(), gains.tolist())
    changes = [ItemChange(*row) for row in zip(items, *columns, strict=True)]
    return sorted(changes, key=lambda change: -change.gain)


def _differing_settings(
    first: EvaluationRecord, second: EvaluationRecord
) -> dict[str, tuple[object, object]]:
    a, b = (
        {
            **manifest["model"],
            **manifest["settings"],
            "commit": manifest["code"].get("commit"),
            "seed": manifest["seed"],
        }
        for manifest in (first["manifest"], second["manifest"])
    )
    values = {name: (a.get(name), b.get(name)) for name in {**a, **b}}
    return {name: both for name, both in values.items() if both[0] != both[1]}


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedScore:
    """The expected main metric of one task."""

    value: float
    tolerance: float  # maximum accepted distance from the expected score
    published: float | None = None  # the published score of the same weights; None if there is none
    source: str = ""  # publication of the published score


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedScores:
    """Expected scores of one set of weights, by task name."""

    model: str
    weights_sha256: str
    scores: Mapping[str, ExpectedScore]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The score of a task, and the score that was expected."""

    task: str
    metric: str
    score: float
    expected: ExpectedScore

    @property
    def ok(self) -> bool:
        """Whether the score lies within the tolerance."""
        return abs(self.score - self.expected.value) <= self.expected.tolerance

    def __str__(self) -> str:
        expected = f"{self.expected.value:.4f} ± {self.expected.tolerance:.4f}"
        verdict = "OK" if self.ok else "FAIL"
        return f"{verdict:<4} {self.task} {self.metric} {self.score:.4f}, expected {expected}"


def load_expected(path: Path) -> ExpectedScores:
    """Read a file of expected scores."""
    return from_mapping(ExpectedScores, read_toml(path))


def judge(evaluation: Evaluation, expected: ExpectedScores) -> Verdict:
    """Compare an evaluation with the expected score of its model."""
    task, weights = evaluation.task, str(evaluation.manifest["model"]["weights_sha256"])
    if weights != expected.weights_sha256:
        raise EvaluationError(
            f"The expected scores are of {expected.model} with weights sha256 "
            f"{expected.weights_sha256[:12]}…; the model evaluated has {weights[:12]}…"
        )
    if task.name not in expected.scores:
        known = ", ".join(sorted(expected.scores))
        raise EvaluationError(
            f"There is no expected score of the task {task.name}; known tasks: {known}."
        )
    return Verdict(task.name, task.main_metric, evaluation.main_score, expected.scores[task.name])
