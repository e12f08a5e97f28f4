"""Train a model that marks the answer to a question in a text, or says that there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.corpus.labelled.questions import read_questions
from sbert_search.encoder.packed import PackedTokens
from sbert_search.errors import ConfigError
from sbert_search.losses.span import span_cross_entropy
from sbert_search.metrics.answers import answer_f1, exact_match
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.question_answerer import QuestionAnswerer
from sbert_search.models.side_file import read_side_file, write_side_file
from sbert_search.models.spans import best_spans
from sbert_search.records import Question
from sbert_search.runtime.device import resolve_device
from sbert_search.runtime.distributed import Ranks
from sbert_search.runtime.seed import seed_all
from sbert_search.tokens.batching import token_batches
from sbert_search.tokens.windows import Window, encode_windows
from sbert_search.training.data.text_dataset import TokenTable
from sbert_search.training.loop.batching import Batches, Rows
from sbert_search.training.loop.early_stopping import DevMetrics
from sbert_search.training.loop.loop import Result
from sbert_search.training.loop.objective import Batch, Losses, Objective, Sum
from sbert_search.training.published_run import Training, starting, train_and_publish
from sbert_search.training.task_heads import adversarial
from sbert_search.training.task_heads.frozen import CachedStates, train_only
from sbert_search.training.task_heads.settings import HeadDataConfig, HeadRecipe, split_rows

ALWAYS = 1e6  # a threshold with which every question is answered
_LOSS = "span"
_TOKENS_AT_ONCE = 8192  # of one forward pass without gradients
_FILL = -1e4  # logit of the padding after a window; finite, so that differences of two are 0


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowConfig:
    """How a question and a long context are cut into windows."""

    overlap: int = 128  # tokens that neighbouring windows of a context share
    max_question: int = 64  # maximum tokens of a question
    max_answer: int = 30  # maximum tokens of a predicted answer

    def __post_init__(self) -> None:
        for name, least in (("overlap", 0), ("max_question", 1), ("max_answer", 1)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"windows.{name} is {getattr(self, name)}; it must be at least {least}."
                )


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
    ``out/model``, a folder that transformers loads as a model of question answering. With dev data
    that hold questions without an answer, the threshold of "no answer" is chosen on them.

    Args:
        recipe: All settings.
        out: Folder of the run.
        resume: Resume from the newest checkpoint in ``out``.
        allow_inexact: Resume although data, recipe, threads or versions differ.

    Raises:
        ConfigError: Settings contradict each other, or the run would write over a file or folder
            that it reads.
        CorpusError: The data cannot be read or used.
        ModelError: The encoder to start from cannot be loaded.
        TrainingError: As for `training.loop.loop.train`.
        CheckpointError: As for `training.loop.loop.train`.
    """
    with starting(recipe, out, resume=resume) as ranks:
        rows, dev = _read(recipe.data)
        seed_all(recipe.seed, "init")
        model = QuestionAnswerer.start(
            resolve_model(recipe.model).path,
            labels=("LABEL_0", "LABEL_1"),
            max_len=recipe.max_len,
            random_weights=recipe.random_weights,
        )
        training = _training(recipe, model, rows, dev, out, ranks)
        return train_and_publish(
            training, recipe, out, ranks, resume=resume, allow_inexact=allow_inexact
        )


def _read(data: HeadDataConfig) -> tuple[list[Question], list[Question]]:
    """Read the training and the dev questions; those of one article are on one side."""
    rows = [row for path in data.files for row in read_questions(path)]
    rows, held = split_rows(rows, [row.title or row.context for row in rows], data)
    return rows, held if data.dev is None else read_questions(data.dev)


@dataclass(frozen=True, eq=False, slots=True)
class WindowRows:
    """The windows of questions.

    Attributes:
        table: Token ids of the windows.
        windows: The windows, without their ids.
        question_ids: Index of the question of each window, (windows,).
    """

    table: TokenTable
    windows: list[Window]
    question_ids: list[int]

    @classmethod
    def of(
        cls, model: QuestionAnswerer, questions: Sequence[Question], config: WindowConfig
    ) -> WindowRows:
        """Tokenise questions with their contexts."""
        windows, owners = list[Window](), list[int]()
        for n, question in enumerate(questions):
            own = encode_windows(
                model.tokenizer,
                question.text,
                question.context,
                overlap=config.overlap,
                max_question=config.max_question,
            )
            windows += own
            owners += [n] * len(own)
        ids = [np.array(window.ids, dtype=np.int32) for window in windows]
        types = [np.array(window.types, dtype=np.uint8) for window in windows]
        table = TokenTable.join(ids, types if model.gets_segment_ids else None)
        light = [replace(window, ids=[], types=[]) for window in windows]
        return cls(table, light, owners)

    def targets(self, questions: Sequence[Question]) -> NDArray[np.int64]:
        """Return first and last token of the answer in each window; 0 and 0 if it has none.

        The answer is the first of those accepted. A window that has only a part of it has none.
        """
        found = np.zeros((len(self.windows), 2), dtype=np.int64)
        for row, (window, owner) in enumerate(zip(self.windows, self.question_ids, strict=True)):
            if not questions[owner].answers:
                continue
            answer = questions[owner].answers[0]
            start, end = answer.start, answer.start + len(answer.text)
            inside = [n for n, (a, b) in enumerate(window.offsets) if a < end and b > start]
            whole = window.offsets and window.offsets[0][0] <= start < end <= window.offsets[-1][1]
            if inside and whole:
                found[row] = window.start + inside[0], window.start + inside[-1]
        return found


class AnswerBatches(Batches):
    """Batches of windows, or of the states of their tokens."""

    def __init__(
        self,
        recipe: AnswerRecipe,
        table: TokenTable,
        targets: NDArray[np.int64],
        states: CachedStates | None = None,
    ) -> None:
        """Plan batches; ``targets`` has first and last token of each window, (windows, 2)."""
        self.table, self.targets, self.states = table, targets, states
        self.names = [_LOSS] + [adversarial.LOSS] * (recipe.adversarial.kind != "none")
        fingerprint = table.fingerprint(targets)
        super().__init__(
            table.lengths, self._batch, recipe.batching, seed=recipe.seed, fingerprint=fingerprint
        )

    def _batch(self, rows: Rows, epoch: int) -> Batch:
        rows = rows[np.argsort(self.lengths[rows], kind="stable")]
        states = None if self.states is None else self.states.take(rows)
        inputs = WindowInputs(self.table.pack(rows), states)
        counts = {name: len(rows) for name in self.names}
        return Batch(inputs, rows, counts, torch.from_numpy(self.targets[rows]))


@dataclass(frozen=True, eq=False, slots=True)
class WindowInputs:
    """Some windows, and the states of their tokens if the encoder is frozen."""

    tokens: PackedTokens
    states: Tensor | None

    def to(self, device: torch.device) -> WindowInputs:
        """Copy the tensors to a device."""
        states = None if self.states is None else self.states.to(device)
        return WindowInputs(self.tokens.to(device), states)

    def logits(self, model: QuestionAnswerer) -> Tensor:
        """Compute logits of starts and of ends, float32 (2, windows, longest)."""
        flat = model(self.tokens) if self.states is None else model.classify(self.states)
        return self.tokens.pad(flat.float(), _FILL).permute(2, 0, 1)


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
    if recipe.tune != "full":
        train_only(model, [*model.out.parameters()])
        device = resolve_device(recipe.device)
        model.to(device).eval()
        states = CachedStates.compute(
            lambda part: model.states(windows.table.pack(part).to(device)),
            windows.table.lengths,
            windows.table.lengths,
            model.encoder.config.hidden_size,
            out / f"states-{ranks.rank}.npy",
        )
    return Training(
        kind="qa",
        model=model,
        objective=_objective(recipe),
        batches=AnswerBatches(recipe, windows.table, windows.targets(rows), states),
        files=recipe.data.files,
        n_rows=len(rows),
        dev=_evaluation(model, dev, recipe.windows) if dev else None,
        save_model=model.save,
        calibrate=partial(_choose_threshold, dev, recipe.windows) if dev else None,
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
            sums[adversarial.LOSS] = (change / 2, len(losses))
        return Losses(sums, weights={adversarial.LOSS: config.weight})

    return objective


class Found(NamedTuple):
    """The best span of a question.

    Attributes:
        text: Its text.
        score: Sum of the logits of its first and its last token.
        null_score: Sum of the logits of the first token of the window where it is smallest.
    """

    text: str
    score: float
    null_score: float


def find_answers(
    model: QuestionAnswerer,
    questions: Sequence[Question],
    rows: WindowRows,
    config: WindowConfig,
) -> list[Found]:
    """Find the best span of each question over all its windows, in fp32."""
    best = [Found("", -np.inf, np.inf)] * len(questions)
    device = model.out.weight.device
    with torch.no_grad():
        for part in token_batches(rows.table.lengths, _TOKENS_AT_ONCE):
            logits = model(rows.table.pack(part).to(device)).float().cpu().numpy()
            ends = np.cumsum(rows.table.lengths[part])
            for row, own in zip(part.tolist(), np.split(logits, ends[:-1]), strict=True):
                window, owner = rows.windows[row], rows.question_ids[row]
                found = _best_of_window(own, window, questions[owner].context, config)
                null_score = min(found.null_score, best[owner].null_score)
                kept = max(found, best[owner], key=lambda each: each.score)
                best[owner] = kept._replace(null_score=null_score)
    return best


def _best_of_window(
    logits: NDArray[np.float32], window: Window, context: str, config: WindowConfig
) -> Found:
    inside = logits[window.start : window.start + len(window.offsets)]
    spans = best_spans(inside[:, 0], inside[:, 1], n=1, max_tokens=config.max_answer)
    null_score = float(logits[0].sum())
    if not spans:
        return Found("", -np.inf, null_score)
    start, end = window.offsets[spans[0].first][0], window.offsets[spans[0].last][1]
    return Found(context[start:end].strip(), spans[0].score, null_score)


def best_threshold(
    margins: Sequence[float], answered: Sequence[float], none: Sequence[float]
) -> float:
    """Return the threshold of "no answer" with the highest sum of scores.

    Args:
        margins: For each question, the score of "no answer" minus that of the best span; it is
            answered if this is at most the threshold.
        answered: Score of each question if it is answered.
        none: Score of each question if it is not.

    Returns:
        `ALWAYS` if nothing is gained by leaving questions unanswered.
    """
    order = np.argsort(margins, kind="stable")
    ordered, gains = np.asarray(margins)[order], (np.asarray(answered) - np.asarray(none))[order]
    totals = np.concatenate([[0.0], np.cumsum(gains)])
    totals[1:-1][ordered[1:] == ordered[:-1]] = -np.inf  # equal margins are not separated
    count = int(totals.argmax())
    if totals[-1] >= totals[count]:
        return ALWAYS
    above = ordered[count]
    return float(above - 1.0 if count == 0 else (ordered[count - 1] + above) / 2)


def _scores(
    found: Sequence[Found], questions: Sequence[Question], threshold: float | None = None
) -> tuple[float, float, float]:
    """Return F1, exact match and the threshold of "no answer"; None: the one of the highest F1."""
    golds = [[answer.text for answer in question.answers] for question in questions]
    f1 = [answer_f1(each.text, gold) for each, gold in zip(found, golds, strict=True)]
    none = [answer_f1("", gold) for gold in golds]
    margins = [each.null_score - each.score for each in found]
    if threshold is None:
        threshold = ALWAYS if all(golds) else best_threshold(margins, f1, none)
    chosen = [each.text if m <= threshold else "" for each, m in zip(found, margins, strict=True)]
    exact = [exact_match(text, gold) for text, gold in zip(chosen, golds, strict=True)]
    values = [answer_f1(text, gold) for text, gold in zip(chosen, golds, strict=True)]
    return float(np.mean(values)), float(np.mean(exact)), threshold


def answer_metrics(
    model: QuestionAnswerer, questions: Sequence[Question], config: WindowConfig | None = None
) -> dict[str, float]:
    """Compute F1 and exact match of the answers, at the model's threshold of "no answer"."""
    config = WindowConfig() if config is None else config
    rows = WindowRows.of(model, questions, config)
    found = find_answers(model, questions, rows, config)
    f1, exact, _ = _scores(found, questions, model.no_answer_threshold)
    return {"f1": f1, "exact_match": exact}


def _evaluation(
    model: QuestionAnswerer, dev: Sequence[Question], config: WindowConfig
) -> DevMetrics:
    """Make the function that computes F1 and exact match at the best threshold."""
    rows = WindowRows.of(model, dev, config)

    def metrics(module: nn.Module) -> dict[str, float]:
        assert isinstance(module, QuestionAnswerer)
        f1, exact, _ = _scores(find_answers(module, dev, rows, config), dev)
        return {"f1": f1, "exact_match": exact}

    return DevMetrics(("f1", "exact_match"), metrics)


def _choose_threshold(dev: Sequence[Question], config: WindowConfig, folder: Path) -> None:
    """Choose the threshold of "no answer" of a saved model on dev data."""
    model = QuestionAnswerer.load(folder)
    found = find_answers(model, dev, WindowRows.of(model, dev, config), config)
    threshold = _scores(found, dev)[2]
    write_side_file(folder, replace(read_side_file(folder), no_answer_threshold=threshold))
