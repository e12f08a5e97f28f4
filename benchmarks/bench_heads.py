"""Training a classifier against transformers' Trainer, and prediction against its pipeline.

Training: this package and the Trainer alternately train all-MiniLM-L6-v2 for one epoch of the same
sentences of SST-2, in batches of 32 and with the same learning rate, schedule and maximum length.
The Trainer pads each batch to its longest sentence. The measured time starts with the first step
and ends with the last; it includes collation and optimizer. `accuracy` is that of both models on
SST-2 dev after the last round, as a share. The figures `fp32` and `bf16` compare our training in
that precision with the Trainer in fp32, and `same` compares both in bf16. With --fp32-only, nothing
is trained in bf16: some CPUs emulate it and need half an hour for each round.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import Figure, Results, arguments, paired, repeats_of, timed_steps
from heads_prediction import prediction_figures
from texts import data_folder, sentences

from sbert_search.base.progress import set_quiet
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.text.labelled.records import LabelledText
from sbert_search.text.labelled.texts import read_labelled_texts

BATCH, MAX_LEN, LR = 32, 66, 5e-5
# Maps each figure to our precision and to that of the Trainer.
COMPARISONS = {"fp32": ("fp32", "fp32"), "bf16": ("bf16", "fp32"), "same": ("bf16", "bf16")}

Measured = tuple[float, float]
"""Sentences a second, and the accuracy on dev."""


def rows(count: int) -> tuple[str, list[LabelledText], list[LabelledText]]:
    """Return the name of a source, and labelled sentences to train on and to test on.

    The source is SST-2, or without it sentences with made-up labels.
    """
    data = data_folder()
    if data is None:
        name, texts = sentences(count)
        made = [LabelledText(text, None, str(len(text) % 2)) for text in texts]
        return name, made, made[:64]
    train = read_labelled_texts(data / "sst2" / "train.jsonl.gz")
    order = np.random.default_rng(0).permutation(len(train))[:count]
    return "sst2", [train[n] for n in order], read_labelled_texts(data / "sst2" / "dev.jsonl.gz")


def ours(precision: str, train: Sequence[LabelledText], dev: Sequence[LabelledText]) -> Measured:
    """Train with this package."""
    from sbert_search.heads.train_classifier import ClassifyRecipe, train_classifier
    from sbert_search.heads.training_rows import encode_rows, predict_logits
    from sbert_search.models.sequence_classifier import SequenceClassifier
    from sbert_search.train.recipe import load_recipe

    with tempfile.TemporaryDirectory() as folder, timed_steps() as times:
        data = Path(folder, "rows.jsonl")
        lines = [json.dumps({"sentence": row.text, "label": row.label}) for row in train]
        data.write_text("\n".join(lines) + "\n", encoding="utf-8")
        settings = [f"model={resolve_model().path}", f"data.train={data}", "device=cpu"]
        settings += [f"precision={precision}", f"batching.size={BATCH}", "budget.epochs=1"]
        settings += ["data.held_out=0", f"max_len={MAX_LEN}", f"optim.lr={LR}", "pooling=cls"]
        recipe = load_recipe(ClassifyRecipe, "classify", "sst2", settings)
        train_classifier(recipe, Path(folder, "run"))
        model = SequenceClassifier.load(Path(folder, "run", "model"))
        logits = predict_logits(model, encode_rows(model, dev))
    right = [model.labels[n] == row.label for n, row in zip(logits.argmax(1), dev, strict=True)]
    return len(train) / (times[-1] - times[0]), float(np.mean(right))


def library(precision: str, train: Sequence[LabelledText], dev: Sequence[LabelledText]) -> Measured:
    """Train with transformers."""
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Times(TrainerCallback):
        """Records the times at which steps begin and end."""

        def __init__(self) -> None:
            self.found: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            """Record the time."""
            self.found.append(time.perf_counter())

        on_step_end = on_step_begin

    path, times = str(resolve_model().path), Times()
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=2)

    def encoded(part: Sequence[LabelledText]) -> Dataset:
        texts = tokenizer([row.text for row in part], truncation=True, max_length=MAX_LEN)
        return Dataset.from_dict({**texts, "label": [int(str(row.label)) for row in part]})

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            learning_rate=LR,
            warmup_steps=0.1,
            weight_decay=0.01,
            bf16=precision == "bf16",
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model,
            args=settings,
            train_dataset=encoded(train),
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[times],
        )
        trainer.train()
        logits = np.asarray(trainer.predict(encoded(dev)).predictions)
    right = [str(n) == row.label for n, row in zip(logits.argmax(1), dev, strict=True)]
    return len(train) / (times.found[-1] - times.found[0]), float(np.mean(right))


def training_figures(options: argparse.Namespace, results: Results) -> None:
    """Train with both programs and in both precisions alternately."""
    name, train, dev = rows(BATCH * (8 if options.quick else 120))
    dev = dev[:128] if options.quick else dev
    found: dict[tuple[str, str], list[Measured]] = {}
    precisions = ("fp32",) if options.fp32_only else ("fp32", "bf16")
    for _ in range(1 + repeats_of(options)):  # the first round warms up
        for precision in precisions:
            found.setdefault(("ours", precision), []).append(ours(precision, train, dev))
            found.setdefault(("peer", precision), []).append(library(precision, train, dev))
    for figure, (mine, theirs) in COMPARISONS.items():
        if not {mine, theirs} <= set(precisions):
            continue
        counted = found["ours", mine][1:], found["peer", theirs][1:]
        speeds = [[speed for speed, _ in each] for each in counted]
        results.add(f"train_{figure}", paired(*speeds, unit=f"{name} texts/s"))
        right, other = (each[-1][1] for each in counted)
        results.add(f"train_{figure}_accuracy", Figure(right, "share", other, right / other))


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--fp32-only", action="store_true", help="train in fp32 only")
    options = parser.parse_args()
    set_quiet(True)
    results = Results(options)
    training_figures(options, results)
    prediction_figures(options, results)


if __name__ == "__main__":
    main()
