"""Turn raw text into training batches and held-out examples for pre-training."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from torch import nn

from sbert_search.base import files
from sbert_search.base.distributed import Ranks
from sbert_search.base.seed import seed_all
from sbert_search.declared import Bounds, check
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.models.pretraining import MaskedBatch
from sbert_search.text.documents import CorpusReader, FieldNames
from sbert_search.text.tokens.masking import MaskSettings
from sbert_search.text.tokens.mlm_dataset import MaskedCorpus
from sbert_search.text.tokens.segments import SegmentSettings
from sbert_search.text.tokens.shard_writing import write_token_shards
from sbert_search.text.tokens.shards import TokenShards
from sbert_search.text.tokens.tokenizer import TextTokenizer
from sbert_search.train.loop.objective import Batch, Batches, BatchingConfig, Rows
from sbert_search.train.loop.schedule import DevMetrics
from sbert_search.train.pretraining_objectives import PretrainingObjective, Unit

Sources = str | tuple[str, ...]

_DEV_SEED = 0  # the same held-out examples and masks for every seed of a run
_DEV_ROWS = 32  # held-out examples per forward pass


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """The training and held-out text of a run.

    Attributes:
        train: One or several sources of text, in the form of SOURCE on the command line.
        dev: Sources of the held-out text; None: the last documents of ``train``.
        held_out: Share of the documents of ``train`` to hold out if ``dev`` is None; 0: none.
        dev_examples: Maximum number of held-out examples, chosen at even intervals.
        text_field: Name of the text field; None: detected.
        wrapped: Whether lines inside a paragraph are wrapped, as in plain-text books.
        folder: Where the tokens are stored; runs on the same text can share it. None: inside the
            run's folder.
    """

    train: Sources = ()
    dev: Sources | None = None
    held_out: Annotated[float, Bounds(0, below=1)] = 0.01
    dev_examples: Annotated[int, Bounds(1)] = 512
    text_field: str | None = None
    wrapped: bool = False
    folder: Path | None = None

    def __post_init__(self) -> None:
        check(self, table="data.")


@dataclass(frozen=True, slots=True)
class Corpora:
    """Training examples, and held-out examples if there are any."""

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
    """Tokenise the text to disk, unless the tokens are there, and make examples from the tokens.

    The first rank writes the tokens, the others wait for it. ``seed`` is of the training text; the
    held-out text has a fixed one, and the same masks in every evaluation.
    """
    if not data.train:
        raise ConfigError("No training text; name it with --set data.train=SOURCE.")
    folder = data.folder or out / "tokens"
    train = _shards(data, data.train, tokenizer, folder / "train", ranks)
    fixed = replace(masks, static=True)
    if data.dev is not None:
        held = _shards(data, data.dev, tokenizer, folder / "dev", ranks)
        corpus = MaskedCorpus(train, tokenizer, segments, masks, seed=seed)
        return Corpora(corpus, _held_out(held, tokenizer, segments, fixed, None))
    n = len(train.document_starts) - 1
    n_train = n - _n_held_out(n, data.held_out, segments)
    corpus = MaskedCorpus(train, tokenizer, segments, masks, seed=seed, documents=(0, n_train))
    if n_train == n:
        return Corpora(corpus, None)
    return Corpora(corpus, _held_out(train, tokenizer, segments, fixed, (n_train, n)))


def make_batches(
    corpus: MaskedCorpus,
    config: BatchingConfig,
    units: Mapping[str, Unit],
    *,
    segments: bool,
    seed: int,
    teacher: str = "",
) -> Batches:
    """Make the batches of a run; ``teacher`` is a checksum of its weights, "" if there is none."""

    def collate(rows: Rows, epoch: int) -> Batch:
        return masked_batch(corpus, rows, units, segments=segments, epoch=epoch)

    checksum = f"{_checksum(corpus)}{teacher}"
    return Batches(corpus.lengths, collate, config, seed=seed, fingerprint=checksum)


def _checksum(corpus: MaskedCorpus) -> str:
    return hashlib.sha256(json.dumps(corpus.identity, sort_keys=True).encode()).hexdigest()


def masked_batch(
    corpus: MaskedCorpus,
    rows: Rows,
    units: Mapping[str, Unit],
    *,
    segments: bool,
    epoch: int = 0,
) -> Batch:
    """Read examples, mask them and put them into one batch."""
    inputs = MaskedBatch.of(corpus.read(rows, epoch), segments=segments)
    sizes: dict[Unit, int] = {
        "masked": len(inputs.labels),
        "texts": len(rows),
        "tokens": inputs.tokens.total,
    }
    return Batch(inputs, rows, {name: sizes[unit] for name, unit in units.items()})


def dev_metric_names(objective: PretrainingObjective) -> tuple[str, ...]:
    """Return the names of the metrics of `dev_evaluation`."""
    more = ("perplexity",) if "mlm" in objective.units else ()
    return (*objective.units, *objective.accuracies, *more)


def dev_losses(objective: PretrainingObjective) -> frozenset[str]:
    """Return the names of those metrics of `dev_evaluation` of which a lower value is better."""
    return frozenset(dev_metric_names(objective)).difference(objective.accuracies)


def dev_evaluation(
    corpus: MaskedCorpus, objective: PretrainingObjective, most: int, *, segments: bool
) -> DevMetrics:
    """Make the function that evaluates a model on at most ``most`` examples, at even intervals.

    It returns each loss and accuracy, averaged over its unit, and of an MLM loss the perplexity.
    All losses are in nats, except the cosine loss.
    """
    step = max(1, math.ceil(len(corpus) / most))
    rows = np.arange(0, len(corpus), step)
    rows = rows[np.argsort(corpus.lengths[rows], kind="stable")]
    parts = [rows[start : start + _DEV_ROWS] for start in range(0, len(rows), _DEV_ROWS)]
    counts = (
        masked_batch(corpus, part, objective.units, segments=segments).counts for part in parts
    )
    if "mlm" in objective.units and not any(count["mlm"] for count in counts):
        raise CorpusError(
            "No token of the held-out text is masked, so it measures nothing; set data.held_out to "
            "a larger share, or to 0, or set data.dev to held-out text."
        )

    def evaluate(model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        sums: dict[str, tuple[float, float]] = {}
        for number, part in enumerate(parts):
            seed_all(_DEV_SEED, "sample", number)  # for sampled replacement tokens
            batch = masked_batch(corpus, part, objective.units, segments=segments)
            losses = objective(model, batch.to(device))
            for name, (total, count) in {**losses.sums, **losses.metrics}.items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + float(total), before[1] + float(count))
        metrics = {name: total / max(count, 1) for name, (total, count) in sums.items()}
        if "mlm" in metrics:
            metrics["perplexity"] = math.exp(min(metrics["mlm"], 700))  # exp overflows beyond 709
        return metrics

    names = dev_metric_names(objective)
    return DevMetrics(names, evaluate, _checksum(corpus), dev_losses(objective))


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
    ranks.wait()
    if not (ranks.first or folder.is_dir()):
        raise CorpusError(
            f"Rank {ranks.rank} of {ranks.world} does not see {folder}, which rank 0 wrote. Put "
            "--out or data.folder on a file system that all machines share."
        )
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
        by_share = "" if documents is None else ", or raise data.held_out"
        raise CorpusError(
            f"The held-out text: {error} Or set data.dev to other text{by_share}."
        ) from error


def _n_held_out(documents: int, share: float, segments: SegmentSettings) -> int:
    least = 2 if segments.kind == "nsp" else 1  # next-sentence pairs need two documents
    if not share:
        return 0
    n = max(round(share * documents), least)
    if documents - n < least:
        raise CorpusError(
            f"There are {documents} documents, too few to train on some and hold others out; "
            "set data.dev to held-out text, or data.held_out=0."
        )
    return n
