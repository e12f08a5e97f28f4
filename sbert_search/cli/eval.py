"""`eval`: a model, or an index, on tasks with known answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbert_search.cli.console import emit, show_table
from sbert_search.cli.eval_compare import compare
from sbert_search.cli.eval_fusion import fusion
from sbert_search.cli.options import choice, shared_options
from sbert_search.runtime.progress import note

if TYPE_CHECKING:
    from sbert_search.embedding.protocol import TextEmbedder
    from sbert_search.evaluation.manifest import Evaluation
    from sbert_search.evaluation.tasks import EvalSuite, EvalTask, Kind

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


def _eval_options(command: Any) -> Any:
    """Give a command what all evaluations have in common."""
    for decorate in (
        shared_options("seed", "quiet", "json"),
        choice("precision", "fp32", "auto", "bf16", "fp16", help="Published scores use fp32."),
        shared_options("model", "device", "engine"),
        click.option("--expect", type=_FILE, help="File of expected scores; a miss exits with 1."),
        click.option("--out", type=_FOLDER, help="Write reports with per-query scores here."),
        click.option("--split", default="test", show_default=True, help="Of a folder of data."),
        click.option(
            "--data",
            type=_FOLDER,
            default="data",
            show_default=True,
            help="Folder that the paths in task files start from.",
        ),
        click.option("--suite", type=_FILE, help="File that names tasks to report together."),
        click.argument("tasks", nargs=-1, metavar="[TASK|DATA]..."),
    ):
        command = decorate(command)
    return command


@click.group()
def evaluate() -> None:
    """Measure a model on tasks with known answers.

    TASK is the name of a file in eval/tasks or the path of one; DATA is a data set itself.
    """


evaluate.add_command(compare)
evaluate.add_command(fusion)


@evaluate.command()
@click.option("--trained-on", type=_FILE, help="Pairs the model has seen; they are left out.")
@_eval_options
def sts(trained_on: Path | None, **options: Any) -> int:
    """Correlate cosines of scored pairs of texts with people's scores."""
    from sbert_search.corpus.pairs import read_pairs
    from sbert_search.evaluation.sts import evaluate_sts

    seen = read_pairs(trained_on) if trained_on else []

    def run(task: EvalTask, embedder: TextEmbedder, data: Path, seed: int) -> Evaluation:
        return evaluate_sts(task, embedder, data=data, trained_on=seen, seed=seed)

    return _evaluate("sts", run, **options)


@evaluate.command()
@click.option("--index", type=_FOLDER, help="Search this index; default: an exact one, made anew.")
@_eval_options
def retrieval(index: Path | None, **options: Any) -> int:
    """Search BEIR folders with their own queries and judge what is found."""
    from sbert_search.evaluation.retrieval import evaluate_retrieval

    def run(task: EvalTask, embedder: TextEmbedder, data: Path, seed: int) -> Evaluation:
        return evaluate_retrieval(task, embedder, data=data, index=index, seed=seed)

    return _evaluate("retrieval", run, **options)


def _evaluate(
    kind: Kind,
    run: Callable[[EvalTask, TextEmbedder, Path, int], Evaluation],
    *,
    tasks: Sequence[str],
    suite: Path | None,
    data: Path,
    split: str,
    out: Path | None,
    expect: Path | None,
    seed: int,
    as_json: bool,
    **model: Any,
) -> int:
    from sbert_search.embedding.embedder import open_embedder
    from sbert_search.evaluation.expected import judge, load_expected
    from sbert_search.evaluation.report import write_reports
    from sbert_search.evaluation.tasks import find_task, load_suite

    if bool(tasks) == bool(suite):
        raise click.UsageError("Name tasks or data sets, or one --suite.")
    chosen = load_suite(suite) if suite else None
    named = [find_task(kind, name, split=split) for name in (chosen.runnable if chosen else tasks)]
    expected = load_expected(expect) if expect else None
    embedder = open_embedder(model.pop("model"), **model)
    evaluations = []
    for task in named:
        note(f"{task.name}: {task.path}, {task.split}")
        evaluations.append(run(task, embedder, data, seed))
    _show(evaluations, chosen, as_json=as_json)
    if out:
        for path in write_reports(evaluations, out, chosen):
            note(f"wrote {path}")
    verdicts = [judge(evaluation, expected) for evaluation in evaluations if expected]
    for verdict in verdicts:
        note(str(verdict))
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def _show(evaluations: Sequence[Evaluation], suite: EvalSuite | None, *, as_json: bool) -> None:
    from sbert_search.evaluation.report import score_table

    if not as_json:
        show_table(*score_table(evaluations, suite))
        return
    for evaluation in evaluations:
        emit(
            {
                "task": evaluation.task.name,
                "main_metric": evaluation.task.main_metric,
                "score": evaluation.main_score,
                "scores": evaluation.scores,
                "counts": evaluation.counts,
            }
        )
