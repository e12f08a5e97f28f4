"""Train a classifier of texts or pairs: one class, several classes, or a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from sbert_search.base.distributed import Ranks
from sbert_search.base.progress import note
from sbert_search.base.seed import seed_all
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.evaluate.metrics.correlation import METRICS, GoldScores
from sbert_search.heads import adversarial
from sbert_search.heads.calibration import fit_temperature
from sbert_search.heads.training import (
    ClassWeights,
    FrozenClassifier,
    HeadDataConfig,
    HeadRecipe,
    HeadTask,
    class_weights,
    read_split,
)
from sbert_search.heads.training_rows import (
    check_targets,
    dev_metrics,
    encode_rows,
    predict_logits,
    targets_of,
)
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.logit_losses import (
    class_cross_entropy,
    several_classes_cross_entropy,
    squared_error,
)
from sbert_search.models.sequence_classifier import SequenceClassifier, trained_pooling
from sbert_search.models.side_file import Pooling, SideFile
from sbert_search.text.labelled.records import LabelledText
from sbert_search.text.labelled.texts import LabelKind, classes_of, read_labelled_texts
from sbert_search.train.loop.loop import Result
from sbert_search.train.loop.schedule import DevMetrics, fingerprint_of
from sbert_search.train.loop.step import Penalties
from sbert_search.train.run import start_run

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
    "number": METRICS,
}


_UNKNOWN_CLASS = (
    "Fix it, or name the classes of your data by the setting data.labels, on the command line such "
    """as --set 'data.labels=["neg", "pos"]'; data.labels=[] takes all classes of the files."""
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyColumns:
    """Names of columns; None: the usual names, listed in `text.labelled.texts`."""

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
    """All settings of a training run of a classifier of texts.

    Example:
        >>> changes = ["data.train=classes.jsonl", "tune=head"]
        >>> load_recipe(ClassifyRecipe, "classify", "sst2", changes).tune
        'head'
    """

    task: LabelKind = "class"  # label of a text: one class, any number of classes, or a number
    data: ClassifyDataConfig
    pooling: Pooling | None = None  # state that the head reads; None: as the model was trained
    class_weights: ClassWeights = "none"  # weights of classes in the loss, or a list of them

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task == "number" and self.data.labels:
            raise ConfigError(
                f"data.labels has the classes {', '.join(self.data.labels)}, and the task number "
                "has no classes; set data.labels=[], on a command line by --set 'data.labels=[]'."
            )
        if twice := [name for name, count in Counter(self.data.labels).items() if count > 1]:
            raise ConfigError(f"data.labels has {twice[0]!r} twice; name each class once.")
        if self.task == "number" and self.class_weights != "none":
            raise ConfigError(
                f"class_weights is {self.class_weights!r}, and the task number has no classes; set "
                "class_weights=none."
            )


def train_classifier(
    recipe: ClassifyRecipe, out: Path, /, *, resume: bool = False, allow_inexact: bool = False
) -> Result:
    """Train a classifier of texts or pairs.

    The model with the best dev metric, or without dev data the last one, is written to
    ``out/model``, a folder that transformers loads as a sequence classifier. With dev data, the
    temperature of the probabilities of classes is fitted to these data.

    Args:
        recipe: All settings.
        out: Folder of the run.
        resume: Resume from the newest checkpoint in ``out``.
        allow_inexact: As for `train.loop.loop.train`.

    Raises:
        ConfigError: Settings contradict each other, or the run would write over a file or folder
            that it reads.
        CorpusError: The data cannot be read or used.
        ModelError: The encoder to start from cannot be loaded.
        TrainingError: As for `train.loop.loop.train`; or all training rows have the same label,
            or all dev rows the same number.
        CheckpointError: As for `train.loop.loop.train`.

    Example:
        >>> few = ["budget={steps=2}", "max_len=24", "model=my-model", "data.train=classes.jsonl"]
        >>> few += ["data.labels=[]"]
        >>> recipe = load_recipe(ClassifyRecipe, "classify", "sst2", few)
        >>> train_classifier(recipe, Path("run")).stopped
        'budget'
    """
    with start_run(recipe, out, resume=resume, allow_inexact=allow_inexact) as run:
        rows, dev = _read(recipe)
        labels = _labels(recipe, [*rows, *dev])
        seed_all(recipe.seed, "init")
        path = resolve_model(recipe.model).path
        model = SequenceClassifier.start(
            path,
            labels=labels,
            kind=recipe.task,
            max_len=recipe.max_len,
            side=_side(recipe, path, run.ranks),
            random_weights=recipe.random_weights,
        )
        return run.train(_Classifying(recipe, model, rows).training(run, dev, recipe.data.files))


class _Classifying(HeadTask[LabelledText, SequenceClassifier]):
    kind = "classify"

    def __init__(
        self, recipe: ClassifyRecipe, model: SequenceClassifier, rows: Sequence[LabelledText]
    ) -> None:
        kind = recipe.task
        self.loss, self.divergence = _LOSS_NAMES[kind], _DIVERGENCES[kind]
        self.calibrates = kind != "number"
        table, targets = encode_rows(model, rows), targets_of(model, rows)
        check_targets(kind, rows, targets)
        self.weights = class_weights(recipe.class_weights, kind, model.labels, targets)
        self.frozen: FrozenClassifier | None = None
        if recipe.tune != "full":
            self.frozen = FrozenClassifier(model, probe=recipe.tune == "probe")
        n_states = np.ones(len(rows), dtype=np.int64)
        super().__init__(recipe, model, rows, table, targets, n_states, self.frozen)

    def sum_losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        scale = None if self.weights is None else self.weights.to(logits.device)
        return _LOSSES[self.model.kind](logits, targets, scale).sum(), len(targets)

    def penalties(self, penalty: float) -> Penalties:
        assert self.frozen is not None
        # The loss of several classes is their mean; the penalty is for the sum.
        n_summed = len(self.model.labels) if self.model.kind == "several" else 1
        return {self.frozen.probe.weight: penalty / n_summed}

    def dev_metrics(self, dev: Sequence[LabelledText]) -> DevMetrics:
        model = self.model
        table, gold = encode_rows(model, dev), targets_of(model, dev)
        scores = GoldScores(gold, [row.source for row in dev]) if model.kind == "number" else None

        def metrics(module: nn.Module) -> dict[str, float]:
            complete = module.complete() if isinstance(module, FrozenClassifier) else module
            assert isinstance(complete, SequenceClassifier)
            logits = predict_logits(complete, table)
            if scores is not None:
                return scores.correlations(logits[:, 0])
            return dev_metrics(complete.kind, logits, gold)

        names = _DEV_METRICS[model.kind]
        return DevMetrics(names, metrics, fingerprint_of(dev), rows=len(dev))

    def fit(
        self, side: SideFile, model: SequenceClassifier, dev: Sequence[LabelledText]
    ) -> SideFile:
        logits = predict_logits(model, encode_rows(model, dev))
        temperature = fit_temperature(logits, targets_of(model, dev), model.kind)
        return replace(side, temperature=temperature)

    def save(self, path: Path) -> None:
        (self.frozen or self.model).save(path)


def _read(recipe: ClassifyRecipe) -> tuple[list[LabelledText], list[LabelledText]]:
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
            remedy=_UNKNOWN_CLASS,
        )

    rows, dev = read_split(read, lambda row: f"{row.text}\0{row.text2 or ''}", data)
    _require_alike([*rows, *dev])
    return rows, dev


def _require_alike(rows: Sequence[LabelledText]) -> None:
    first = rows[0]
    for row in rows:
        if (row.text2 is None) != (first.text2 is None):
            single, pair = (first, row) if first.text2 is None else (row, first)
            raise CorpusError(
                f"{single.source} has one text, but {pair.source} has two. Give all files the same "
                "columns, or name them in data.columns."
            )


def _labels(recipe: ClassifyRecipe, rows: Sequence[LabelledText]) -> tuple[str, ...]:
    if recipe.task == "number":
        return ("LABEL_0",)
    return recipe.data.labels or classes_of(rows)


def _side(recipe: ClassifyRecipe, model: Path, ranks: Ranks) -> SideFile:
    """Choose the state that the head reads: that of the model's sentence vectors, unless set.

    A probe reads it scaled to norm 1 if the model scales its vectors: no other layer of the head
    could, and the penalty of the probe's weights fits states of one length.
    """
    trained, unit_length = trained_pooling(model)
    pooling = recipe.pooling or trained
    if pooling != "cls" and recipe.pooling is None and ranks.first:
        note(
            f"The head reads the {pooling} of the token states, for which the model was trained. "
            "The classes of transformers read the first token; set pooling=cls to use them."
        )
    scaled = recipe.tune == "probe" and unit_length and pooling == trained
    return SideFile(pooling=pooling, unit_length=scaled)
