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
        shorter: Overrides for an encoder of 128 positions, which our own is, if the recipe's texts
            are longer.
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
    shorter: tuple[str, ...] = ()


TASKS: Mapping[str, Task] = {
    "SST-2": Task(
        "classify",
        "sst2",
        "sst2/train.jsonl.gz",
        ("sst2/dev.jsonl.gz",),
        "accuracy",
        tokens=0.80,
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
        epochs=4,
        published=47.5,
    ),
    "MRPC": Task(
        "classify",
        "mrpc",
        "mrpc/train.jsonl.gz",
        ("mrpc/test.jsonl.gz",),
        "accuracy",
        tokens=0.17,
        epochs=3,
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
        tokens=0.18,
        epochs=3,
        published=68.8,
        shorter=("max_len=128",),
    ),
    "WNUT-17": Task(
        "tag",
        "wnut17",
        "wnut17/train.jsonl.gz",
        ("wnut17/test.jsonl.gz",),
        "f1",
        tokens=0.09,
        epochs=6,
        dev="wnut17/dev.jsonl.gz",
    ),
    "SQuAD": Task(
        "qa",
        "squad",
        "squad/dev_a.jsonl.gz",
        ("squad/xquad_en.jsonl.gz",),
        "f1",
        tokens=0.50,
        epochs=2,
        note="2,910 answerable questions to learn from; tested on XQuAD's other articles",
        shorter=("max_len=128", "windows.overlap=48"),
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
# Cost of a variant, as a share of that of full tuning.
_COSTS = {"head only": 0.2, "linear probe": 0.2, "adversarial (SiFT)": 3.0}


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

    @property
    def epochs(self) -> int:
        """Passes over the training rows; more of them over few rows."""
        return _FEW_EPOCHS.get(self.rows, TASKS[self.task].epochs)

    def settings(self) -> list[str]:
        """Return the overrides of the recipe, besides the files and the model.

        With few rows the last model is taken. To choose an epoch on the dev data of the task would
        use more labelled rows than the run has.
        """
        settings = [f"seed={self.seed}", "checkpoint.keep=1", f"budget.epochs={self.epochs}"]
        # Fixed, so that runs on different CPUs have the same precision unless a call sets it.
        settings.append("precision=fp32")
        if self.model == "own":
            settings += [OWN_RATE, *TASKS[self.task].shorter]
        if self.rows:
            settings.append(f"data.limit={self.rows}")
        if self.rows in _FEW_EPOCHS:
            settings.append(f"evaluation.every={_NEVER}")
        return [*settings, *VARIANTS[self.variant]]

    def cost(self, rows_of_task: int) -> float:
        """Estimate the tokens of this run, in millions, as if all were tokens of training steps.

        A forward pass over dev data counts a third.
        """
        task = TASKS[self.task]
        share = min(1.0, self.rows / rows_of_task) if self.rows else 1.0
        trained = task.tokens * share * self.epochs * _COSTS.get(self.variant, 1.0)
        evaluations = 2 if self.rows in _FEW_EPOCHS else 1 + self.epochs
        return trained + evaluations * _DEV_SHARE * task.tokens / 3


_FEW_EPOCHS = {100: 20, 300: 10, 1_000: 4, 3_000: 3}  # epochs by number of rows
_NEVER = 10**9  # steps between evaluations that are more than any run has
_DEV_SHARE = 0.1  # rows of dev data as a share of the training rows, about
FACTOR_ROWS = 20_000  # rows of SST-2 in the comparison of factors
CURVE_ROWS = (100, 300, 1_000, 3_000, ALL)
CURVE_TASKS = ("MRPC", "SST-2")
FACTORS = ("head only", "linear probe", "adversarial (SiFT)", "mean pooling")


def plan(parts: tuple[str, ...]) -> list[Run]:
    """List the runs of some parts, one part and one seed after the other, short tasks first."""
    runs = [run for part in parts for seed in range(SEEDS) for run in _PARTS[part](seed)]
    return list(dict.fromkeys(runs))


def table(seed: int) -> Iterator[Run]:
    """Yield full tuning of the published model on each task."""
    return _full("base", seed)


def own(seed: int) -> Iterator[Run]:
    """Yield full tuning of the encoder of our own pre-training on each task."""
    return _full("own", seed)


def _full(model: Literal["base", "own"], seed: int) -> Iterator[Run]:
    """Yield full tuning on each task; SQuAD with one seed."""
    for name, task in sorted(TASKS.items(), key=lambda item: item[1].tokens * item[1].epochs):
        if task.kind != "qa" or seed == 0:
            yield Run(name, model, "full", ALL, seed)


def factors(seed: int) -> Iterator[Run]:
    """Yield each factor alone, on SST-2 and RTE, with one seed."""
    for task, rows in (("RTE", ALL), ("SST-2", FACTOR_ROWS)):
        for variant in ("full", *FACTORS):
            if seed == 0:
                yield Run(task, "base", variant, rows, seed)


def curve(seed: int) -> Iterator[Run]:
    """Yield runs on few rows, from pre-trained and from random weights of the same shape.

    All rows from random weights have one seed.
    """
    for task in CURVE_TASKS:
        for rows in CURVE_ROWS:
            yield Run(task, "base", "full", rows, seed)
            if rows or seed == 0:
                yield Run(task, "base", "random weights", rows, seed)


_PARTS = {"table": table, "factors": factors, "curve": curve, "own": own}
PARTS = tuple(_PARTS)
