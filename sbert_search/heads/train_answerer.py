"""Train a model that marks the answer to a question in a text, or says that there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.base.seed import seed_all
from sbert_search.errors import CorpusError
from sbert_search.evaluate.metrics.classification import answer_f1, exact_match
from sbert_search.heads.adversarial import symmetric_kl
from sbert_search.heads.labelled_spans import read_questions
from sbert_search.heads.training import (
    HeadDataConfig,
    HeadInputs,
    HeadRecipe,
    HeadTask,
    read_split,
    train_only,
)
from sbert_search.heads.training_rows import WindowConfig, WindowRows, token_logits, window_logits
from sbert_search.heads.windows import Window
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.logit_losses import span_cross_entropy
from sbert_search.models.side_file import SideFile
from sbert_search.models.token_classifier import QuestionAnswerer, best_spans
from sbert_search.text.labelled.records import Question
from sbert_search.train.loop.loop import Result
from sbert_search.train.loop.objective import Rows
from sbert_search.train.loop.schedule import DevMetrics, fingerprint_of
from sbert_search.train.loop.step import Penalties
from sbert_search.train.run import start_run

ALWAYS = 1e6  # threshold of "no answer" with which every question is answered


class BestSpan(NamedTuple):
    """The best span of a question."""

    text: str
    score: float  # sum of the logits of its first and its last token
    null_score: float  # of "no answer": lowest sum of both first-token logits of a window


def find_answers(
    model: QuestionAnswerer,
    questions: Sequence[Question],
    rows: WindowRows,
    config: WindowConfig,
) -> list[BestSpan]:
    """Find the best span of each question over all its windows, in fp32.

    All scores are NaN if a logit is not finite.
    """
    best = [BestSpan("", -np.inf, np.inf)] * len(questions)
    table = rows.table
    logits_of_rows = token_logits(
        model, table, lambda part: HeadInputs(table.pack(part)), table.lengths
    )
    for row, logits in logits_of_rows:
        if not np.isfinite(logits).all():
            return [BestSpan("", math.nan, math.nan)] * len(questions)
        window, owner = rows.windows[row], rows.question_ids[row]
        found = _best_of_window(logits, window, questions[owner].context, config)
        null_score = min(found.null_score, best[owner].null_score)
        kept = max(found, best[owner], key=lambda each: each.score)
        best[owner] = kept._replace(null_score=null_score)
    return best


def _best_of_window(
    logits: NDArray[np.float32], window: Window, context: str, config: WindowConfig
) -> BestSpan:
    inside = logits[window.start : window.start + len(window.offsets)]
    spans = best_spans(inside[:, 0], inside[:, 1], n=1, max_tokens=config.max_answer)
    null_score = float(logits[0].sum())
    if not spans:
        return BestSpan("", -np.inf, null_score)
    start, end = window.offsets[spans[0].first][0], window.offsets[spans[0].last][1]
    return BestSpan(context[start:end].strip(), spans[0].score, null_score)


def best_threshold(
    margins: Sequence[float], answered: Sequence[float], none: Sequence[float]
) -> float:
    """Return the threshold of "no answer" with the highest sum of scores.

    A question is answered if its margin, the score of "no answer" minus that of the best span, is
    at most the threshold. ``answered`` and ``none`` are its scores in both cases. `ALWAYS` if
    nothing is gained by leaving questions unanswered.
    """
    if np.isnan(margins).any():
        raise ValueError("A margin is NaN, so that it has no place among the others.")
    order = np.argsort(margins, kind="stable")
    ordered, gains = np.asarray(margins)[order], (np.asarray(answered) - np.asarray(none))[order]
    totals = np.concatenate([[0.0], np.cumsum(gains)])
    totals[1:-1][ordered[1:] == ordered[:-1]] = -np.inf  # equal margins are not separated
    count = int(totals.argmax())
    if totals[-1] >= totals[count]:
        return ALWAYS
    above = float(ordered[count])
    if count == 0:
        return min(above - 1.0, math.nextafter(above, -math.inf))
    below = float(ordered[count - 1])
    middle = below / 2 + above / 2
    return middle if below < middle < above else below  # between neighbouring floats there is none


def score_answers(
    found: Sequence[BestSpan], questions: Sequence[Question], threshold: float | None = None
) -> tuple[float, float, float]:
    """Return the mean F1, the mean exact match, and the threshold of "no answer" that they use.

    ``threshold`` None: the one with the highest F1, or `ALWAYS` if all questions have an answer.
    NaN, NaN and `ALWAYS` if a score is NaN.
    """
    golds = [[answer.text for answer in question.answers] for question in questions]
    f1 = [answer_f1(each.text, gold) for each, gold in zip(found, golds, strict=True)]
    none = [answer_f1("", gold) for gold in golds]
    margins = [each.null_score - each.score for each in found]
    if np.isnan(margins).any():
        return math.nan, math.nan, ALWAYS
    if threshold is None:
        threshold = ALWAYS if all(golds) else best_threshold(margins, f1, none)
    chosen = [each.text if m <= threshold else "" for each, m in zip(found, margins, strict=True)]
    exact = [exact_match(text, gold) for text, gold in zip(chosen, golds, strict=True)]
    values = [answer_f1(text, gold) for text, gold in zip(chosen, golds, strict=True)]
    return float(np.mean(values)), float(np.mean(exact)), threshold


def answer_metrics(model: QuestionAnswerer, questions: Sequence[Question]) -> dict[str, float]:
    """Compute F1 and exact match of the answers, with the windows and threshold of the model."""
    side = model.side
    config = WindowConfig(
        overlap=side.overlap, max_question=side.max_question, max_answer=side.max_answer
    )
    rows = WindowRows.of(model, questions, config)
    found = find_answers(model, questions, rows, config)
    f1, exact, _ = score_answers(found, questions, model.no_answer_threshold)
    return {"f1": f1, "exact_match": exact}


@dataclass(frozen=True, kw_only=True)
class AnswerRecipe(HeadRecipe):
    """All settings of a training run of a model that answers questions.

    Example:
        >>> changes = ["data.train=squad.json", "windows.overlap=64"]
        >>> load_recipe(AnswerRecipe, "qa", "squad", changes).windows.overlap
        64
    """

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

    Example:
        >>> few = ["budget={steps=2}", "max_len=24", "model=my-model", "data.train=questions.jsonl"]
        >>> recipe = load_recipe(AnswerRecipe, "qa", "squad", few)
        >>> train_answerer(recipe, Path("run")).stopped
        'budget'
    """
    with start_run(recipe, out, resume=resume, allow_inexact=allow_inexact) as run:
        data, windows = recipe.data, recipe.windows
        # Of one article, all questions are held out, or none is.
        rows, dev = read_split(read_questions, lambda row: row.title or row.context, data)
        seed_all(recipe.seed, "init")
        model = QuestionAnswerer.start(
            resolve_model(recipe.model).path,
            labels=("LABEL_0", "LABEL_1"),
            max_len=recipe.max_len,
            side=SideFile(
                overlap=windows.overlap,
                max_question=windows.max_question,
                max_answer=windows.max_answer,
            ),
            random_weights=recipe.random_weights,
        )
        return run.train(_Answering(recipe, model, rows).training(run, dev, data.files))


class _Answering(HeadTask[Question, QuestionAnswerer]):
    kind, loss = "qa", "span"

    def __init__(
        self, recipe: AnswerRecipe, model: QuestionAnswerer, rows: Sequence[Question]
    ) -> None:
        self.config = recipe.windows
        windows = WindowRows.of(model, rows, self.config)
        table, targets = windows.table, windows.targets(rows)
        if recipe.tune != "full":
            train_only(model, [*model.inner.parameters(), *model.out.parameters()])
        super().__init__(recipe, model, rows, table, targets, n_states=table.lengths)

    def frozen_inputs(self, rows: Rows, states: Tensor) -> HeadInputs:
        # `window_logits` reads the lengths of the windows from their tokens.
        return HeadInputs(self.table.pack(rows), states=states)

    def logits(self, inputs: HeadInputs, module: nn.Module) -> Tensor:
        return window_logits(inputs, module)

    def sum_losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        losses = span_cross_entropy(logits[0], logits[1], targets[:, 0], targets[:, 1])
        return losses.sum(), len(losses)

    # The loss is the mean of those of start and end, and so are divergence and penalty.

    @staticmethod
    def divergence(logits: Tensor, others: Tensor) -> Tensor:
        return symmetric_kl(logits, others) / 2

    def penalties(self, penalty: float) -> Penalties:
        return {self.model.out.weight: penalty / 2}

    def dev_metrics(self, dev: Sequence[Question]) -> DevMetrics:
        if not any(question.answers for question in dev):
            raise CorpusError(
                f"{dev[0].source}: none of the {len(dev):,} dev questions from here on has an "
                "answer, so every model would have the dev metric 1. Give dev data with answers, "
                "or train without: --set data.held_out=0, and no data.dev."
            )
        rows = WindowRows.of(self.model, dev, self.config)

        def metrics(module: nn.Module) -> dict[str, float]:
            assert isinstance(module, QuestionAnswerer)
            f1, exact, _ = score_answers(find_answers(module, dev, rows, self.config), dev)
            return {"f1": f1, "exact_match": exact}

        return DevMetrics(("f1", "exact_match"), metrics, fingerprint_of(dev), rows=len(dev))

    def fit(self, side: SideFile, model: QuestionAnswerer, dev: Sequence[Question]) -> SideFile:
        rows = WindowRows.of(model, dev, self.config)
        found = find_answers(model, dev, rows, self.config)
        return replace(side, no_answer_threshold=score_answers(found, dev)[2])
