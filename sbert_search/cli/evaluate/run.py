"""`eval`: evaluate a model or an index on tasks with known answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbert_search.cli.console import emit, show_table
from sbert_search.cli.evaluate.compare import compare
from sbert_search.cli.evaluate.fusion import fusion
from sbert_search.cli.evaluate.mlm import mlm
from sbert_search.cli.evaluate.mteb import mteb
from sbert_search.cli.evaluate.options import FILE, FOLDER, EvalOptions, eval_options, no_cache
from sbert_search.cli.lazy_group import GuidedGroup
from sbert_search.cli.ranking_options import ranking_options, search_options
from sbert_search.runtime.progress import note

if TYPE_CHECKING:
    from sbert_search.embedding.protocol import TextEmbedder
    from sbert_search.evaluation.manifest import Evaluation
    from sbert_search.evaluation.tasks import EvalSuite, EvalTask, Kind
    from sbert_search.search.rerankers.reranker import Reranker

    Evaluate = Callable[[EvalTask], Evaluation]


@click.group("eval", cls=GuidedGroup)
def evaluate() -> None:
    """Evaluate a model on tasks with known answers.

    TASK is the name of a task file in eval/tasks, or the path of any task file; DATA is the folder
    or file of a data set.
    """


evaluate.add_command(compare)
evaluate.add_command(fusion)
evaluate.add_command(mlm)
evaluate.add_command(mteb)


@evaluate.command()
@click.option(
    "--trained-on", type=FILE, help="File of pairs to exclude, as the model was trained on them."
)
@click.option(
    "--cross-encoder", metavar="MODEL", help="Cross-encoder to evaluate instead of --model."
)
@click.option(
    "--baselines",
    is_flag=True,
    help="Also evaluate the encoder's mean token embedding, [CLS] state and mean state.",
)
@no_cache
@eval_options
@click.pass_context
def sts(
    ctx: click.Context,
    /,
    trained_on: Path | None,
    cross_encoder: str | None,
    baselines: bool,
    **_: object,
) -> int:
    """Measure textual similarity (STS).

    This is the correlation of cosine similarities with human scores of text pairs.
    """
    from sbert_search.corpus.labelled.pairs import read_pairs
    from sbert_search.evaluation.sts import evaluate_sts

    seen = read_pairs(trained_on) if trained_on else []
    options = EvalOptions.of(ctx)
    data, seed = options.data, options.seed

    def evaluator(model: TextEmbedder | Reranker) -> Evaluate:
        return lambda task: evaluate_sts(task, model, data=data, trained_on=seen, seed=seed)

    if cross_encoder:
        return _report("sts", evaluator(options.cross_encoder(cross_encoder)), options)
    systems = {}
    if baselines:
        from sbert_search.embedding.baselines import open_baselines

        embedders = open_baselines(options.model, device=options.device)
        systems = {name: evaluator(embedder) for name, embedder in embedders.items()}
    with options.embedder() as embedder:
        return _report("sts", evaluator(embedder), options, systems)


@evaluate.command()
@click.option("--index", type=FOLDER, help="Index to search.  [default: a new exact index]")
@ranking_options("dense")
@no_cache
@eval_options
@click.pass_context
def retrieval(
    ctx: click.Context,
    /,
    index: Path | None,
    rerank: str | None,
    rerank_windows: int,
    **_: object,
) -> int:
    """Measure search on BEIR folders.

    The corpus of each folder is searched with its queries.
    """
    from sbert_search.evaluation.retrieval import evaluate_retrieval
    from sbert_search.search.rerankers.maxp import BestWindow

    options, search = EvalOptions.of(ctx), search_options(ctx)
    reranker = BestWindow(options.cross_encoder(rerank), rerank_windows) if rerank else None
    with options.embedder() as embedder:
        run = partial(
            evaluate_retrieval,
            embedder=embedder,
            data=options.data,
            index=index,
            search=search,
            reranker=reranker,
            seed=options.seed,
        )
        return _report("retrieval", run, options)


@evaluate.command()
@eval_options
@click.pass_context
def rerank(ctx: click.Context, /, **_: object) -> int:
    """Measure a cross-encoder on reranking.

    The cross-encoder orders the given candidates of each query.
    """
    from sbert_search.evaluation.rerank import evaluate_rerank

    options = EvalOptions.of(ctx)
    model = options.cross_encoder(options.model)
    run = partial(evaluate_rerank, reranker=model, data=options.data, seed=options.seed)
    return _report("rerank", run, options)


@evaluate.command()
@eval_options
@click.pass_context
def nli(ctx: click.Context, /, **_: object) -> int:
    """Measure a cross-encoder on inference (NLI)."""
    from sbert_search.evaluation.nli import evaluate_nli

    options = EvalOptions.of(ctx)
    model = options.cross_encoder(options.model)
    run = partial(evaluate_nli, model=model, data=options.data, seed=options.seed)
    return _report("nli", run, options)


@evaluate.command()
@no_cache
@eval_options
@click.pass_context
def triplets(ctx: click.Context, /, **_: object) -> int:
    """Measure the accuracy on triplets.

    This is the share of anchors that are nearer to their positive text than to every negative.
    """
    from sbert_search.evaluation.triplets import evaluate_triplets

    options = EvalOptions.of(ctx)
    with options.embedder() as embedder:
        run = partial(evaluate_triplets, embedder=embedder, data=options.data, seed=options.seed)
        return _report("triplets", run, options)


def _report(
    kind: Kind,
    evaluate: Evaluate,
    options: EvalOptions,
    baselines: Mapping[str, Evaluate] | None = None,
) -> int:
    """Evaluate all tasks, print and write the scores, and compare them with expected scores."""
    from sbert_search.evaluation.expected import judge, load_expected
    from sbert_search.evaluation.report import refuse_overwriting, write_reports
    from sbert_search.evaluation.tasks import distinct_tasks, find_task, load_suite

    tasks, suite, out = options.tasks, options.suite, options.out
    if bool(tasks) == bool(suite):
        raise click.UsageError("Name tasks or data sets, or one --suite.")
    loaded_suite = load_suite(suite) if suite else None
    names = loaded_suite.runnable if loaded_suite else tasks
    to_run = distinct_tasks([find_task(kind, name, split=options.split) for name in names])
    if out:
        paths = [*names, suite, options.expect, options.model]
        data = [options.data / task.path for task in to_run]
        refuse_overwriting(to_run, out, [*data, *(Path(path) for path in paths if path)])
    expected = load_expected(options.expect) if options.expect else None
    evaluations = list(_evaluated(to_run, evaluate))
    of_baselines = {name: list(_evaluated(to_run, run)) for name, run in (baselines or {}).items()}
    _show(evaluations, loaded_suite, of_baselines, as_json=options.as_json)
    if out:
        for path in write_reports(evaluations, out, loaded_suite, of_baselines):
            note(f"wrote {path}")
    verdicts = [judge(evaluation, expected) for evaluation in evaluations if expected]
    for verdict in verdicts:
        note(str(verdict))
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def _evaluated(tasks: Sequence[EvalTask], evaluate: Evaluate) -> Iterator[Evaluation]:
    for task in tasks:
        note(f"{task.name}: {task.path}, {task.split}")
        yield evaluate(task)


def _show(
    evaluations: Sequence[Evaluation],
    suite: EvalSuite | None,
    of_baselines: Mapping[str, Sequence[Evaluation]],
    *,
    as_json: bool,
) -> None:
    from sbert_search.evaluation.report import score_table, system_table

    if not as_json:
        show_table(*score_table(evaluations, suite))
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
        "main_metric": evaluation.task.main_metric,
        "score": evaluation.main_score,
        "interval": evaluation.interval,
        "scores": evaluation.scores,
        "counts": evaluation.counts,
        "settings": evaluation.manifest["settings"],
    }
