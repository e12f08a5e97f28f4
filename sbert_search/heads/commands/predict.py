"""`predict`: classify texts, find entities or answer questions in the rows of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import REJECTED_ROWS, emit, say
from sbert_search.cli.options.shared import (
    HEAD_PRECISIONS,
    Finite,
    narrow_precision,
    shared_options,
)

if TYPE_CHECKING:
    from sbert_search.base.device import Precision
    from sbert_search.heads.files import PredictedRow


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
    from sbert_search.heads.files import FilePredictor
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
