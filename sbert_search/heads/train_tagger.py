"""Train a tagger: a classifier of tokens whose labels mark entities."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from sbert_search.base.device import resolve_device
from sbert_search.base.distributed import Ranks
from sbert_search.base.seed import seed_all
from sbert_search.errors import ConfigError, CorpusError, TrainingError
from sbert_search.heads.calibration import fit_temperature
from sbert_search.heads.labelled_spans import read_tagged_tokens
from sbert_search.heads.training import (
    CachedStates,
    ClassWeights,
    HeadDataConfig,
    HeadInputs,
    HeadRecipe,
    class_weights,
    head_batches,
    head_objective,
    read_split,
    train_only,
)
from sbert_search.heads.training_rows import WordRows, predict_emissions, tag_metrics
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.logit_losses import class_cross_entropy
from sbert_search.models.side_file import SideFile, read_side_file, write_side_file
from sbert_search.models.token_classifier import TokenClassifier
from sbert_search.records import TaggedTokens
from sbert_search.tag_schemes import (
    OUTSIDE,
    Entity,
    Scheme,
    entities,
    split_tag,
    tag_names,
    tags_of,
)
from sbert_search.train.loop.loop import Result
from sbert_search.train.loop.objective import Rows
from sbert_search.train.loop.schedule import DevMetrics, fingerprint_of
from sbert_search.train.loop.step import Penalties
from sbert_search.train.run import Training, start_run, train_and_publish

_LOSS = "tags"


@dataclass(frozen=True, kw_only=True, slots=True)
class TagColumns:
    """Names of columns; None: the usual names, listed in `heads.labelled_spans`."""

    tokens: str | None = None  # list of tokens
    tags: str | None = None  # list of tags


@dataclass(frozen=True, kw_only=True, slots=True)
class TagDataConfig(HeadDataConfig):
    """The data files of a tagger, and how their rows are read."""

    columns: TagColumns = field(default_factory=TagColumns)
    scheme: Scheme | None = None  # scheme of the files; None: BIO, or BILOU if a tag has L- or U-
    to: Scheme = "bio"  # scheme of the model
    bad_tags: Literal["refuse", "repair"] = "refuse"  # what to do if tags break the scheme
    types: tuple[str, ...] = ()  # types of entities; (): all types of the files


@dataclass(frozen=True, kw_only=True)
class TagRecipe(HeadRecipe):
    """All settings of a training run of a tagger."""

    data: TagDataConfig
    crf: bool = False  # score neighbouring tags, and forbid those that the scheme forbids
    class_weights: ClassWeights = "none"  # weights of tags in the loss, or a list of them

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.crf and self.class_weights != "none":
            raise ConfigError("class_weights has no effect on a CRF; set crf=false.")


def train_tagger(
    recipe: TagRecipe, out: Path, /, *, resume: bool = False, allow_inexact: bool = False
) -> Result:
    """Train a tagger of entities.

    The model with the best dev metric, or without dev data the last one, is written to
    ``out/model``, a folder that transformers loads as a token classifier. With dev data and
    without a CRF, the temperature of its probabilities is fitted to these data.

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
        TrainingError: As for `train.loop.loop.train`; or no token is in an entity, or an entity
            has a type that is not in ``data.types``.
        CheckpointError: As for `train.loop.loop.train`.
    """
    with start_run(recipe, out, resume=resume) as (ranks, resume):
        rows, dev = _read(recipe)
        labels = _labels(recipe, [*rows, *dev])
        seed_all(recipe.seed, "init")
        model = TokenClassifier.start(
            resolve_model(recipe.model).path,
            labels=labels,
            max_len=recipe.max_len,
            side=SideFile(scheme=recipe.data.to, crf=recipe.crf),
            random_weights=recipe.random_weights,
        )
        training = _training(recipe, model, rows, dev, out, ranks)
        return train_and_publish(
            training, recipe, out, ranks, resume=resume, allow_inexact=allow_inexact
        )


def _read(recipe: TagRecipe) -> tuple[list[TaggedTokens], list[TaggedTokens]]:
    data = recipe.data

    def read(path: Path) -> list[TaggedTokens]:
        return read_tagged_tokens(
            path,
            tokens=data.columns.tokens,
            tags=data.columns.tags,
            scheme=data.scheme,
            to=data.to,
            bad_tags=data.bad_tags,
        )

    return read_split(read, lambda row: " ".join(row.tokens), data)


def _labels(recipe: TagRecipe, rows: Sequence[TaggedTokens]) -> tuple[str, ...]:
    sources = {split_tag(tag)[1]: row.source for row in rows for tag in row.tags if tag != OUTSIDE}
    if not sources:
        raise TrainingError(
            f"No token of the {len(rows):,} rows from {rows[0].source} on is in an entity. Add "
            "rows with tags such as B-person."
        )
    types = recipe.data.types
    for kind, source in sources.items():
        if types and kind not in types:
            raise TrainingError(
                f"{source}: the type {kind!r} is not in data.types ({', '.join(types)}). Add it, "
                "or remove data.types to take all types of the files."
            )
    return tag_names(types or sources, recipe.data.to)


def _training(
    recipe: TagRecipe,
    model: TokenClassifier,
    rows: Sequence[TaggedTokens],
    dev: Sequence[TaggedTokens],
    out: Path,
    ranks: Ranks,
) -> Training:
    word_rows = WordRows.of(model, rows)
    used = [n for n, words in enumerate(word_rows.words) if len(words)]
    if not used:
        raise CorpusError(
            f"{rows[0].source}: the tokenizer of the model makes no token of any sentence; use a "
            "model for the language of the data."
        )
    if len(used) < len(rows):  # nothing can be learned from a sentence without tokens
        rows = [rows[n] for n in used]
        word_rows = WordRows.of(model, rows)
    targets = tag_targets(model, rows, word_rows)
    n_words = np.array([len(own) for own in targets])
    flat = np.concatenate(targets)
    weights = class_weights(recipe.class_weights, "class", model.labels, flat)
    states: CachedStates | None = None
    penalties: Penalties | None = None
    if recipe.tune != "full":
        crf = [] if model.crf is None else [*model.crf.parameters()]
        train_only(model, [*model.out.parameters(), *crf])
        lengths = word_rows.table.lengths
        states = CachedStates.compute(recipe, model, word_rows.take, lengths, n_words, out, ranks)
        if recipe.tune == "probe":
            penalties = {model.out.weight: states.penalty(), **dict.fromkeys(crf, 1.0)}

    def collate(rows: Rows) -> tuple[HeadInputs, Tensor]:
        inputs = word_rows.take(rows) if states is None else HeadInputs(states=states.take(rows))
        own = [torch.from_numpy(targets[row]) for row in rows.tolist()]
        return inputs, pad_sequence(own, batch_first=True, padding_value=-1)

    def sum_losses(emissions: Tensor, goal: Tensor) -> tuple[Tensor, int]:
        inside, emissions = goal >= 0, emissions.float()  # inside: (sentences, longest)
        if model.crf is None:
            scale = None if weights is None else weights.to(emissions.device)
            return class_cross_entropy(emissions, goal[inside], scale).sum(), len(emissions)
        padded = emissions.new_zeros(*goal.shape, emissions.shape[1])
        padded = padded.masked_scatter(inside.unsqueeze(2), emissions)
        total = model.crf.loss(padded, goal.clamp(min=0), inside.sum(dim=1)).sum()
        return total, len(emissions)

    return Training(
        kind="tag",
        model=model,
        objective=head_objective(recipe, _LOSS, model.encoder, sum_losses),
        batches=head_batches(recipe, _LOSS, word_rows.table, flat, states, collate, n_words),
        files=recipe.data.files,
        n_rows=len(rows),
        dev=_evaluation(model, dev) if dev else None,
        save_model=model.save,
        penalties=penalties,
        calibrate=partial(_calibrate, dev, recipe.device) if dev and not recipe.crf else None,
    )


def tag_targets(
    model: TokenClassifier, rows: Sequence[TaggedTokens], word_rows: WordRows
) -> list[NDArray[np.int64]]:
    """Return the label indices of each sentence's words that have a token, int64 (words,).

    Words without a token leave their entities, and the rest is tagged again. So the tags follow the
    scheme, which a CRF requires.
    """
    number = {label: n for n, label in enumerate(model.labels)}
    found = []
    for row, words in zip(rows, word_rows.words, strict=True):
        tags: Sequence[str] = row.tags
        if len(words) < len(tags):
            assert model.scheme is not None
            tags = _keep_words(tags, words.tolist(), model.scheme)
        found.append(np.array([number[tag] for tag in tags], dtype=np.int64))
    return found


def _keep_words(tags: Sequence[str], words: Sequence[int], scheme: Scheme) -> tuple[str, ...]:
    """Return tags of only the words with the indices ``words``; entities lose their other words."""
    spans = [
        (kind, bisect_left(words, start), bisect_left(words, end))
        for kind, start, end in entities(tags, scheme)
    ]
    kept = [Entity(*span) for span in spans if span[1] < span[2]]
    return tags_of(kept, len(words), scheme)


def _evaluation(model: TokenClassifier, dev: Sequence[TaggedTokens]) -> DevMetrics:
    rows = WordRows.of(model, dev)
    known = zip(dev, rows.words, strict=True)
    if all(row.tags[word] == OUTSIDE for row, words in known for word in words):
        raise CorpusError(
            f"{dev[0].source}: in the {len(dev):,} dev rows from here on, no word that has a token "
            "is in an entity, so every model would have the dev metric 0. Give dev data with "
            "entities, or train without: --set data.held_out=0, and no data.dev."
        )

    def metrics(module: nn.Module) -> dict[str, float]:
        assert isinstance(module, TokenClassifier)
        return tag_metrics(module, dev, rows)

    names = ("f1", "precision", "recall")
    return DevMetrics(names, metrics, fingerprint_of(dev), rows=len(dev))


def _calibrate(dev: Sequence[TaggedTokens], device: str, folder: Path) -> None:
    model = TokenClassifier.load(folder)
    rows = WordRows.of(model, dev)
    logits = np.concatenate(predict_emissions(model.to(resolve_device(device)), rows))
    temperature = fit_temperature(logits, np.concatenate(tag_targets(model, dev, rows)), "class")
    write_side_file(folder, replace(read_side_file(folder), temperature=temperature))
