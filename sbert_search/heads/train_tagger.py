"""Train a tagger: a classifier of tokens whose labels mark entities."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from sbert_search.base.seed import seed_all
from sbert_search.errors import ConfigError, CorpusError, TrainingError
from sbert_search.heads.calibration import fit_temperature
from sbert_search.heads.labelled_spans import read_tagged_tokens
from sbert_search.heads.training import (
    ClassWeights,
    HeadDataConfig,
    HeadInputs,
    HeadRecipe,
    HeadTask,
    class_weights,
    read_split,
    train_only,
)
from sbert_search.heads.training_rows import WordRows, predict_emissions, tag_metrics
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.logit_losses import class_cross_entropy
from sbert_search.models.side_file import SideFile
from sbert_search.models.token_classifier import TokenClassifier
from sbert_search.tag_schemes import (
    OUTSIDE,
    Entity,
    Scheme,
    entities,
    split_tag,
    tag_names,
    tags_of,
)
from sbert_search.text.labelled.records import TaggedTokens
from sbert_search.train.loop.loop import Result
from sbert_search.train.loop.objective import Rows
from sbert_search.train.loop.schedule import DevMetrics, fingerprint_of
from sbert_search.train.loop.step import Penalties
from sbert_search.train.run import start_run


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
    """All settings of a training run of a tagger.

    Example:
        >>> changes = ["data.train=tags.jsonl", "crf=true"]
        >>> load_recipe(TagRecipe, "tag", "wnut17", changes).crf
        True
    """

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

    Example:
        >>> few = ["budget={steps=2}", "max_len=24", "model=my-model", "data.train=tags.jsonl"]
        >>> recipe = load_recipe(TagRecipe, "tag", "wnut17", few)
        >>> train_tagger(recipe, Path("run")).stopped
        'budget'
    """
    with start_run(recipe, out, resume=resume, allow_inexact=allow_inexact) as run:
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
        return run.train(_Tagging(recipe, model, rows).training(run, dev, recipe.data.files))


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


class _Tagging(HeadTask[TaggedTokens, TokenClassifier]):
    kind, loss = "tag", "tags"

    def __init__(
        self, recipe: TagRecipe, model: TokenClassifier, rows: Sequence[TaggedTokens]
    ) -> None:
        self.calibrates = not recipe.crf
        self.word_rows = WordRows.of(model, rows)
        used = [n for n, words in enumerate(self.word_rows.words) if len(words)]
        if not used:
            raise CorpusError(
                f"{rows[0].source}: the tokenizer of the model makes no token of any sentence; use "
                "a model for the language of the data."
            )
        if len(used) < len(rows):  # nothing can be learned from a sentence without tokens
            rows = [rows[n] for n in used]
            self.word_rows = WordRows.of(model, rows)
        self.tags = tag_targets(model, rows, self.word_rows)
        self.n_terms = np.array([len(own) for own in self.tags])
        flat = np.concatenate(self.tags)
        self.weights = class_weights(recipe.class_weights, "class", model.labels, flat)
        self.crf = [] if model.crf is None else [*model.crf.parameters()]
        if recipe.tune != "full":
            head = [*model.inner.parameters(), *model.out.parameters()]
            train_only(model, [*head, *self.crf])
        super().__init__(recipe, model, rows, self.word_rows.table, flat, self.n_terms)

    def inputs(self, rows: Rows) -> HeadInputs:
        return self.word_rows.take(rows)

    def targets_of(self, rows: Rows) -> Tensor:
        own = [torch.from_numpy(self.tags[row]) for row in rows.tolist()]
        return pad_sequence(own, batch_first=True, padding_value=-1)

    def sum_losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        inside, emissions = targets >= 0, logits.float()  # inside: (sentences, longest)
        crf = self.model.crf
        if crf is None:
            scale = None if self.weights is None else self.weights.to(emissions.device)
            return class_cross_entropy(emissions, targets[inside], scale).sum(), len(emissions)
        padded = emissions.new_zeros(*targets.shape, emissions.shape[1])
        padded = padded.masked_scatter(inside.unsqueeze(2), emissions)
        total = crf.loss(padded, targets.clamp(min=0), inside.sum(dim=1)).sum()
        return total, len(emissions)

    def penalties(self, penalty: float) -> Penalties:
        return {self.model.out.weight: penalty, **dict.fromkeys(self.crf, 1.0)}

    def dev_metrics(self, dev: Sequence[TaggedTokens]) -> DevMetrics:
        rows = WordRows.of(self.model, dev)
        known = zip(dev, rows.words, strict=True)
        if all(row.tags[word] == OUTSIDE for row, words in known for word in words):
            raise CorpusError(
                f"{dev[0].source}: in the {len(dev):,} dev rows from here on, no word that has a "
                "token is in an entity, so every model would have the dev metric 0. Give dev data "
                "with entities, or train without: --set data.held_out=0, and no data.dev."
            )

        def metrics(module: nn.Module) -> dict[str, float]:
            assert isinstance(module, TokenClassifier)
            return tag_metrics(module, dev, rows)

        names = ("f1", "precision", "recall")
        return DevMetrics(names, metrics, fingerprint_of(dev), rows=len(dev))

    def fit(self, side: SideFile, model: TokenClassifier, dev: Sequence[TaggedTokens]) -> SideFile:
        rows = WordRows.of(model, dev)
        logits, tags = predict_emissions(model, rows), tag_targets(model, dev, rows)
        temperature = fit_temperature(np.concatenate(logits), np.concatenate(tags))
        return replace(side, temperature=temperature)


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
