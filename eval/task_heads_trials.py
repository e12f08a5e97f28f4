"""The runs of `eval/task_heads.py`: tasks, variants of training, and the plan of all runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

SEEDS = 3
ALL = 0  # number of rows that stands for all of them


@dataclass(frozen=True, slots=True)
class Task:
    """A data set, and how it is trained on and measured.

    Attributes:
        kind: Kind of the recipe.
        recipe: Name of the shipped recipe.
        train: Training file in the data folder; a tenth of its rows, by hash, is dev data.
        tests: Test files, scored together once.
        metric: Dev and test metric.
        tokens: Tokens of an epoch of all training rows, in millions, to estimate the time.
        epochs: Passes over all training rows.
        dev: Dev file; "": a tenth of the training rows.
        published: Published value of MiniLM-L6-H384 (Wang et al. 2020, repository
            microsoft/unilm, minilm/README.md), times 100; None: there is none.
        note: Why the published value is not comparable; "": it is.
    """

    kind: Literal["classify", "tag", "qa"]
    recipe: str
    train: str
    tests: tuple[str, ...]
    metric: str
    tokens: float
    epochs: int
    dev: str = ""
    published: float | None = None
    note: str = ""


TASKS: Mapping[str, Task] = {
    "SST-2": Task(
        "classify",
        "sst2",
        "sst2/train.jsonl.gz",
        ("sst2/dev.jsonl.gz",),
        "accuracy",
        tokens=0.81,
        epochs=2,
        published=91.5,
    ),
    "CoLA": Task(
        "classify",
        "cola",
        "cola/train.jsonl.gz",
        ("cola/dev.jsonl.gz", "cola/dev_out_of_domain.jsonl.gz"),
        "matthews",
        tokens=0.09,
        epochs=5,
        published=47.5,
    ),
    "MRPC": Task(
        "classify",
        "mrpc",
        "mrpc/train.jsonl.gz",
        ("mrpc/test.jsonl.gz",),
        "accuracy",
        tokens=0.17,
        epochs=5,
        dev="mrpc/dev.jsonl.gz",
        published=88.9,
        note="another split than GLUE's, with its own test file",
    ),
    "RTE": Task(
        "classify",
        "rte",
        "rte/train.jsonl.gz",
        ("rte/dev.jsonl.gz",),
        "accuracy",
        tokens=0.16,
        epochs=6,
        published=68.8,
    ),
    "WNUT-17": Task(
        "tag",
        "wnut17",
        "wnut17/train.jsonl.gz",
        ("wnut17/test.jsonl.gz",),
        "f1",
        tokens=0.09,
        epochs=8,
        dev="wnut17/dev.jsonl.gz",
    ),
    "SQuAD": Task(
        "qa",
        "squad",
        "squad/dev_a.jsonl.gz",
        ("squad/xquad_en.jsonl.gz",),
        "f1",
        tokens=0.50,
        epochs=3,
        note="2,910 answerable questions to learn from; tested on XQuAD's other articles",
    ),
}

# Learning rate for a small encoder that this package pre-trained; see `OWN_RATE` in
# fine_tuning_trials.py.
OWN_RATE = "optim.lr=3e-4"
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "full": (),
    "head only": ("tune=head", "optim.lr=1e-3"),
    "linear probe": ("tune=probe", "optim.lr=1e-2"),
    "adversarial (SiFT)": ("adversarial.kind=sift",),
    "mean pooling": ("pooling=mean",),
    "random weights": ("random_weights=true",),
}
"""Settings by the name of a variant; each changes one factor of full tuning on the first token."""
_COSTS = {"head only": 0.2, "linear probe": 0.2, "adversarial (SiFT)": 3.0}  # of a step, as a share


@dataclass(frozen=True, slots=True)
class Run:
    """One training run.

    Attributes:
        task: Name of the task.
        model: "base", or "own", an encoder that this package pre-trained.
        variant: Name in `VARIANTS`.
        rows: Number of training rows; `ALL`: all of them.
        seed: Seed of the run.
    """

    task: str
    model: Literal["base", "own"]
    variant: str
    rows: int
    seed: int

    @property
    def name(self) -> str:
        """Name of the folder of this run."""
        plain = "".join(c if c.isalnum() else "-" for c in f"{self.task}-{self.variant}")
        return f"{plain}-{self.model}-{self.rows or 'all'}-{self.seed}".lower()

    def settings(self) -> list[str]:
        """Return the overrides of the recipe, besides the files and the model.

        With few rows, a run has as many steps as three passes over 3,000 rows, so that it is not
        too short to learn.
        """
        task = TASKS[self.task]
        settings = [f"seed={self.seed}", "checkpoint.keep=1"]
        if self.model == "own":
            settings.append(OWN_RATE)
        if self.rows and self.rows < FACTOR_ROWS:
            epochs = max(task.epochs, min(30, 9000 // self.rows))
            settings += [f"data.limit={self.rows}", f"budget.epochs={epochs}"]
        else:
            settings += [f"data.limit={self.rows}"] * bool(self.rows)
            settings.append(f"budget.epochs={task.epochs}")
        return [*settings, *VARIANTS[self.variant]]

    def cost(self, rows_of_task: int) -> float:
        """Estimate the tokens of this run, in millions, as if all steps were plain ones."""
        task = TASKS[self.task]
        epochs = next(float(s.split("=")[1]) for s in self.settings() if "epochs" in s)
        share = min(1.0, self.rows / rows_of_task) if self.rows else 1.0
        return task.tokens * share * epochs * _COSTS.get(self.variant, 1.0)


FACTOR_ROWS = 20_000  # rows of SST-2 in the comparison of factors
CURVE_ROWS = (100, 300, 1_000, 3_000, ALL)
FACTORS = ("head only", "linear probe", "adversarial (SiFT)", "mean pooling")


def plan(parts: tuple[str, ...]) -> list[Run]:
    """List the runs of some parts (table, factors, curve), one seed after the other."""
    runs = [run for seed in range(SEEDS) for part in parts for run in _PARTS[part](seed)]
    return list(dict.fromkeys(runs))


def table(seed: int) -> Iterator[Run]:
    """Yield full tuning of both models on each task; SQuAD with one seed."""
    for task in TASKS:
        if task != "SQuAD" or seed == 0:
            yield Run(task, "base", "full", ALL, seed)
            yield Run(task, "own", "full", ALL, seed)


def factors(seed: int) -> Iterator[Run]:
    """Yield each factor alone, on SST-2 and RTE."""
    for task, rows in (("SST-2", FACTOR_ROWS), ("RTE", ALL)):
        for variant in ("full", *FACTORS):
            yield Run(task, "base", variant, rows, seed)


def curve(seed: int) -> Iterator[Run]:
    """Yield runs on few rows, from pre-trained and from random weights of the same shape."""
    for task in ("SST-2", "MRPC"):
        for rows in CURVE_ROWS:
            yield Run(task, "own", "full", rows, seed)
            yield Run(task, "own", "random weights", rows, seed)


_PARTS = {"table": table, "factors": factors, "curve": curve}
PARTS = tuple(_PARTS)
