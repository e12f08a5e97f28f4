"""Train a model that marks the answer to a question in a text, or says that there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sbert_search.base.device import resolve_device
from sbert_search.base.distributed import Ranks
from sbert_search.base.seed import seed_all
from sbert_search.errors import CorpusError
from sbert_search.heads.training import adversarial
from sbert_search.heads.training.answer_scores import find_answers, score_answers
from sbert_search.heads.training.answer_windows import WindowConfig, WindowInputs, WindowRows
from sbert_search.heads.training.frozen import CachedStates, train_only
from sbert_search.heads.training.settings import HeadDataConfig, HeadRecipe, split_rows
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.losses.logits import span_cross_entropy
from sbert_search.models.question_answerer import QuestionAnswerer
from sbert_search.models.side_file import SideFile, read_side_file, write_side_file
from sbert_search.records import Question
from sbert_search.text.labelled.spans import read_questions
from sbert_search.train.data.token_table import TokenTable
from sbert_search.train.loop.batching import Batches, Rows
from sbert_search.train.loop.loop import Result
from sbert_search.train.loop.objective import Batch, Losses, Objective, Sum
from sbert_search.train.loop.schedule import DevMetrics, fingerprint_of
from sbert_search.train.loop.step import Penalties
from sbert_search.train.run import Training, starting, train_and_publish

_LOSS = "span"


@dataclass(frozen=True, kw_only=True)
class AnswerRecipe(HeadRecipe):
    """All settings of a training run of a model that answers questions."""

    data: HeadDataConfig
    windows: WindowConfig = field(default_factory=WindowConfig)


def train_answerer(
    recipe: AnswerRecipe, out: Path, /, *, resume: bool = False, allow_inexact: bool = False
) -> Result:
    """Train a model that marks answers in texts.

    The model with the best dev metric, or without dev data the last one, is written to
    ``out/model``, a folder that transformers loads as a model of question answering. If some
    questions of the dev data have no answer, the threshold of "no answer" with the highest F1 on
    the dev data is stored with the model. If all have an answer, the stored threshold is so high
    that the model answers every question.

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
        TrainingError: As for `train.loop.loop.train`.
        CheckpointError: As for `train.loop.loop.train`.
    """
    with starting(recipe, out, resume=resume) as (ranks, resume):
        rows, dev = _read(recipe.data)
        seed_all(recipe.seed, "init")
        model = QuestionAnswerer.start(
            resolve_model(recipe.model).path,
            labels=("LABEL_0", "LABEL_1"),
            max_len=recipe.max_len,
            side=SideFile(
                overlap=recipe.windows.overlap,
                max_question=recipe.windows.max_question,
                max_answer=recipe.windows.max_answer,
            ),
            random_weights=recipe.random_weights,
        )
        training = _training(recipe, model, rows, dev, out, ranks)
        return train_and_publish(
            training, recipe, out, ranks, resume=resume, allow_inexact=allow_inexact
        )


def _read(data: HeadDataConfig) -> tuple[list[Question], list[Question]]:
    """Read training and dev questions; of one article, all questions are held out, or none is."""
    rows = [row for path in data.files for row in read_questions(path)]
    rows, held = split_rows(rows, [row.title or row.context for row in rows], data)
    return rows, held if data.dev is None else read_questions(data.dev)


class AnswerBatches(Batches):
    """Batches of windows; with a frozen encoder, also of the hidden states of their tokens."""

    def __init__(
        self,
        recipe: AnswerRecipe,
        table: TokenTable,
        targets: NDArray[np.int64],
        states: CachedStates | None = None,
    ) -> None:
        """Plan batches.

        Args:
            recipe: All settings.
            table: Token ids of the windows.
            targets: First and last token of the answer in each window, (windows, 2).
            states: Hidden states of the tokens of all windows, from the frozen encoder; None: the
                encoder is trained too.
        """
        self.table, self.targets, self.states = table, targets, states
        self.names = [_LOSS] + [adversarial.LOSS] * (recipe.adversarial.kind != "none")
        fingerprint = table.fingerprint(targets)
        if states is not None:
            fingerprint = states.fingerprint(fingerprint)
        super().__init__(
            table.lengths, self._batch, recipe.batching, seed=recipe.seed, fingerprint=fingerprint
        )

    def _batch(self, rows: Rows, epoch: int) -> Batch:
        rows = rows[np.argsort(self.lengths[rows], kind="stable")]
        states = None if self.states is None else self.states.take(rows)
        inputs = WindowInputs(self.table.pack(rows), states)
        counts = {name: len(rows) for name in self.names}
        return Batch(inputs, rows, counts, torch.from_numpy(self.targets[rows]))


def _training(
    recipe: AnswerRecipe,
    model: QuestionAnswerer,
    rows: Sequence[Question],
    dev: Sequence[Question],
    out: Path,
    ranks: Ranks,
) -> Training:
    windows = WindowRows.of(model, rows, recipe.windows)
    states: CachedStates | None = None
    penalties: Penalties | None = None
    if recipe.tune != "full":
        train_only(model, [*model.out.parameters()])
        device = resolve_device(recipe.device)
        model.to(device).eval()
        states = CachedStates.compute(
            lambda part: model.states(windows.table.pack(part).to(device)),
            windows.table.lengths,
            windows.table.lengths,
            model.encoder,
            out / f"states-{ranks.rank}.npy",
        )
        if recipe.tune == "probe":
            # The loss is the mean of those of start and end; the penalty is for the sum.
            penalties = {model.out.weight: states.penalty() / 2}
    return Training(
        kind="qa",
        model=model,
        objective=_objective(recipe),
        batches=AnswerBatches(recipe, windows.table, windows.targets(rows), states),
        files=recipe.data.files,
        n_rows=len(rows),
        dev=_evaluation(model, dev, recipe.windows) if dev else None,
        save_model=model.save,
        penalties=penalties,
        calibrate=partial(_choose_threshold, dev, recipe) if dev else None,
    )


def _objective(recipe: AnswerRecipe) -> Objective:
    config = recipe.adversarial

    def objective(model: nn.Module, batch: Batch) -> Losses:
        inputs, goal = batch.inputs, batch.targets
        assert isinstance(inputs, WindowInputs)
        assert isinstance(model, QuestionAnswerer)
        assert goal is not None
        logits = inputs.logits(model)
        losses = span_cross_entropy(logits[0], logits[1], goal[:, 0], goal[:, 1])
        sums: dict[str, Sum] = {_LOSS: (losses.sum(), len(losses))}
        if config.kind != "none":
            change = adversarial.virtual_adversarial(
                partial(inputs.logits, model),
                logits,
                adversarial.symmetric_kl,
                model.encoder,
                inputs.tokens,
                config,
            )
            # The change is a sum over start and end, but the loss above is a mean of the two.
            sums[adversarial.LOSS] = (change / 2, len(losses))
        return Losses(sums, weights={adversarial.LOSS: config.weight})

    return objective


def _evaluation(
    model: QuestionAnswerer, dev: Sequence[Question], config: WindowConfig
) -> DevMetrics:
    """Make the function that computes F1 and exact match at the best threshold.

    Raises:
        CorpusError: No question has an answer.
    """
    if not any(question.answers for question in dev):
        raise CorpusError(
            f"{dev[0].source}: none of the {len(dev):,} dev questions from here on has an answer, "
            "so every model would have the dev metric 1. Give dev data with answers, or train "
            "without: --set data.held_out=0, and no data.dev."
        )
    rows = WindowRows.of(model, dev, config)

    def metrics(module: nn.Module) -> dict[str, float]:
        assert isinstance(module, QuestionAnswerer)
        f1, exact, _ = score_answers(find_answers(module, dev, rows, config), dev)
        return {"f1": f1, "exact_match": exact}

    return DevMetrics(("f1", "exact_match"), metrics, fingerprint_of(dev), rows=len(dev))


def _choose_threshold(dev: Sequence[Question], recipe: AnswerRecipe, folder: Path) -> None:
    """Choose the threshold of "no answer" of a saved model on dev data, and store it."""
    model, config = QuestionAnswerer.load(folder), recipe.windows
    model.to(resolve_device(recipe.device))
    found = find_answers(model, dev, WindowRows.of(model, dev, config), config)
    threshold = score_answers(found, dev)[2]
    write_side_file(folder, replace(read_side_file(folder), no_answer_threshold=threshold))
