"""The result of one evaluation, and its manifest: data, model, settings, code and machine."""

from __future__ import annotations

import json
import reprlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict, TypeGuard, cast

from sbert_search.base.machine import Code, Machine, code, library_versions, machine
from sbert_search.config import is_integer, to_mapping
from sbert_search.errors import EvaluationError
from sbert_search.evaluate.metrics.classification import (
    CLASSES,
    average_precision_interval,
    interval_of_sums,
    summed,
)
from sbert_search.evaluate.metrics.significance import (
    Correlation,
    correlation_interval,
    mean_interval,
)
from sbert_search.evaluate.tasks import KINDS, EvalTask, Kind, check_files
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.records import Run

FORMAT = 1
ALIKE = "queries whose documents all have one score"  # a count of an evaluation of retrieval


class Manifest(TypedDict):
    """Everything that the scores of an evaluation depend on, and its running times."""

    data_sha256: dict[str, str]  # by file
    model: dict[str, object]
    settings: dict[str, object]
    seed: int  # of the interval of the main metric
    code: Code
    libraries: dict[str, str]
    machine: Machine
    started: str
    seconds: dict[str, float]  # of each part of the evaluation


class TaskRecord(TypedDict):
    """The fields of an `EvalTask` that readers of a record use; the JSON has all fields."""

    name: str
    kind: Kind
    split: str
    main_metric: str


class EvaluationRecord(TypedDict):
    """The JSON object that `Evaluation.to_json` writes."""

    format: int
    task: TaskRecord
    scores: dict[str, float]
    interval: tuple[float, float] | None
    counts: dict[str, int]
    manifest: Manifest
    per_item: dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The scores of one model on one task; the task's main metric must be among them.

    ``per_item[metric][item]`` is the value of one query, pair, triplet or text. If a metric has no
    value for one item, the values from which it is computed are stored under other names, such as
    the predicted and the gold score of each pair for a correlation.
    """

    task: EvalTask
    scores: Mapping[str, float]
    per_item: Mapping[str, Mapping[str, float]] = field(repr=False)
    counts: Mapping[str, int]  # of queries, documents, skipped pairs and so on
    manifest: Manifest = field(repr=False)
    # score of each document found, by query; None: no retrieval, no reranking
    run: Run | None = field(default=None, repr=False)
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the queries, by id

    def __post_init__(self) -> None:
        if self.task.main_metric not in self.scores:
            raise EvaluationError(
                f"{self.task.name}: {self.task.main_metric!r} is no metric of this task and model. "
                f"Set main_metric to one of: {', '.join(self.scores)}."
            )

    @property
    def main_score(self) -> float:
        """Value of the task's main metric."""
        return self.scores[self.task.main_metric]

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the main metric; None if it is no mean and no function of sums.

        None, too, if the interval would have the width 0: items that are all alike do not show how
        much the metric varies.
        """
        return self._interval(self.task.main_metric)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % interval of each metric that has one, also of correlations; see `interval`."""
        found = {
            metric: self._interval(metric) or self._resampled(metric) for metric in self.scores
        }
        return {metric: ends for metric, ends in found.items() if ends is not None}

    def __str__(self) -> str:
        """Show the metrics, the main one first, with their intervals, and the number of items."""
        intervals, units = self.intervals, KINDS[self.task.kind].units
        names = dict.fromkeys((self.task.main_metric, *self.scores))
        shown = [
            f"{name} {self.scores[name]:.3f}"
            + (" ({:.3f} to {:.3f})".format(*intervals[name]) if name in intervals else "")
            for name in names
        ]
        return f"{', '.join(shown)}; {self.counts[units]:,} {units}"

    def _interval(self, metric: str) -> tuple[float, float] | None:
        seed = self.manifest["seed"]
        if values := self.per_item.get(metric):
            low, high = mean_interval([*values.values()], within=(0, 1), seed=seed)
        elif sums := summed(metric, self.per_item):
            low, high = interval_of_sums(*sums, seed=seed)
        else:
            return None
        return (low, high) if low < high else None

    def _resampled(self, metric: str) -> tuple[float, float] | None:
        """Return the interval of a metric of predicted and gold scores."""
        name = "predicted score" if metric == "AP" else "predicted"
        if name not in self.per_item or "gold" not in self.per_item:
            return None
        predicted, gold = ([*self.per_item[each].values()] for each in (name, "gold"))
        if metric == "AP":
            return average_precision_interval(predicted, gold, seed=self.manifest["seed"])
        if metric not in ("spearman", "pearson"):
            return None
        kind = cast(Correlation, metric)
        return correlation_interval(predicted, gold, kind=kind, seed=self.manifest["seed"])

    def record(self) -> EvaluationRecord:
        """Return the evaluation without ``run`` and ``texts``, as `to_json` writes it."""
        return {
            "format": FORMAT,
            "task": cast(TaskRecord, to_mapping(self.task)),
            "scores": dict(self.scores),
            "interval": self.interval,
            "counts": dict(self.counts),
            "manifest": self.manifest,
            "per_item": {metric: dict(values) for metric, values in self.per_item.items()},
        }

    def to_json(self) -> str:
        """Return the `record` as JSON, one item per line, with exact floats."""
        return json.dumps(self.record(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


class EvaluationTracker:
    """Hashes the files of a task at the start, and measures the time of each part of the work.

    ``files`` None: the files that the task names, below the folder ``data``.
    """

    def __init__(
        self, task: EvalTask, data: Path, *, seed: int, files: Sequence[Path] | None = None
    ) -> None:
        self._task, self._seed = task, seed
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._seconds: dict[str, float] = {}
        self._last = time.perf_counter()
        self.files = [data / path for path in (task.path, *task.more)] if files is None else files
        self._hashes = check_files(task, data, self.files)

    def lap(self, part: str) -> None:
        """Record the time since the last call, or since the start, under the name of a part."""
        now = time.perf_counter()
        self._seconds[part] = round(now - self._last, 3)
        self._last = now

    def finish(
        self,
        model: ModelIdentity | str,
        *,
        scores: Mapping[str, float],
        per_item: Mapping[str, Mapping[str, float]],
        counts: Mapping[str, int],
        settings: Mapping[str, object] | None = None,
        run: Run | None = None,
    ) -> Evaluation:
        """Return the evaluation; of the model's name, only the part after the last slash.

        ``model`` is a name if only the results of a system are known, such as its run file.
        """
        known = {} if isinstance(model, str) else model.to_mapping()
        name = model if isinstance(model, str) else model.name
        manifest: Manifest = {
            "data_sha256": self._hashes,
            "model": known | {"name": Path(name).name},
            "settings": dict(settings or {}),
            "seed": self._seed,
            "code": code(),
            "libraries": library_versions(),
            "machine": machine(),
            "started": self._started,
            "seconds": self._seconds,
        }
        return Evaluation(
            task=self._task,
            scores=scores,
            per_item=per_item,
            counts=counts,
            manifest=manifest,
            run=run,
        )


def read_evaluation(path: Path) -> EvaluationRecord:
    """Read a record that `Evaluation.to_json` wrote; check what a comparison needs."""
    try:
        record: EvaluationRecord = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EvaluationError(
            f"{path} is not an evaluation record: {error}. Rankings in TREC's format are compared "
            "by `eval run`, in Python by `evaluate_run`."
        ) from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise EvaluationError(f"{path} is not an evaluation record of format {FORMAT}.")
    if wrong := next(_wrong_parts(record), None):
        raise EvaluationError(f"{path} is damaged: {wrong}; run the evaluation again.")
    return record


def _wrong_parts(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each field of a record that is missing or has a wrong type."""
    for name in ("task", "scores", "counts", "manifest", "per_item"):
        if not isinstance(record.get(name), Mapping):
            yield f"{name} is no JSON object"
            return
    task, manifest = record["task"], record["manifest"]
    for name in ("data_sha256", "model", "settings", "code"):
        if not isinstance(manifest.get(name), Mapping):
            yield f"manifest.{name} is no JSON object"
            return
    for name in TaskRecord.__annotations__:
        if not isinstance(task.get(name), str):
            yield f"task.{name} is no text"
    if not all(isinstance(each, str) for each in manifest["data_sha256"].values()):
        yield "a hash in manifest.data_sha256 is no text"
    if not is_integer(manifest.get("seed")):
        yield "manifest.seed is no integer"
    yield from _wrong_scores(record)


def _wrong_scores(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each count and score that is no number, and for values that lack."""
    scores, per_item = record["scores"], record["per_item"]
    yield from (
        f"counts.{n} is no integer" for n, v in record["counts"].items() if not is_integer(v)
    )
    yield from (f"scores.{n} is no finite number" for n, v in scores.items() if not _is_finite(v))
    main_metric = record["task"].get("main_metric")
    if main_metric not in scores:
        yield f"scores has no {main_metric!r}, the main metric"
    needed = ("predicted", "gold") if main_metric in ("spearman", "pearson") else ()
    if not per_item or not all(name in per_item for name in needed):
        yield f"per_item lacks {' or '.join(needed) or 'all metrics'}"
    yield from _wrong_items(per_item)


def _wrong_items(per_item: Mapping[str, object]) -> Iterator[str]:
    """Yield a message for each value of an item that is no finite number, or is missing."""
    items: Mapping[str, object] | None = None
    for metric, values in per_item.items():
        if not isinstance(values, Mapping):
            yield f"per_item.{metric} is no JSON object"
            return
        items = values if items is None else items
        if other := sorted(values.keys() ^ items.keys()):
            yield f"only some metrics have a value of item {other[0]!r}"
        for item, value in values.items():
            if not _is_finite(value):
                shown = reprlib.repr(value)
                yield f"{metric} of item {item!r} is {shown}, which is no finite number"
            elif metric in CLASSES and (value < 0 or value != int(value)):
                yield f"{metric} of item {item!r} is {value!r}, which is no number of a class"


def _is_finite(value: object) -> TypeGuard[float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # False for NaN; a long integer fits no float
