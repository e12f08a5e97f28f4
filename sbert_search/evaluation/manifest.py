"""The result of one evaluation and the manifest that says what it was made with."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sbert_search.config import to_mapping
from sbert_search.errors import EvaluationError
from sbert_search.evaluation.tasks import EvalTask
from sbert_search.metrics.significance import mean_interval
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.records import Run
from sbert_search.runtime.provenance import code, library_versions, machine

FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What one model reached on one task.

    Attributes:
        task: What was evaluated.
        scores: Value of each measure, main metric included.
        per_item: ``per_item[measure][item]``: of each query in retrieval; in STS what is predicted
            and the gold score of each pair, by its place in the file.
        counts: How many of what was seen: queries, documents, pairs left out.
        manifest: What the scores were made with.
        run: The hits of a retrieval task.
    """

    task: EvalTask
    scores: Mapping[str, float]
    per_item: Mapping[str, Mapping[str, float]]
    counts: Mapping[str, int]
    manifest: Mapping[str, Any]
    run: Run | None = None

    @property
    def main_score(self) -> float:
        """Value of the task's main metric."""
        return self.scores[self.task.main_metric]

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of 95 % of the main metric, where it is a mean over items, each from 0 to 1."""
        values = self.per_item.get(self.task.main_metric)
        return mean_interval([*values.values()], within=(0, 1)) if values else None

    def to_json(self) -> str:
        """Write everything but the run, items one a line, floats so that they read back equal."""
        record = {
            "format": FORMAT,
            "task": to_mapping(self.task),
            "scores": self.scores,
            "interval": self.interval,
            "counts": self.counts,
            "manifest": self.manifest,
            "per_item": self.per_item,
        }
        return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(slots=True)
class Stopwatch:
    """Seconds spent in the named parts of a run, from when it was made."""

    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, part: str) -> None:
        """Book the time since the last lap under a name."""
        now = time.perf_counter()
        self.seconds[part] = round(now - self._last, 3)
        self._last = now


def make_manifest(
    *,
    data: Mapping[str, str],
    model: ModelIdentity,
    settings: Mapping[str, Any],
    seed: int,
    clock: Stopwatch,
) -> dict[str, Any]:
    """Gather what a score depends on, and what it took.

    Args:
        data: sha256 of each data file.
        model: Identity by content of what was evaluated; of a folder only the last name is kept.
        settings: Choices that change the score, such as the index and the number of hits.
        seed: Seed of the run.
        clock: When it began and the seconds of its parts.
    """
    return {
        "data_sha256": dict(data),
        "model": model.to_mapping() | {"name": Path(model.name).name},
        "settings": dict(settings),
        "seed": seed,
        "code": code(),
        "libraries": library_versions(),
        "machine": machine(),
        "started": clock.started,
        "seconds": clock.seconds,
    }


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read back what `Evaluation.to_json` wrote.

    Raises:
        EvaluationError: The file is absent or is no such record.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path} is no evaluation record: {error}.") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise EvaluationError(f"{path} is no evaluation record of format {FORMAT}.")
    return record
