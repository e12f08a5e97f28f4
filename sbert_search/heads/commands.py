"""The commands of task heads: `predict`, `calibrate`, and theirs of `eval` and `train`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import REJECTED_ROWS, emit, say, show_report
from sbert_search.cli.evaluate.reporting import EvalOptions, head_eval_options, report
from sbert_search.cli.options.shared import (
    HEAD_PRECISIONS,
    Finite,
    narrow_precision,
    shared_options,
)
from sbert_search.cli.train import training_command

if TYPE_CHECKING:
    from sbert_search.base.device import Precision
    from sbert_search.cli.train import Trainer
    from sbert_search.evaluate.manifest import Evaluation
    from sbert_search.heads.predicted import PredictedRow
    from sbert_search.heads.results import TaskName
    from sbert_search.heads.train_answerer import AnswerRecipe
    from sbert_search.heads.train_classifier import ClassifyRecipe
    from sbert_search.heads.train_tagger import TagRecipe


@click.command()
@click.argument("model")
@click.argument("source")
@click.option("--out", type=click.Path(path_type=Path), help="File to write, F.jsonl or F.parquet.")
@click.option(
    "--text-field",
    metavar="NAME",
    help="Field of the text, or of the question.  [default: detected]",
)
@click.option(
    "--text2-field",
    metavar="NAME",
    help="Field of the second text of a pair, or of the text to answer from.  [default: detected]",
)
@click.option("--all-scores", is_flag=True, help="Give the scores of all classes, too.")
@click.option(
    "--no-answer-threshold",
    type=Finite(),
    metavar="X",
    help='Give no answer if "no answer" scores more than X above the best answer.  [default: that '
    "of the model]",
)
@shared_options("device")
@narrow_precision(*HEAD_PRECISIONS)
@shared_options("on-error", "quiet", "json")
def predict(
    model: str,
    source: str,
    out: Path | None,
    text_field: str | None,
    text2_field: str | None,
    all_scores: bool,
    no_answer_threshold: float | None,
    device: str,
    precision: Precision,
    on_error: Literal["stop", "skip"],
    as_json: bool,
) -> int:
    """Predict with a task head for each row of SOURCE.

    MODEL is the folder `model` of a run of `train classify`, `tag` or `qa`, or a published model of
    this kind. SOURCE is a file of rows with the field `text`, or with two fields for pairs such as
    `sentence1` and `sentence2`; a model for questions needs `question` and `context`. SOURCE may be
    JSONL, JSON, CSV, TSV, Parquet, Arrow or .txt, or "-" for JSONL on stdin. The rejects file of
    --on-error skip is OUT.rejects.jsonl; without --out, bad rows are only named on stderr.
    """
    from sbert_search.heads.predicted import FilePredictor
    from sbert_search.heads.predictor import Predictor

    predictor = Predictor(
        model, device=device, precision=precision, no_answer_threshold=no_answer_threshold
    )
    if no_answer_threshold is not None and predictor.task != "qa":
        raise click.UsageError(
            f"--no-answer-threshold is for models that answer questions; {model} does not. Omit it."
        )
    if all_scores and predictor.task != "classify":
        raise click.UsageError(
            f"--all-scores is for classifiers; {model} is a model for {predictor.task}. Omit it."
        )
    files = FilePredictor(predictor, text_field, text2_field, on_error)
    if out is not None:
        count = files.write(source, out, all_scores=all_scores)
        facts = {"out": str(out), "rows": count, "rejected": files.rejected}
        emit(facts) if as_json else say(f"wrote {count:,} predictions to {out}")
    else:
        for row in files.rows(source):
            emit(row.to_row(all_scores=all_scores)) if as_json else say(line_of(row, all_scores))
    if files.rejected:
        listed = f"; {out}.rejects.jsonl says why" if out is not None else ""
        note(f"{files.rejected:,} rows were left out{listed}.")
    return REJECTED_ROWS if files.rejected else 0


def line_of(row: PredictedRow, all_scores: bool) -> str:
    """Format a prediction as one line of plain text."""
    from sbert_search.heads.results import TextEntities, TextLabel

    found, start = row.prediction, _on_one_line(row.text)[:60]
    if isinstance(found, TextLabel):
        scores = sorted(found.scores.items(), key=lambda item: -item[1])
        named = ", ".join(found.labels) or "-"
        every = "  ".join(f"{name} {score:.4f}" for name, score in scores)
        return f"{named}  {every if all_scores else format(found.score, '.4f')}  {start}"
    if isinstance(found, TextEntities):
        shown = ", ".join(
            f"{_on_one_line(e.text)} ({e.label} {e.score:.2f})" for e in found.entities
        )
        return f"{shown or '-'}  <- {start}"
    return f"{_on_one_line(found.text) or '(no answer)'}  {found.score:.4f}  <- {start}"


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("source", type=click.Path(path_type=Path))
@shared_options("device", "quiet", "json")
def calibrate(model: Path, source: Path, device: str, as_json: bool) -> None:
    """Fit the temperature of MODEL to the labelled texts of SOURCE.

    MODEL is the folder of a classifier or a cross-encoder, where the temperature is stored. SOURCE
    has rows with a text or a pair and a label; for a cross-encoder with one score, the label is 1
    or 0. Take texts that the model was not trained on. Predicted classes and rankings do not
    change.
    """
    from sbert_search.heads.calibrate import calibrate as fit

    show_report(fit(model, source, device=device), as_json=as_json)


@click.command()
@head_eval_options
def classify(options: EvalOptions) -> int:
    """Measure a classifier of texts or of pairs.

    The scores are accuracy, macro F1, Matthews correlation and the calibration error (ECE). If a
    text may have several classes, they are the F1 over all labels together (micro F1), the accuracy
    of the whole set and ECE; if the labels are numbers, the correlations of Spearman and Pearson.
    """
    from sbert_search.heads.evaluation import evaluate_classify

    return _report("classify", evaluate_classify, options)


@click.command()
@head_eval_options
def tag(options: EvalOptions) -> int:
    """Measure a tagger of entities.

    The scores are precision, recall and F1 over entities, as CoNLL counts them.
    """
    from sbert_search.heads.evaluation import evaluate_tag

    return _report("tag", evaluate_tag, options)


@click.command()
@head_eval_options
def qa(options: EvalOptions) -> int:
    """Measure a model that answers questions.

    The scores are SQuAD's exact match and F1.
    """
    from sbert_search.heads.evaluation import evaluate_qa

    return _report("qa", evaluate_qa, options)


def _report(kind: TaskName, evaluate: Callable[..., Evaluation], options: EvalOptions) -> int:
    from sbert_search.heads.predictor import Predictor

    if options.model is None:
        raise click.UsageError("Name a model with --model.")
    device, precision = options.hardware["device"], options.hardware["precision"]
    predictor = Predictor(options.model, device=device, precision=precision)
    return report(kind, evaluate, predictor, options)


@training_command("classify")
def train_classify() -> tuple[type[ClassifyRecipe], Trainer[ClassifyRecipe]]:
    """Train a classifier of texts or pairs.

    It predicts one class, several classes, or a number. RECIPE is the name of a shipped recipe or a
    TOML file.

    \b
    sbert-search train classify sst2 \\
        --set data.train=reviews.jsonl --out my-classifier
    sbert-search predict my-classifier/model new.jsonl
    """  # noqa: D301 (the backslash is click's)
    from sbert_search.heads.train_classifier import ClassifyRecipe, train_classifier

    return ClassifyRecipe, train_classifier


@training_command("tag")
def train_tag() -> tuple[type[TagRecipe], Trainer[TagRecipe]]:
    """Train a tagger of entities in text.

    RECIPE is the name of a shipped recipe or a TOML file.

    \b
    sbert-search train tag wnut17 \\
        --set data.train=sentences.jsonl --out my-tagger
    sbert-search predict my-tagger/model new.jsonl
    """  # noqa: D301 (the backslash is click's)
    from sbert_search.heads.train_tagger import TagRecipe, train_tagger

    return TagRecipe, train_tagger


@training_command("qa")
def train_qa() -> tuple[type[AnswerRecipe], Trainer[AnswerRecipe]]:
    """Train a model that finds the answer to a question in a text.

    RECIPE is the name of a shipped recipe or a TOML file.

    \b
    sbert-search train qa squad \\
        --set data.train=questions.jsonl --out my-reader
    sbert-search search my.index QUERY --answer my-reader/model
    """  # noqa: D301 (the backslash is click's)
    from sbert_search.heads.train_answerer import AnswerRecipe, train_answerer

    return AnswerRecipe, train_answerer
