"""The experiments of `eval/fine_tuning.py`: their trials, seeds and tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

STS = ("sts12-no-msrvid", "sts13", "sts14", "sts15", "stsb", "sick-dev")
NLI = ("snli/train_subset_18k", "snli/train_subset_2k", "mnli/train_subset", "cad-nli/train")
STSB = ("data.train=@/stsb/train.jsonl.gz", "data.dev=@/stsb/dev.jsonl.gz", "precision=bf16")
STSB_PAIRS = 5749
FEW_PAIRS = "data.limit=1250"  # pairs of each of the four files of NLI
SHORT = ("budget.epochs=2", "optim.lr=5e-5")
COMMON = ("checkpoint.keep=1", "batching.size=32")  # settings that most trials share
# Learning rate for a small encoder that this package pre-trained. Measured for an encoder of 4
# layers of width 256, as Spearman on STSb dev: the recipe stsb reaches 67.8 with this rate and 51.6
# with 2e-5; the recipe mnrl-nli reaches 63.2 with this rate and 54.3 with 2e-5.
OWN_RATE = "optim.lr=3e-4"


@dataclass(frozen=True, slots=True)
class Trial:
    """A recipe with settings. A trial without a recipe measures a model without training it.

    Attributes:
        name: Name of the trial in reports.
        recipe: Name of a shipped recipe. None: no training.
        settings: Overrides of the recipe; ``@`` stands for the data folder.
        kind: Kind of model that is trained.
        fresh: Start from random weights of the model's shape instead of its own weights.
        after: Another trial, from whose model with seed 0 this trial starts.
        labelled_by: Another trial, whose bi-encoder (seed 0) scores the pairs of NLI. This trial
            then trains on these pairs and scores.
    """

    name: str
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    kind: Literal["bi-encoder", "cross-encoder"] = "bi-encoder"
    fresh: bool = False
    after: Trial | None = None
    labelled_by: Trial | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """Trials of one question.

    Attributes:
        question: Title of the report.
        trials: Trials to compare.
        seeds: Runs of each trial.
        tasks: Names of STS tasks, or ``triplets``.
        choose: Whether only the trial with the best dev metric of seed 0, and the model before
            training, are scored on the tasks.
        published: Published values by trial, on the first task, times 100.
        against: For each trial, the trial that the paper compares it with.
    """

    question: str
    trials: tuple[Trial, ...]
    seeds: int
    tasks: tuple[str, ...]
    choose: bool = False
    published: Mapping[str, float] = field(default_factory=dict)
    against: Mapping[str, str] = field(default_factory=dict)


BEFORE = Trial("before")

# Spearman on STSb dev: Reimers & Gurevych 2019, Sentence-BERT, table 6 (arXiv:1908.10084).
POOLING = {
    **{"mean, nli": 80.78, "max, nli": 79.07, "cls, nli": 79.80},
    **{"mean, stsb": 87.44, "max, stsb": 69.92, "cls, stsb": 86.62},
}
CONCATENATION = {
    **{"(u, v, |u-v|)": 80.78, "(u, v)": 66.04, "(|u-v|)": 69.78, "(u*v)": 70.54},
    **{"(|u-v|, u*v)": 78.37, "(u, v, u*v)": 77.44, "(u, v, |u-v|, u*v)": 80.44},
}
DEFAULT = "(u, v, |u-v|)"


def _nli_pairs() -> str:
    files = ", ".join(f'"@/{name}.jsonl.gz"' for name in NLI)
    return f"data.train=[{files}]"


def _nli(*settings: str) -> tuple[str, ...]:
    return (_nli_pairs(), "data.dev=@/stsb/dev.jsonl.gz", "precision=bf16", *settings)


def _pooled(pooling: str, recipe: str, *settings: str) -> tuple[str, ...]:
    """Return settings that fine-tune a small encoder, pre-trained by this package, in minutes."""
    data = (*STSB, "budget.epochs=2") if recipe == "stsb" else _nli(FEW_PAIRS)
    return (*data, f'pooling=["{pooling}"]', "checkpoint.keep=1", OWN_RATE, *settings)


def _first(*settings: str) -> tuple[str, ...]:
    """Move settings of data and optimizer to the recipe of the first training, ``[first]``.

    The recipe ``nli-then-stsb`` has two trainings, one after the other.
    """
    return tuple(f"first.{s}" if s.startswith(("data", "optim")) else s for s in settings)


def _share(percent: int) -> tuple[str, ...]:
    """Return settings of a run on a share of the pairs of STSb, with at least 60 steps."""
    rows = round(STSB_PAIRS * percent / 100)
    steps = max(60, round(4 * rows / 32))
    times = (f"budget.steps={steps}", f"evaluation.every={steps // 4}")
    return (*STSB, *COMMON, f"data.limit={rows}", *times)


def _concatenated(name: str) -> Trial:
    parts = json.dumps(name.strip("()").split(", "))
    return Trial(name, "nli", _pooled("mean", "nli", f"loss.concatenation={parts}"))


def _pooling(name: str) -> Trial:
    pooling, recipe = name.split(", ")
    return Trial(name, recipe, _pooled(pooling, recipe))


# Spearman on STSb test: Sentence-BERT, table 2. The cross-encoders of the paper start from BERT.
PAIRED = {
    **{"bi-encoder": 84.67, "cross-encoder": 84.30},
    **{"bi-encoder, NLI first": 85.35, "cross-encoder, NLI first": 88.33},
}
BI_ENCODER = Trial("bi-encoder", "stsb", (*STSB, *COMMON, *SHORT))
CROSS_NLI = Trial(
    "nli", "nli", (_nli_pairs(), "precision=bf16", *COMMON, "optim.lr=1e-4"), "cross-encoder"
)
TAUGHT = Trial(
    "scores of the bi-encoder",
    "stsb",
    (*STSB[1:], *COMMON, "optim.lr=1e-4", "budget.epochs=1"),
    "cross-encoder",
    after=CROSS_NLI,
    labelled_by=BI_ENCODER,
)

EXPERIMENTS = {
    "stsb": Experiment(
        "STSb from all-MiniLM-L6-v2: does fine-tuning on its 5,749 pairs reach 84.0?",
        tuple(
            Trial(loss, "stsb", (*STSB, *COMMON, f"loss.name={loss}", *SHORT))
            for loss in ("cosent", "cosine_mse")
        ),
        3,
        ("stsb",),
        choose=True,
    ),
    "cross-encoder": Experiment(
        "STSb: does a cross-encoder beat the bi-encoder of its size (SBERT, table 2)?",
        (
            BI_ENCODER,
            Trial("cross-encoder", "stsb", (*STSB, *COMMON), "cross-encoder"),
            replace(
                BI_ENCODER, name="bi-encoder, NLI first", after=Trial("nli", "nli", _nli(*COMMON))
            ),
            Trial(
                "cross-encoder, NLI first",
                "stsb",
                (*STSB, *COMMON, "optim.lr=1e-4"),
                "cross-encoder",
                after=CROSS_NLI,
            ),
            Trial("cross-encoder, taught", "stsb", (*STSB, *COMMON), "cross-encoder", after=TAUGHT),
        ),
        3,
        ("stsb", "stsb-dev"),
        published=PAIRED,
        against={
            "cross-encoder": "bi-encoder",
            "cross-encoder, NLI first": "bi-encoder, NLI first",
        },
    ),
    "triplet": Experiment(
        "Sections of Wikipedia: triplet accuracy on articles that were held out",
        (
            BEFORE,
            Trial(
                "triplet",
                "triplet",
                (
                    "data.train=@/wikipedia-en-2014/train-0.jsonl.xz",
                    "data.limit=3000",
                    "data.per_document=2",
                    "precision=bf16",
                    *COMMON,
                ),
            ),
        ),
        1,
        ("triplets",),
    ),
    "own": Experiment(
        "From an encoder of one's own: raw, and after at most 5,000 NLI pairs",
        (
            Trial("raw [CLS]", settings=('pooling=["cls"]',)),
            Trial("raw mean", settings=('pooling=["mean"]',)),
            Trial("nli", "nli", _pooled("mean", "nli")),
            Trial("mnrl-nli", "mnrl-nli", _pooled("mean", "nli")),
            Trial(
                "nli-then-stsb",
                "nli-then-stsb",
                (*_first(*_nli(FEW_PAIRS, OWN_RATE)), *_pooled("mean", "stsb")),
            ),
        ),
        3,
        ("stsb-dev", *STS),
    ),
    "nli": Experiment(
        "NLI: every STS set before and after",
        (
            BEFORE,
            Trial("nli", "nli", _nli(*COMMON)),
            Trial("nli, unit_length=false", "nli", _nli(*COMMON, "unit_length=false")),
            Trial("mnrl-nli", "mnrl-nli", _nli("checkpoint.keep=1")),
            Trial("nli-then-stsb", "nli-then-stsb", (*_first(*_nli()), *STSB, *COMMON)),
        ),
        1,
        STS,
    ),
    "small-labels": Experiment(
        "STSb with few labels, from a pre-trained model and from random weights of its shape",
        tuple(
            Trial(f"{percent} %, {start}", "stsb", _share(percent), fresh=start == "random")
            for percent in (1, 3, 10, 30, 100)
            for start in ("pre-trained", "random")
        ),
        2,
        ("stsb-dev", "stsb"),
    ),
    "pooling": Experiment(
        "SBERT's ablation of pooling (table 6), NLI and STSb",
        tuple(map(_pooling, POOLING)),
        3,
        ("stsb-dev",),
        published=POOLING,
        against={n: f"mean, {n.split(', ')[1]}" for n in POOLING if n[:4] != "mean"},
    ),
    "concatenation": Experiment(
        "SBERT's ablation of what the classifier sees (table 6), NLI",
        tuple(map(_concatenated, CONCATENATION)),
        3,
        ("stsb-dev",),
        published=CONCATENATION,
        against={name: DEFAULT for name in CONCATENATION if name != DEFAULT},
    ),
}
