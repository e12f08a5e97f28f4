"""Start a run, train and publish, for bi-encoders, cross-encoders and task heads alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from sbert_search.base.distributed import Ranks, join_ranks
from sbert_search.config import to_mapping
from sbert_search.training.loop.agreement import require_agreement, resumes
from sbert_search.training.loop.batching import Batches
from sbert_search.training.loop.early_stopping import DevMetrics
from sbert_search.training.loop.loop import Result, TrainConfig
from sbert_search.training.loop.loop import train as run_loop
from sbert_search.training.loop.objective import InBatchObjective, Objective
from sbert_search.training.loop.resume import refuse_restart
from sbert_search.training.loop.step import Penalties
from sbert_search.training.model_card import MODEL, describe_data, publish
from sbert_search.training.recipe import Kind
from sbert_search.training.run_lock import sole_run


@dataclass(frozen=True, eq=False, kw_only=True)
class Training:
    """What a run trains, with which loss and data, and how its model is published.

    Attributes:
        kind: Kind of the model.
        model: The model that is trained.
        objective: The loss.
        batches: The training data.
        files: Files that the training data come from, for the model card.
        n_rows: Number of training rows, for the model card.
        dev: Computes the dev metrics; None: there are no dev data.
        penalties: As for `training.loop.loop.train`.
        save_model: Writes the model into a new folder.
        calibrate: Fits settings such as a temperature to the dev data, if these are enough to
            choose by, and stores them in the published folder; None: there are no such settings.
    """

    kind: Kind
    model: nn.Module
    objective: Objective | InBatchObjective
    batches: Batches
    files: Sequence[Path]
    n_rows: int
    dev: DevMetrics | None
    save_model: Callable[[Path], object]
    penalties: Penalties | None = None
    calibrate: Callable[[Path], None] | None = None


@contextmanager
def starting(recipe: TrainConfig, out: Path, *, resume: bool) -> Iterator[tuple[Ranks, bool]]:
    """Join the processes of this run (its ranks), and refuse to overwrite another run.

    The folder is locked before its checkpoints are looked up, so that no other run adds one later.

    Yields:
        The ranks, and whether the run is resumed: ``resume``, or torchrun may have restarted it.

    Raises:
        CheckpointError: Another run writes to the folder, or the folder holds checkpoints.
        ConfigError: As for `refuse_restart`.
        TrainingError: The ranks have different recipes or folders, or do not find each other.
    """
    with join_ranks() as ranks, sole_run(out, ranks):
        require_agreement(ranks, {"recipe": to_mapping(recipe), "out": str(out), "resume": resume})
        resume = resume or resumes(ranks, out)
        if not resume:
            refuse_restart(out, to_mapping(recipe))
        yield ranks, resume


def train_and_publish(
    training: Training,
    recipe: TrainConfig,
    out: Path,
    ranks: Ranks,
    *,
    resume: bool,
    allow_inexact: bool,
) -> Result:
    """Train a model and publish it in ``out/model``: the best one, or else the last one.

    The last one is published if there are no dev data, or too few to choose by.

    Raises:
        TrainingError: As for `training.loop.loop.train`.
        CheckpointError: As for `training.loop.loop.train`, or as for `publish`.
        ConfigError: As for `training.loop.loop.train`.
    """
    # Files are hashed before the run, since they may be changed or deleted while it runs.
    data = describe_data(training.files, to_mapping(recipe)) if ranks.first else []
    result = run_loop(
        training.objective,
        training.batches,
        recipe,
        model=training.model,
        out=out,
        evaluate=training.dev,
        save_model=training.save_model,
        penalties=training.penalties,
        recipe=to_mapping(recipe),
        resume=resume,
        allow_inexact=allow_inexact,
    )
    if ranks.first:
        publish(
            result,
            out / MODEL,
            data,
            to_mapping(recipe),
            training.n_rows,
            kind=training.kind,
            finish=training.calibrate if training.dev and training.dev.can_choose else None,
        )
    ranks.wait()
    return result
