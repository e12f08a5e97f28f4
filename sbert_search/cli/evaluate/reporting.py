"""What `eval` commands share: their options, running a task, printing scores, writing reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import emit, say, show_table
from sbert_search.cli.options.shared import (
    HEAD_PRECISIONS,
    PRECISIONS,
    NarrowPrecision,
    choice,
    joined,
    model_options,
    options_of,
    refuse_typed,
    shared_options,
)
from sbert_search.embed.arguments import ModelOptions
from sbert_search.errors import EvaluationError

if TYPE_CHECKING:
    from sbert_search.embed.protocol import TextEmbedder
    from sbert_search.search.rerankers import Reranker


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)

no_cache = click.option(
    "--no-cache", is_flag=True, help="Do not read or write the cache of embeddings."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalOptions:
    """The values of the argument and options that `eval_options` or `head_eval_options` adds.

    Attributes:
        suite: File that lists the tasks of one report.
        data: Folder that the paths in task files are relative to.
        split: Split of a DATA folder; a TASK has its own.
        out: Folder for reports with the score of each item.
        expect: File of expected scores; exit with 1 if a score is outside its tolerance.
    """

    tasks: tuple[str, ...]
    suite: Path | None = None
    data: Path = Path("data")
    split: str = "test"
    out: Path | None = None
    expect: Path | None = None
    model: str | None
    hardware: ModelOptions
    seed: int
    as_json: bool
    no_cache: bool = False

    @contextmanager
    def embedder(self) -> Iterator[TextEmbedder]:
        """Open the bi-encoder, with the cache of embeddings unless --no-cache is given."""
        from sbert_search.embed.cache import CachedEmbedder
        from sbert_search.embed.embedder import Embedder, open_embedder

        embedder = open_embedder(self.model, **self.hardware)
        if self.no_cache or not isinstance(embedder, Embedder):
            yield embedder
            return
        with closing(CachedEmbedder(embedder)) as cached:
            yield cached
            note(f"{cached.computed:,} texts were embedded, {cached.cached:,} came from the cache.")

    def cross_encoder(self, model: str | None) -> Reranker:
        """Open a cross-encoder."""
        from sbert_search.search.rerankers import Reranker

        if model is None:
            raise click.UsageError("Name a cross-encoder with --model.")
        return Reranker(model, **self.hardware)


Run = Callable[..., int]


def eval_options(function: Run) -> Run:
    """Add the argument and options of an `eval` command that runs tasks; see `EvalOptions`.

    The function gets the `EvalOptions` as its first argument, and its own options by name.
    """
    return _with_options(function, PRECISIONS, "model", "device", "engine", "calibrate")


def head_eval_options(function: Run) -> Run:
    """Add the options of `eval_options`, except those that models with a task head lack."""
    return _with_options(function, HEAD_PRECISIONS, "model", "device")


def _with_options(function: Run, precisions: Sequence[str], *model: str) -> Run:
    @wraps(function)
    def run(**params: Any) -> int:
        hardware = model_options(click.get_current_context())
        rest = {n: value for n, value in params.items() if n not in ModelOptions.__annotations__}
        own = {each.name: rest.pop(each.name) for each in fields(EvalOptions) if each.name in rest}
        return function(EvalOptions(hardware=hardware, **own), **rest)

    return joined(
        click.argument("tasks", nargs=-1, metavar="[TASK|DATA]..."),
        options_of(EvalOptions, "suite", "expect", type=FILE),
        options_of(EvalOptions, "data", "out", type=FOLDER),
        options_of(EvalOptions, "split"),
        shared_options(*model),
        choice(
            "precision",
            *sorted(precisions, key="fp32".__ne__),  # published scores use fp32
            cls=NarrowPrecision,
            help="Number format of the model's computation; published scores use fp32.",
        ),
        shared_options("seed", "quiet", "json"),
    )(run)


if TYPE_CHECKING:
    from sbert_search.evaluate.manifest import Evaluation
    from sbert_search.evaluate.tasks import EvalSuite, EvalTask, Kind

    Evaluate = Callable[..., Evaluation]


def report(
    kind: Kind,
    evaluate: Evaluate,
    model: object,
    options: EvalOptions,
    baselines: Mapping[str, object] | None = None,
) -> int:
    """Evaluate a model on all tasks, print and write scores, and compare them with expected ones.

    ``evaluate`` is called with a task, the model, ``data`` and ``seed``. The exit code is 1 if a
    score is outside its tolerance. ``baselines`` are other models, by name.
    """
    from sbert_search.evaluate.comparison import judge, load_expected
    from sbert_search.evaluate.report import refuse_overwriting, write_reports
    from sbert_search.evaluate.tasks import distinct_tasks, find_task, load_suite, suite_of

    tasks, suite, out = options.tasks, options.suite, options.out
    if bool(tasks) == bool(suite):
        raise click.UsageError("Name at least one TASK or DATA, or a --suite instead.")
    loaded_suite = load_suite(suite) if suite else None
    names = loaded_suite.runnable if loaded_suite else tasks
    found = [find_task(kind, name, split=options.split) for name in names]
    for name, task in zip(names, found, strict=True):
        if task.split != options.split:
            where = f"on {name}, which is a task of the split {task.split}"
            refuse_typed(click.get_current_context(), {"split"}, where)
    to_run = distinct_tasks(found)
    if not to_run:
        raise EvaluationError(f"{suite}: no task can be run, as tasks is empty or all are absent.")
    loaded_suite = suite_of(loaded_suite, found) if loaded_suite else None
    if out:
        paths = [*names, suite, options.expect, options.model]
        data = [options.data / task.path for task in to_run]
        refuse_overwriting(to_run, out, [*data, *(Path(path) for path in paths if path)])
    expected = load_expected(options.expect) if options.expect else None
    run = partial(evaluate, data=options.data, seed=options.seed)
    evaluations = _evaluated(to_run, run, model)
    of_baselines = {n: _evaluated(to_run, run, other) for n, other in (baselines or {}).items()}
    _show(evaluations, loaded_suite, of_baselines, as_json=options.as_json)
    if out:
        for path in write_reports(evaluations, out, loaded_suite, of_baselines):
            note(f"wrote {path}")
    verdicts = [judge(evaluation, expected) for evaluation in evaluations if expected]
    for verdict in verdicts:
        note(str(verdict))
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def _evaluated(tasks: Sequence[EvalTask], run: Evaluate, model: object) -> list[Evaluation]:
    evaluations = []
    for task in tasks:
        note(f"{task.name}: {task.path}, {task.split}")
        evaluations.append(run(task, model))
    return evaluations


def _show(
    evaluations: Sequence[Evaluation],
    suite: EvalSuite | None,
    of_baselines: Mapping[str, Sequence[Evaluation]],
    *,
    as_json: bool,
) -> None:
    from sbert_search.evaluate.report import remarks, score_table, system_table

    if not as_json:
        show_table(*score_table(evaluations, suite))
        for remark in remarks(evaluations):
            say(remark)
        if of_baselines:
            name = str(evaluations[0].manifest["model"]["name"])
            show_table(*system_table({name: evaluations, **of_baselines}))
        return
    for system, its_evaluations in {"": evaluations, **of_baselines}.items():
        for evaluation in its_evaluations:
            emit(_record(evaluation) | ({"system": system} if system else {}))


def _record(evaluation: Evaluation) -> dict[str, object]:
    return {
        "task": evaluation.task.name,
        "kind": evaluation.task.kind,
        "split": evaluation.task.split,
        "model_sha256": evaluation.manifest["model"]["weights_sha256"],
        "main_metric": evaluation.task.main_metric,
        "score": evaluation.main_score,
        "interval": evaluation.interval,
        "scores": evaluation.scores,
        "counts": evaluation.counts,
        "settings": evaluation.manifest["settings"],
    }
