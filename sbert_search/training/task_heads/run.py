"""The part of a training run that all task heads share: the loop, dev metrics, publishing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from sbert_search.config import to_mapping
from sbert_search.runtime.distributed import Ranks, join_ranks
from sbert_search.training.loop.batching import Batches
from sbert_search.training.loop.early_stopping import DevMetrics
from sbert_search.training.loop.loop import Result
from sbert_search.training.loop.loop import train as run_loop
from sbert_search.training.loop.objective import Objective
from sbert_search.training.loop.resume import refuse_restart
from sbert_search.training.model_card import MODEL, publish
from sbert_search.training.recipe import Kind
from sbert_search.training.task_heads.settings import HeadDataConfig, HeadRecipe


@dataclass(frozen=True, eq=False)
class HeadRun:
    """What the loop needs to train one task head.

    Attributes:
        kind: Kind of recipe.
        model: The model that is trained.
        objective: The loss.
        batches: The training data.
        n_rows: Number of training rows, for the model card.
        dev: Computes the dev metrics; None: there is no dev data.
        save_model: Writes the model into a new folder.
        calibrate: Changes settings in the published folder, which dev data decide.
    """

    kind: Kind
    model: nn.Module
    objective: Objective
    batches: Batches
    n_rows: int
    dev: DevMetrics | None
    save_model: Callable[[Path], object]
    calibrate: Callable[[Path], None] | None


@contextmanager
def starting(recipe: HeadRecipe, out: Path, *, resume: bool) -> Iterator[Ranks]:
    """Refuse to overwrite another run, and join the ranks."""
    if not resume:
        refuse_restart(out, to_mapping(recipe))
    with join_ranks() as ranks:
        yield ranks


def run_head(
    run: HeadRun,
    recipe: HeadRecipe,
    data: HeadDataConfig,
    out: Path,
    ranks: Ranks,
    *,
    resume: bool,
    allow_inexact: bool,
) -> Result:
    """Train a task head and publish the best model, or without dev data the last one."""
    result = run_loop(
        run.objective,
        run.batches,
        recipe,
        model=run.model,
        out=out,
        evaluate=run.dev,
        save_model=run.save_model,
        recipe=to_mapping(recipe),
        resume=resume,
        allow_inexact=allow_inexact,
    )
    if ranks.first:
        publish(
            result,
            out / MODEL,
            data.files,
            to_mapping(recipe),
            run.n_rows,
            kind=run.kind,
            finish=run.calibrate,
        )
    ranks.wait()
    return result
