"""Train a classifier of texts or pairs: one class, several classes, or a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.corpus.labelled.texts import LabelKind, classes_of, read_labelled_texts
from sbert_search.encoder.packed import PackedTokens
from sbert_search.errors import ConfigError, TrainingError
from sbert_search.losses.classification import (
    class_cross_entropy,
    several_classes_cross_entropy,
    squared_error,
)
from sbert_search.metrics.calibration import fit_temperature
from sbert_search.metrics.classification import accuracy, confusion, f1, macro_f1, matthews
from sbert_search.metrics.correlation import pearson, spearman
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.side_file import Pooling, SideFile, read_side_file, write_side_file
from sbert_search.records import LabelledText
from sbert_search.runtime.device import resolve_device
from sbert_search.runtime.distributed import Ranks
from sbert_search.runtime.progress import warn
from sbert_search.runtime.seed import seed_all
from sbert_search.tokens.batching import token_batches
from sbert_search.training.data.text_dataset import TokenTable
from sbert_search.training.loop.batching import Batches, BatchingConfig, Rows
from sbert_search.training.loop.early_stopping import DevMetrics
from sbert_search.training.loop.loop import Result
from sbert_search.training.loop.objective import Batch, Losses, Objective, Sum
from sbert_search.training.published_run import Training, starting, train_and_publish
from sbert_search.training.task_heads import adversarial
from sbert_search.training.task_heads.frozen import CachedStates, train_only
from sbert_search.training.task_heads.settings import (
    ClassWeights,
    HeadDataConfig,
    HeadRecipe,
    class_weights,
    split_rows,
)

_AT_ONCE = 4096  # texts tokenised at once
_TOKENS_AT_ONCE = 8192  # of one forward pass without gradients

_LOSSES: Mapping[LabelKind, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "class": class_cross_entropy,
    "several": several_classes_cross_entropy,
    "number": squared_error,
}
_LOSS_NAMES: Mapping[LabelKind, str] = {
    "class": "cross_entropy",
    "several": "binary_cross_entropy",
    "number": "squared_error",
}
_DIVERGENCES: Mapping[LabelKind, adversarial.Divergence] = {
    "class": adversarial.symmetric_kl,
    "several": adversarial.symmetric_binary_kl,
    "number": adversarial.squared_difference,
}
_DEV_METRICS: Mapping[LabelKind, tuple[str, ...]] = {
    "class": ("accuracy", "macro_f1", "matthews"),
    "several": ("micro_f1", "macro_f1"),
    "number": ("spearman", "pearson"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyColumns:
    """Names of columns; None: the usual names, listed in `corpus.labelled.texts`."""

    text: str | None = None  # the text, or the first text of a pair
    text2: str | None = None  # the second text of a pair
    label: str | None = None  # class, list of classes, or number


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyDataConfig(HeadDataConfig):
    """The data files of a classifier, and how their rows are read."""

    columns: ClassifyColumns = field(default_factory=ClassifyColumns)
    labels: tuple[str, ...] = ()  # classes, in order; (): all labels of the files, sorted


@dataclass(frozen=True, kw_only=True)
class ClassifyRecipe(HeadRecipe):
    """All settings of a training run of a classifier of texts."""

    task: LabelKind = "class"  # what a text has: one class, several or none, or a number
    data: ClassifyDataConfig
    pooling: Pooling = "cls"  # state that the head reads; transformers loads only cls
    class_weights: ClassWeights = "none"  # of the classes in the loss

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task == "number" and (self.data.labels or self.class_weights != "none"):
            raise ConfigError("data.labels and class_weights are for classes; the task is number.")


def train_classifier(
    recipe: ClassifyRecipe, out: Path, /, *, resume: bool = False, allow_inexact: bool = False
) -> Result:
    """Train a classifier of texts or pairs.

    The model with the best dev metric, or without dev data the last one, is written to
    ``out/model``, a folder that transformers loads as a sequence classifier. With dev data, the
    temperature of its probabilities is fitted to them.

    Args:
        recipe: All settings.
        out: Folder of the run.
        resume: Resume from the newest checkpoint in ``out``.
        allow_inexact: Resume although data, recipe, threads or versions differ.

    Raises:
        ConfigError: Settings contradict each other, or the run would write over a file or folder
            that it reads.
        CorpusError: The data cannot be read or used.
        ModelError: The encoder to start from cannot be loaded.
        TrainingError: As for `training.loop.loop.train`, or all rows have the same label.
        CheckpointError: As for `training.loop.loop.train`.
    """
    with starting(recipe, out, resume=resume) as ranks:
        rows, dev = _read(recipe)
        labels = _labels(recipe, [*rows, *dev])
        seed_all(recipe.seed, "init")
        model = SequenceClassifier.start(
            resolve_model(recipe.model).path,
            labels=labels,
            kind=recipe.task,
            max_len=recipe.max_len,
            side=SideFile(pooling=recipe.pooling),
            random_weights=recipe.random_weights,
        )
        training = _training(recipe, model, rows, dev, out, ranks)
        return train_and_publish(
            training, recipe, out, ranks, resume=resume, allow_inexact=allow_inexact
        )


def _training(
    recipe: ClassifyRecipe,
    model: SequenceClassifier,
    rows: Sequence[LabelledText],
    dev: Sequence[LabelledText],
    out: Path,
    ranks: Ranks,
) -> Training:
    table, targets = encode_rows(model, rows), targets_of(model, rows)
    _check_targets(recipe.task, rows, targets)
    trained: SequenceClassifier | FrozenClassifier = model
    states: CachedStates | None = None
    if recipe.tune != "full":
        trained = FrozenClassifier(model, probe=recipe.tune == "probe")
        states = _cached(model, table, resolve_device(recipe.device), out, ranks.rank)
    evaluation = _evaluation(model, dev) if dev else None
    return Training(
        kind="classify",
        model=trained,
        objective=_objective(recipe, model, targets),
        batches=ClassifyBatches(recipe, table, targets, states),
        files=recipe.data.files,
        n_rows=len(rows),
        dev=evaluation,
        save_model=trained.save,
        calibrate=partial(_calibrate, dev) if dev else None,
    )


def _read(recipe: ClassifyRecipe) -> tuple[list[LabelledText], list[LabelledText]]:
    """Read the training rows and the dev rows."""
    data, names = recipe.data, recipe.data.columns
    labels = () if recipe.task == "number" else data.labels

    def read(path: Path) -> list[LabelledText]:
        return read_labelled_texts(
            path,
            kind=recipe.task,
            text=names.text,
            text2=names.text2,
            label=names.label,
            labels=labels or None,
        )

    rows = [row for path in data.files for row in read(path)]
    keys = [f"{row.text}\0{row.text2 or ''}" for row in rows]
    rows, held = split_rows(rows, keys, data)
    return rows, held if data.dev is None else read(data.dev)


def _labels(recipe: ClassifyRecipe, rows: Sequence[LabelledText]) -> tuple[str, ...]:
    """Return the classes of the model, in order."""
    if recipe.task == "number":
        return ("LABEL_0",)
    return recipe.data.labels or classes_of(rows)


def encode_rows(model: SequenceClassifier, rows: Sequence[LabelledText]) -> TokenTable:
    """Tokenise rows; a note says how many were truncated."""
    ids, types, n_long = list[NDArray[np.int32]](), list[NDArray[np.uint8]](), 0
    for start in range(0, len(rows), _AT_ONCE):
        encoded = model.encode([(row.text, row.text2) for row in rows[start : start + _AT_ONCE]])
        ids += [np.array(each, dtype=np.int32) for each in encoded.ids]
        types += [np.array(each, dtype=np.uint8) for each in encoded.types]
        n_long += int(np.count_nonzero(encoded.lost))
    if n_long:
        limit = model.tokenizer.max_len
        warn(f"{n_long:,} of {len(rows):,} rows are truncated to {limit} tokens.")
    has_types = model.gets_segment_ids and any(row.text2 is not None for row in rows[:1])
    return TokenTable.join(ids, types if has_types else None)


def targets_of(model: SequenceClassifier, rows: Sequence[LabelledText]) -> NDArray[np.generic]:
    """Return the targets of rows.

    Returns:
        Class numbers, int64 (n,); or 1 for each class of a row, float32 (n, labels); or numbers,
        float32 (n,).
    """
    if model.kind == "number":
        return np.array([row.label for row in rows], dtype=np.float32)
    number = {label: n for n, label in enumerate(model.labels)}
    if model.kind == "class":
        return np.array([number[str(row.label)] for row in rows], dtype=np.int64)
    targets = np.zeros((len(rows), len(number)), dtype=np.float32)
    for n, row in enumerate(rows):
        assert isinstance(row.label, tuple)
        targets[n, [number[name] for name in row.label]] = 1
    return targets


def _check_targets(
    kind: LabelKind, rows: Sequence[LabelledText], targets: NDArray[np.generic]
) -> None:
    """Refuse targets that are all equal, from which nothing can be learned."""
    if len(np.unique(targets, axis=0)) < 2:
        what = "number" if kind == "number" else "label"
        raise TrainingError(
            f"All {len(rows):,} rows from {rows[0].source} to {rows[-1].source} have the {what} "
            f"{rows[0].label!r}. Add rows with another {what}."
        )


class ClassifyBatches(Batches):
    """Batches of tokenised rows, or of their states if only a head is trained."""

    def __init__(
        self,
        recipe: ClassifyRecipe,
        table: TokenTable,
        targets: NDArray[np.generic],
        states: CachedStates | None = None,
    ) -> None:
        """Plan batches of the rows of a table; ``targets`` has the target of each row."""
        config: BatchingConfig = recipe.batching
        self.table, self.targets, self.states = table, targets, states
        self.names = [_LOSS_NAMES[recipe.task]]
        if recipe.adversarial.kind != "none":
            self.names.append(adversarial.LOSS)
        fingerprint = table.fingerprint(targets)
        super().__init__(
            table.lengths, self._batch, config, seed=recipe.seed, fingerprint=fingerprint
        )

    def _batch(self, rows: Rows, epoch: int) -> Batch:
        rows = rows[np.argsort(self.lengths[rows], kind="stable")]
        inputs = self.table.pack(rows) if self.states is None else self.states.take(rows)
        counts = {name: len(rows) for name in self.names}
        return Batch(inputs, rows, counts, torch.from_numpy(self.targets[rows]))


class FrozenClassifier(nn.Module):
    """A classifier whose encoder is fixed: its head, or a linear layer in its place, is trained.

    Attributes:
        classifier: The classifier; its inner layer is trained too unless this is a probe.
        probe: The linear layer; None: the head of the classifier is trained.
    """

    def __init__(self, classifier: SequenceClassifier, *, probe: bool) -> None:
        super().__init__()
        self.classifier = classifier
        self.probe = nn.Linear(classifier.out.in_features, classifier.out.out_features)
        self.probe.load_state_dict(classifier.out.state_dict())
        head = [*classifier.inner.parameters(), *classifier.out.parameters()]
        self.is_probe = probe
        train_only(self, [*self.probe.parameters()] if probe else head)

    def classify(self, states: Tensor) -> Tensor:
        """Compute logits, float32 (batch, labels), from the states of the texts."""
        if not self.is_probe:
            return self.classifier.classify(states)
        logits: Tensor = self.probe(states.to(self.probe.weight.dtype))
        return logits

    def complete(self) -> SequenceClassifier:
        """Return the classifier, with the probe in it."""
        if self.is_probe:
            self.classifier.become_linear(self.probe)
        return self.classifier

    def save(self, path: Path) -> None:
        """Write the classifier to a folder."""
        self.complete().save(path)


def _cached(
    model: SequenceClassifier, table: TokenTable, device: torch.device, out: Path, rank: int
) -> CachedStates:
    """Compute the states of all rows with the encoder, in evaluation mode."""
    model.to(device).eval()
    return CachedStates.compute(
        lambda rows: model.states(table.pack(rows).to(device)),
        table.lengths,
        np.ones(len(table.lengths), dtype=np.int64),
        model.encoder.config.hidden_size,
        out / f"states-{rank}.npy",
    )


def _objective(
    recipe: ClassifyRecipe, classifier: SequenceClassifier, targets: NDArray[np.generic]
) -> Objective:
    kind, config, name = recipe.task, recipe.adversarial, _LOSS_NAMES[recipe.task]
    weights = class_weights(recipe.class_weights, kind, classifier.labels, targets)

    def objective(model: nn.Module, batch: Batch) -> Losses:
        inputs, goal = batch.inputs, batch.targets
        assert goal is not None
        if isinstance(inputs, Tensor):
            assert isinstance(model, FrozenClassifier)
            logits = model.classify(inputs)
        else:
            logits = model(inputs)
        scale = None if weights is None else weights.to(logits.device)
        losses = _LOSSES[kind](logits, goal, scale)
        sums: dict[str, Sum] = {name: (losses.sum(), len(losses))}
        if config.kind != "none":
            assert isinstance(inputs, PackedTokens)
            forward, encoder = partial(model, inputs), classifier.encoder
            change = adversarial.virtual_adversarial(
                forward, logits, _DIVERGENCES[kind], encoder, inputs, config
            )
            sums[adversarial.LOSS] = (change, len(losses))
        return Losses(sums, weights={adversarial.LOSS: config.weight})

    return objective


def predict_logits(model: SequenceClassifier, table: TokenTable) -> NDArray[np.float32]:
    """Compute the logits of all rows of a table in fp32, float32 (rows, labels)."""
    logits = np.empty((len(table.lengths), len(model.labels)), dtype=np.float32)
    device = model.out.weight.device
    with torch.no_grad():
        for rows in token_batches(table.lengths, _TOKENS_AT_ONCE):
            logits[rows] = model(table.pack(rows).to(device)).float().cpu().numpy()
    return logits


def _evaluation(model: SequenceClassifier, dev: Sequence[LabelledText]) -> DevMetrics:
    """Make the function that computes the dev metrics."""
    table, gold = encode_rows(model, dev), targets_of(model, dev)

    def metrics(module: nn.Module) -> dict[str, float]:
        complete = module.complete() if isinstance(module, FrozenClassifier) else module
        assert isinstance(complete, SequenceClassifier)
        return dev_metrics(complete.kind, predict_logits(complete, table), gold)

    return DevMetrics(_DEV_METRICS[model.kind], metrics)


def dev_metrics(
    kind: LabelKind, logits: NDArray[np.float32], gold: NDArray[np.generic]
) -> dict[str, float]:
    """Compute the metrics of logits (n, labels) by name."""
    if kind == "number":
        values = logits[:, 0]
        return {"spearman": spearman(values, gold), "pearson": pearson(values, gold)}
    if kind == "several":
        chosen, true = logits > 0, gold.astype(bool)
        matched = chosen & true
        by_class = f1(matched.sum(axis=0), chosen.sum(axis=0), true.sum(axis=0))
        micro = f1(matched.sum(), chosen.sum(), true.sum())
        return {"micro_f1": float(micro), "macro_f1": float(by_class.mean())}
    counts = confusion(logits.argmax(axis=1), gold, logits.shape[1])
    metrics = {"accuracy": accuracy, "macro_f1": macro_f1, "matthews": matthews}
    return {name: float(metric(counts)) for name, metric in metrics.items()}


def _calibrate(dev: Sequence[LabelledText], folder: Path) -> None:
    """Fit the temperature of a saved classifier to dev data."""
    model = SequenceClassifier.load(folder)
    if model.kind == "number":
        return
    logits = predict_logits(model, encode_rows(model, dev))
    temperature = fit_temperature(logits, targets_of(model, dev), model.kind)
    write_side_file(folder, replace(read_side_file(folder), temperature=temperature))
