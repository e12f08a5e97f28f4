"""Expected scores of a model and their tolerances, read from a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sbert_search.config import from_mapping, read_toml
from sbert_search.errors import EvaluationError
from sbert_search.evaluation.manifest import Evaluation


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedScore:
    """The expected main metric of one task.

    Attributes:
        value: The expected score.
        tolerance: Maximum accepted distance from the expected score.
        published: The published score of the same weights; None if there is none.
        source: Publication of the published score.
    """

    value: float
    tolerance: float
    published: float | None = None
    source: str = ""


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
    """Read a file of expected scores.

    Raises:
        ConfigError: The file cannot be read, or a field is unknown, missing or invalid.
    """
    return from_mapping(ExpectedScores, read_toml(path))


def judge(evaluation: Evaluation, expected: ExpectedScores) -> Verdict:
    """Compare an evaluation with the expected score of its model.

    Raises:
        EvaluationError: The expected scores are of other weights, or do not include the task.
    """
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
