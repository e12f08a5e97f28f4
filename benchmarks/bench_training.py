"""Training a sentence encoder against the trainer of sentence-transformers, on SNLI pairs.

This package and sentence-transformers alternately train all-MiniLM-L6-v2 for one epoch of the same
pairs in batches of 32. Without SBERT_SEARCH_DATA, the pairs are consecutive sentences of docstrings
with made-up labels. The task `nli` uses the softmax loss over (u, v, |u-v|), and the task `mnrl`
uses the multiple negatives ranking loss over the entailed pairs. The measured time starts with the
first step and ends with the last; it includes collation and optimizer. The figures `fp32`,
`bf16` and `auto` compare our training in this precision with sentence-transformers in fp32; auto is
the precision that this package chooses by a measurement. The figure `same` compares both programs
in bf16, and `auto_of_best` our training in auto with ours in the faster of fp32 and bf16.

With --before COMMIT, the peer is this package at another commit of this repository: both train on
the task `nli` in bf16, with 16 pairs a step, in new processes that take turns. The commit is
checked out into a temporary folder.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import (
    REPOSITORY,
    Results,
    arguments,
    checked_out,
    compare,
    paired,
    repeats_of,
    timed_steps,
)
from texts import nli_pairs

from sbert_search.base.progress import set_quiet
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.text.labelled.records import TextPair

BATCH = 32
SMALL_BATCH = 16  # of --before; the costs that do not grow with the batch have a larger share
STEPS, QUICK_STEPS = 120, 25  # of --before
ONCE = """
import sys
from bench_training import ours, set_quiet
from texts import nli_pairs
set_quiet(True)
batch, pairs = map(int, sys.argv[1:])
print(ours("nli", "bf16", nli_pairs(pairs)[1], batch=batch))
"""
LABELS = ["contradiction", "entailment", "neutral"]
RECIPES = {"nli": "nli", "mnrl": "query-passage"}  # maps each task to the recipe of this package
# Maps each figure to our precision and to that of sentence-transformers.
COMPARISONS = {
    "fp32": ("fp32", "fp32"),
    "bf16": ("bf16", "fp32"),
    "auto": ("auto", "fp32"),
    "same": ("bf16", "bf16"),
}


def ours(task: str, precision: str, pairs: list[TextPair], *, batch: int = BATCH) -> float:
    """Measure pairs a second of this package."""
    from sbert_search.train.bi_encoder import BiEncoderRecipe, train_bi_encoder
    from sbert_search.train.recipe import load_recipe

    with tempfile.TemporaryDirectory() as folder, timed_steps() as times:
        data = Path(folder, "pairs.jsonl")
        rows = [{"sentence1": p.text1, "sentence2": p.text2, "label": p.label} for p in pairs]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        settings = [f"model={resolve_model().path}", f"data.train={data}", "device=cpu"]
        settings += [f"precision={precision}", f"batching.size={batch}", "budget.epochs=1"]
        settings += ["mining.negatives=0"]
        recipe = load_recipe(BiEncoderRecipe, "bi-encoder", RECIPES[task], settings)
        train_bi_encoder(recipe, Path(folder, "run"))
    return len(pairs) / (times[-1] - times[0])


def library(task: str, precision: str, pairs: list[TextPair]) -> float:
    """Measure pairs a second of sentence-transformers."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer import losses
    from transformers import TrainerCallback

    class Times(TrainerCallback):
        """Records the times at which steps begin and end."""

        def __init__(self) -> None:
            self.found: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            """Record the time."""
            self.found.append(time.perf_counter())

        on_step_end = on_step_begin

    model, times = SentenceTransformer(str(resolve_model().path), device="cpu"), Times()
    rows: dict[str, list[Any]] = {"a": [p.text1 for p in pairs], "b": [p.text2 for p in pairs]}
    if task == "nli":
        rows["label"] = [LABELS.index(p.label or "") for p in pairs]
    with tempfile.TemporaryDirectory() as folder:
        settings = SentenceTransformerTrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            bf16=precision == "bf16",
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        softmax = losses.SoftmaxLoss(model, embedding_dimension=384, num_labels=3)
        loss = softmax if task == "nli" else losses.MultipleNegativesRankingLoss(model)
        SentenceTransformerTrainer(
            model=model,
            args=settings,
            train_dataset=Dataset.from_dict(rows),
            loss=loss,
            callbacks=[times],
        ).train()
    return len(pairs) / (times.found[-1] - times.found[0])


def at_commit(source: Path, steps: int) -> float:
    """Measure pairs a second of the package in a folder, in a new process."""
    benchmarks = Path(__file__).resolve().parent
    done = subprocess.run(
        [sys.executable, "-c", ONCE, str(SMALL_BATCH), str(SMALL_BATCH * steps)],
        check=True,
        cwd=source,  # `python -c` imports from here first
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{benchmarks}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout)


def measure_before(options: argparse.Namespace, results: Results) -> None:
    """Train with this version and with that of a commit alternately; add the figure."""
    steps = QUICK_STEPS if options.quick else STEPS
    with (
        tempfile.TemporaryDirectory() as scratch,
        checked_out(options.before, Path(scratch, "before")) as before,
    ):
        figure = compare(
            lambda: at_commit(REPOSITORY, steps),
            lambda: at_commit(before, steps),
            unit="pairs/s",
            repeats=repeats_of(options),
        )
    results.add(f"bf16_nli_{SMALL_BATCH}_pairs_a_step", figure)


def measure(task: str, options: argparse.Namespace, results: Results) -> None:
    """Train with both programs, each in its precisions, in turn; add the figures of a task."""
    count = BATCH * (5 if options.quick else 40)
    name, pairs = nli_pairs(count, only="entailment" if task == "mnrl" else None)
    speeds: dict[tuple[str, str], list[float]] = {}
    for _ in range(1 + repeats_of(options)):  # the first round warms up
        for precision in ("fp32", "bf16", "auto"):
            speeds.setdefault(("ours", precision), []).append(ours(task, precision, pairs))
            if precision != "auto":
                speeds.setdefault(("peer", precision), []).append(library(task, precision, pairs))
    for figure, (mine, theirs) in COMPARISONS.items():
        counted = speeds["ours", mine][1:], speeds["peer", theirs][1:]
        results.add(f"{figure}_{task}", paired(*counted, unit=f"{name} pairs/s"))
    best = max(("fp32", "bf16"), key=lambda precision: median(speeds["ours", precision][1:]))
    own = speeds["ours", "auto"][1:], speeds["ours", best][1:]
    results.add(f"auto_of_best_{task}", paired(*own, unit=f"{name} pairs/s"))


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--before", metavar="COMMIT", help="compare with this commit")
    options = parser.parse_args()
    set_quiet(True)
    results = Results(options)
    if options.before:
        measure_before(options, results)
        return
    for task in ["nli"] if options.quick else RECIPES:
        measure(task, options, results)


if __name__ == "__main__":
    main()
