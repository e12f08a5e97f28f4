"""From raw text to the batches of a pre-training run, and to its held-out part."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from sbert_search.corpus.documents import CorpusReader, FieldNames
from sbert_search.corpus.shards import TokenShards
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.models.pretraining import MaskedBatch
from sbert_search.runtime.disk import files
from sbert_search.runtime.distributed import Ranks
from sbert_search.runtime.seed import seed_all
from sbert_search.tokens.masking import MaskSettings
from sbert_search.tokens.mlm_dataset import MaskedCorpus
from sbert_search.tokens.pretokenize import write_token_shards
from sbert_search.tokens.segments import SegmentSettings
from sbert_search.tokens.tokenizer import TextTokenizer
from sbert_search.training.loop.batching import Batches, BatchingConfig, Rows
from sbert_search.training.loop.early_stopping import DevMetrics
from sbert_search.training.loop.objective import Batch
from sbert_search.training.pretraining.objectives import PretrainingObjective, Unit

Sources = str | tuple[str, ...]

_DEV_SEED = 0  # the same held-out examples and masks, whatever the seed of the run
_DEV_ROWS = 32  # of one forward pass


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """The text of a run.

    Attributes:
        train: What the command line calls SOURCE, or several of them.
        dev: The same, for the held-out metrics; None: a part of ``train``.
        held_out: Share of the documents of ``train``, its last ones, that are that part.
        dev_examples: Held-out examples that are used at most, drawn evenly.
        text_field: Field that holds the text, where it is not to be detected.
        wrapped: Whether lines inside a paragraph are broken to a width, as in plain-text books.
        folder: Where the tokens are kept; runs on one text can share it. None: in the run's folder.
    """

    train: Sources = ()
    dev: Sources | None = None
    held_out: float = 0.01
    dev_examples: int = 512
    text_field: str | None = None
    wrapped: bool = False
    folder: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"data.held_out is {self.held_out}; use 0 to below 1.")
        if self.dev_examples < 1:
            raise ConfigError(f"data.dev_examples is {self.dev_examples}; it must be at least 1.")


@dataclass(frozen=True, slots=True)
class Corpora:
    """The examples to learn from and those held out; the latter may be absent."""

    train: MaskedCorpus
    dev: MaskedCorpus | None


def prepare(
    data: DataConfig,
    tokenizer: TextTokenizer,
    segments: SegmentSettings,
    masks: MaskSettings,
    *,
    out: Path,
    seed: int,
    ranks: Ranks,
) -> Corpora:
    """Turn text into tokens on disk, once, and cut them into examples.

    Args:
        data: The text.
        tokenizer: Makes the tokens.
        segments: What an example is.
        masks: How it is masked; the held-out part always has the same masks.
        out: Folder of the run.
        seed: Of cuts, pairs and masks.
        ranks: The first one writes the tokens, the others wait for it.

    Raises:
        CorpusError: The text cannot be read, or is too little for such examples.
        ConfigError: There is no text.
    """
    if not data.train:
        raise ConfigError("There is no text to learn from: --set data.train=SOURCE.")
    folder = data.folder or out / "tokens"
    train = _shards(data, data.train, tokenizer, folder / "train", ranks)
    fixed = replace(masks, static=True)
    if data.dev is not None:
        held = _shards(data, data.dev, tokenizer, folder / "dev", ranks)
        dev = _held_out(held, tokenizer, segments, fixed, None)
        return Corpora(MaskedCorpus(train, tokenizer, segments, masks, seed=seed), dev)
    n = len(train.document_starts) - 1
    border = n - _n_held_out(n, data.held_out, segments)
    kept = MaskedCorpus(train, tokenizer, segments, masks, seed=seed, documents=(0, border))
    if border == n:
        return Corpora(kept, None)
    return Corpora(kept, _held_out(train, tokenizer, segments, fixed, (border, n)))


def make_batches(
    corpus: MaskedCorpus,
    config: BatchingConfig,
    units: Mapping[str, Unit],
    *,
    segments: bool,
    seed: int,
) -> Batches:
    """Make the batches of a run.

    Args:
        corpus: The examples.
        config: How many make a step.
        units: What each loss of the objective is a sum over.
        segments: Whether the encoder tells segments apart.
        seed: Of the order.
    """

    def collate(rows: Rows, epoch: int) -> Batch:
        return masked_batch(corpus, rows, units, segments=segments, epoch=epoch)

    identity = json.dumps(corpus.identity, sort_keys=True).encode()
    fingerprint = hashlib.sha256(identity).hexdigest()
    return Batches(corpus.lengths, collate, config, seed=seed, fingerprint=fingerprint)


def masked_batch(
    corpus: MaskedCorpus,
    rows: Rows,
    units: Mapping[str, Unit],
    *,
    segments: bool,
    epoch: int = 0,
) -> Batch:
    """Read examples as the batch of an objective."""
    given = MaskedBatch.of(corpus.read(rows, epoch), segments=segments)
    sizes: dict[Unit, int] = {
        "masked": len(given.labels),
        "texts": len(rows),
        "tokens": given.tokens.total,
    }
    return Batch(given, rows, {name: sizes[unit] for name, unit in units.items()})


def dev_metric_names(objective: PretrainingObjective) -> tuple[str, ...]:
    """Name the metrics that `dev_evaluation` gives."""
    more = ("perplexity",) if "mlm" in objective.units else ()
    return (*objective.units, *objective.accuracies, *more)


def dev_evaluation(
    corpus: MaskedCorpus, objective: PretrainingObjective, most: int, *, segments: bool
) -> DevMetrics:
    """Make the function that judges a model on held-out examples.

    Args:
        corpus: The examples.
        objective: Its losses and metrics are averaged over all of them.
        most: Examples that are used, drawn evenly.
        segments: Whether the encoder tells segments apart.

    Returns:
        A function of the model that gives each loss in nats, each accuracy, and the perplexity.
    """
    step = max(1, math.ceil(len(corpus) / most))
    rows = np.arange(0, len(corpus), step)
    rows = rows[np.argsort(corpus.lengths[rows], kind="stable")]
    parts = [rows[start : start + _DEV_ROWS] for start in range(0, len(rows), _DEV_ROWS)]

    def evaluate(model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        sums: dict[str, tuple[float, float]] = {}
        for number, part in enumerate(parts):
            seed_all(_DEV_SEED, "sample", number)  # what a generator draws
            batch = masked_batch(corpus, part, objective.units, segments=segments)
            losses = objective(model, batch.to(device))
            for name, (total, count) in {**losses.sums, **losses.metrics}.items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + float(total), before[1] + float(count))
        metrics = {name: total / max(count, 1) for name, (total, count) in sums.items()}
        if "mlm" in metrics:
            metrics["perplexity"] = math.exp(min(metrics["mlm"], 700))
        return metrics

    return DevMetrics(dev_metric_names(objective), evaluate)


def _shards(
    data: DataConfig, sources: Sources, tokenizer: TextTokenizer, folder: Path, ranks: Ranks
) -> TokenShards:
    if ranks.first:
        if not folder.parent.is_dir():
            folder.parent.mkdir(parents=True)
            files.disk.fsync_folder(folder.parent.parent)
        fields = FieldNames(text=data.text_field)
        reader = CorpusReader([sources] if isinstance(sources, str) else sources, fields=fields)
        write_token_shards(reader, tokenizer.backend, folder, wrapped=data.wrapped)
    ranks.from_first([0.0])  # the others wait here
    return TokenShards(folder)


def _held_out(
    shards: TokenShards,
    tokenizer: TextTokenizer,
    segments: SegmentSettings,
    masks: MaskSettings,
    documents: tuple[int, int] | None,
) -> MaskedCorpus:
    try:
        return MaskedCorpus(shards, tokenizer, segments, masks, seed=_DEV_SEED, documents=documents)
    except CorpusError as error:
        raise CorpusError(
            f"The held-out text: {error} Or name other text by data.dev, or a larger data.held_out."
        ) from error


def _n_held_out(documents: int, share: float, segments: SegmentSettings) -> int:
    """Count the documents to hold out: enough to draw pairs from, in both parts."""
    least = 2 if segments.kind == "nsp" else 1
    if not share:
        return 0
    n = max(round(share * documents), least)
    if documents - n < least:
        raise CorpusError(
            f"There are {documents} documents, too few to learn from some and hold others out; "
            "name held-out text by data.dev, or set data.held_out=0."
        )
    return n
