"""Train a cross-encoder to predict labels or scores of pairs, or relevance to a query."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from sbert_search.base.distributed import Ranks
from sbert_search.base.progress import warn
from sbert_search.base.seed import seed_all
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.evaluate.cross_encoders import MEASURES, rerank
from sbert_search.evaluate.metrics.correlation import METRICS, GoldScores
from sbert_search.evaluate.metrics.ranking import mean
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.logit_losses import list_net, list_softmax, pairwise_logistic
from sbert_search.models.sequence_classifier import CrossEncoder
from sbert_search.search.rerankers import Reranker
from sbert_search.text.labelled.candidates import judged_candidates
from sbert_search.text.tokens.tokenizer import TextTokenizer
from sbert_search.train.data.examples import Example, read_examples
from sbert_search.train.data.left_out import without_false_negatives
from sbert_search.train.data.mining import MiningConfig, mine_negatives
from sbert_search.train.data.pair_dataset import (
    PairBatches,
    PairDataConfig,
    PairTask,
    PairTexts,
    labelled_file,
    read_rows,
)
from sbert_search.train.data.text_dataset import RowTokens, arrange, check_targets
from sbert_search.train.loop.loop import Result, TrainConfig
from sbert_search.train.loop.objective import EQUAL_SCORES, Batch, Losses, Objective
from sbert_search.train.loop.schedule import DevMetrics, fingerprint_of
from sbert_search.train.run import Training, start_run

LossName = Literal["cross_entropy", "bce", "mse", "pairwise", "list_net", "list_softmax"]
Sizes = Sequence[int]
"""Number of pairs of each row; a row is a text with the texts that it is paired with."""

LOSSES: Mapping[LossName, Callable[[Tensor, Tensor, Sizes], Tensor]] = {
    "cross_entropy": lambda x, y, sizes: cross_entropy(x, y, reduction="none"),
    "bce": lambda x, y, sizes: binary_cross_entropy_with_logits(x, y, reduction="none"),
    "mse": lambda x, y, sizes: mse_loss(x, y, reduction="none"),
    "pairwise": pairwise_logistic,
    "list_net": list_net,
    "list_softmax": list_softmax,
}
"""Functions of the logits and targets of all pairs, and of the number of pairs of each row. The
first three return a loss for each pair of texts, ``pairwise`` for each two candidates of a row with
different grades, and the last two for each row."""

_LOSSES_OF_EQUAL_SCORES: Mapping[LossName, Callable[[Sizes, int], float]] = {
    "pairwise": lambda sizes, n_pairs: n_pairs * math.log(2),
    "list_net": lambda sizes, n_rows: sum(map(math.log, sizes)),
    "list_softmax": lambda sizes, n_rows: sum(map(math.log, sizes)),
}
"""Functions that compute the summed loss of a batch if all candidates of a query get the same
score. The arguments are the number of pairs of each row, and the number of terms of the loss."""

_LOSSES_OF_TASK: Mapping[PairTask, tuple[LossName, ...]] = {
    "classes": ("cross_entropy",),
    "scores": ("bce", "mse"),
    "relevance": ("bce", "pairwise", "list_net", "list_softmax"),
}


@dataclass(frozen=True, kw_only=True)
class CrossEncoderRecipe(TrainConfig):
    """All settings of a training run of a cross-encoder.

    Example:
        >>> changes = ["data.train=sts.jsonl", "max_len=64"]
        >>> load_recipe(CrossEncoderRecipe, "cross-encoder", "stsb", changes).max_len
        64
    """

    task: PairTask  # what the model predicts
    loss: LossName  # loss of the predictions; each task has its own losses
    data: PairDataConfig
    model: str | Path | None = None  # folder or name of an encoder; None: all-MiniLM-L6-v2
    max_len: int = 256  # maximum tokens of a pair
    mining: MiningConfig = field(default_factory=MiningConfig)  # mining of hard negatives

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in _LOSSES_OF_TASK[self.task]:
            fitting = ", ".join(_LOSSES_OF_TASK[self.task])
            raise ConfigError(
                f"The loss {self.loss} does not fit the task {self.task}; use {fitting}."
            )
        if self.mining.negatives and self.task != "relevance":
            raise ConfigError(
                f"mining.negatives is for the task relevance, not for {self.task}; set it to 0."
            )
        if self.task == "relevance" and (self.data.rename or self.data.skip_labels != ("-",)):
            name = "rename" if self.data.rename else "skip_labels"
            raise ConfigError(
                f"data.{name} has no effect with the task relevance, whose labels are the grades "
                f"0, 1, 2, ...; remove data.{name}."
            )
        if self.task != "relevance" and self.data.form != "pairs":
            raise ConfigError(
                f"data.form is {self.data.form!r}, but the task {self.task} needs pairs with a "
                f"{'label' if self.task == 'classes' else 'score'}; use data.form = 'pairs'."
            )
        if self.task == "relevance":
            self._require_form()
        if self.task == "classes" and len(self.data.labels) < 2:
            raise ConfigError(
                "data.labels must name two or more classes, in the order of the logits."
            )

    def _require_form(self) -> None:
        """Refuse a form of the data from which no texts of a query can be read or mined."""
        if self.mining.negatives and self.data.form == "classes":
            raise ConfigError(
                "data.form is 'classes', whose rows have one text; negatives are mined for rows "
                "with a relevant text. Use another data.form."
            )
        if not self.mining.negatives and self.data.form not in ("pairs", "triplets"):
            raise ConfigError(
                f"data.form is {self.data.form!r}, whose rows have no irrelevant texts. Let these "
                "be mined with mining.negatives=7, or use data.form = 'pairs' (with grades as "
                "labels) or 'triplets'."
            )


def train_cross_encoder(
    recipe: CrossEncoderRecipe, out: Path, /, *, resume: bool = False, allow_inexact: bool = False
) -> Result:
    """Train a cross-encoder.

    The model is written to ``out/model``, a folder with a model card that the class CrossEncoder of
    sentence-transformers loads. With dev data, this is the model with the best dev metric; without
    dev data, the model of the last step.

    Args:
        recipe: All settings.
        out: Folder of the run.
        resume: Resume from the newest checkpoint in ``out``.
        allow_inexact: As for `train.loop.loop.train`.

    Returns:
        How the run ended.

    Raises:
        ConfigError: Settings contradict each other, or the run would write over a file or folder
            that it reads.
        CorpusError: The data cannot be read or used.
        ModelError: The encoder to start from, or a model for mining, cannot be loaded.
        TrainingError: A loss or gradient is not finite, a row does not fit in memory, processes of
            the run differ or end, all rows have the same target, or all dev rows have the same
            score.
        CheckpointError: There is no usable checkpoint to resume from, ``out`` holds another run, or
            a write failed.

    Example:
        >>> few = ["budget={steps=2}", "max_len=24", "model=my-model", "data.train=sts.jsonl"]
        >>> recipe = load_recipe(CrossEncoderRecipe, "cross-encoder", "stsb", few)
        >>> train_cross_encoder(recipe, Path("run")).stopped
        'budget'
    """
    with start_run(recipe, out, resume=resume, allow_inexact=allow_inexact) as run:
        return run.train(_training(recipe, out, run.ranks))


def _training(recipe: CrossEncoderRecipe, out: Path, ranks: Ranks) -> Training:
    labels = recipe.data.labels if recipe.task == "classes" else ("LABEL_0",)
    classes = labels if recipe.task == "classes" else ()
    folder = resolve_model(recipe.model).path
    seed_all(recipe.seed, "init")
    model = CrossEncoder.start(folder, labels=labels, max_len=recipe.max_len)
    read = partial(_examples, recipe, folder, model.tokenizer, out)
    rows = arrange(ranks.first_then_others(read), classes)
    check_targets(rows, classes, recipe.loss)
    tokens = RowTokens.of(rows, model.tokenizer, ranks=ranks)
    fewest = 3 if recipe.loss in _LOSSES_OF_EQUAL_SCORES else 2  # that loss compares candidates
    rows, tokens = without_false_negatives(rows, tokens, fewest)
    if recipe.loss == "mse":
        model.activation = nn.Identity()  # the loss compares logits with scores, without a sigmoid
    batches = PairBatches(
        rows,
        tokens,
        model,
        recipe.batching,
        seed=recipe.seed,
        loss=recipe.loss,
        weights=recipe.data.weights,
    )
    return Training(
        kind="cross-encoder",
        model=model,
        objective=_objective(recipe.loss),
        batches=batches,
        files=[*recipe.data.files, *recipe.data.runs, *recipe.data.judgements],
        n_rows=len(rows.text_ids),
        dev=_evaluation(recipe),
        save_model=model.save,
    )


def _examples(
    recipe: CrossEncoderRecipe, model: Path, tokenizer: TextTokenizer, out: Path
) -> list[list[Example]]:
    """Read every file; with mining, add negatives to the rows of files without a TREC run."""
    data, mining = recipe.data, recipe.mining
    parts = read_rows(data, recipe.task, recipe.seed, positives=mining.negatives > 0)
    if not mining.negatives:
        return parts
    every = [example for part in parts for example in part]
    found = []
    for path, part in zip(data.files, parts, strict=True):
        if not data.by_run(path):
            part = mine_negatives(
                part,
                mining,
                str(model),
                out / "mining",
                device=recipe.device,
                tokenizer=tokenizer,
                seed=recipe.seed,
                others=every,
            )
        found.append(_with_candidates(path, part, recipe))
    return found


def _with_candidates(
    path: Path, examples: list[Example], recipe: CrossEncoderRecipe
) -> list[Example]:
    """Leave out rows with one candidate, whose loss is 0 if the loss compares candidates."""
    if recipe.loss not in _LOSSES_OF_EQUAL_SCORES:
        return examples
    kept = [example for example in examples if len(example.texts) > 2]
    if not kept:
        raise CorpusError(
            f"{path}: no row has an irrelevant text, and the loss {recipe.loss} compares relevant "
            "texts with irrelevant ones. Give passages of several queries, or mining.corpus."
        )
    if left := len(examples) - len(kept):
        warn(f"{path}: {left:,} of {len(examples):,} rows without an irrelevant text are left out.")
    return kept


def _objective(name: LossName) -> Objective:
    def objective(model: nn.Module, batch: Batch) -> Losses:
        inputs = batch.inputs
        assert isinstance(inputs, PairTexts)
        logits = model(inputs.tokens).float()
        if name != "cross_entropy":
            logits = logits.squeeze(-1)
        losses = LOSSES[name](logits, inputs.targets, inputs.sizes)
        count = batch.counts[name]
        if name not in _LOSSES_OF_EQUAL_SCORES:
            return Losses({name: (losses.sum(), count)})
        equal = _LOSSES_OF_EQUAL_SCORES[name](inputs.sizes, count)
        return Losses(
            {name: (losses.sum(), count)},
            metrics={EQUAL_SCORES: (logits.new_tensor(equal), count)},
        )

    return objective


def _evaluation(recipe: CrossEncoderRecipe) -> DevMetrics | None:
    data = recipe.data
    if data.dev is None:
        return None
    if recipe.task == "relevance":
        return _ranking_metrics(data.dev, data)
    target: Literal["label", "score"] = "label" if recipe.task == "classes" else "score"
    examples = read_examples(data.dev, replace(data, limit=None), target)
    pairs = [(example.texts[0], example.texts[1]) for example in examples]
    gold: GoldScores | None = None
    if recipe.task == "scores":
        scores = [float(example.target or 0.0) for example in examples]
        gold = GoldScores(scores, [example.source for example in examples])

    def metrics(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, CrossEncoder)
        predicted = Reranker(model).predict(pairs)
        if gold is not None:
            return gold.correlations(predicted)
        labels = [data.labels[index] for index in predicted.argmax(axis=1)]
        right = sum(a == example.target for a, example in zip(labels, examples, strict=True))
        return {"accuracy": right / len(examples) if np.isfinite(predicted).all() else math.nan}

    names = ("accuracy",) if gold is None else METRICS
    return DevMetrics(names, metrics, fingerprint_of(examples), rows=len(examples))


def _ranking_metrics(dev: Path, data: PairDataConfig) -> DevMetrics:
    if dev.is_dir():
        if data.dev_run is None:
            raise ConfigError("data.dev is a folder; set data.dev_run, the run to rerank.")
        candidates = judged_candidates(dev, data.dev_run, split=data.dev_split, depth=data.depth)
    else:
        candidates = labelled_file(dev, data)
    if not any(each.grades.get(doc_id, 0) > 0 for each in candidates for doc_id in each.texts):
        raise CorpusError(
            f"{dev}: no query has a relevant text among its candidates, so every model would have "
            "the dev metric 0. Give dev data with relevant texts."
        )

    def metrics(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, CrossEncoder)
        scores = rerank(candidates, Reranker(model)).per_query
        return {name: mean(values) for name, values in scores.items()}

    return DevMetrics(tuple(MEASURES), metrics, fingerprint_of(candidates), rows=len(candidates))
