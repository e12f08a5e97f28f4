"""`eval`: evaluate a model or an index on tasks with known answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbert_search.cli.console import emit, show_table
from sbert_search.cli.evaluate.compare import compare
from sbert_search.cli.evaluate.fusion import fusion
from sbert_search.cli.evaluate.mlm import mlm
from sbert_search.cli.ranking_options import ranking_options, search_options
from sbert_search.cli.shared_options import choice, shared_options
from sbert_search.runtime.progress import note

if TYPE_CHECKING:
    from sbert_search.embedding.protocol import TextEmbedder
    from sbert_search.evaluation.manifest import Evaluation
    from sbert_search.evaluation.tasks import EvalSuite, EvalTask, Kind
    from sbert_search.search.reranker import Reranker

    Evaluate = Callable[[EvalTask], Evaluation]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_MODEL = ("model", "device", "engine", "precision")


def _eval_options(command: Any) -> Any:
    """Add the argument and the options that all evaluations share."""
    for decorate in (
        shared_options("seed", "quiet", "json"),
        choice(
            "precision",
            "fp32",
            "auto",
            "bf16",
            "fp16",
            help="Number format of the model's computation; published scores use fp32.",
        ),
        shared_options("model", "device", "engine"),
        click.option(
            "--expect", type=_FILE, help="File of expected scores; exit with 1 if one differs."
        ),
        click.option("--out", type=_FOLDER, help="Folder for reports with the score of each item."),
        click.option("--split", default="test", show_default=True, help="Split of a DATA folder."),
        click.option(
            "--data",
            type=_FOLDER,
            default="data",
            show_default=True,
            help="Folder that the paths in task files start from.",
        ),
        click.option("--suite", type=_FILE, help="File that lists tasks for one report."),
        click.argument("tasks", nargs=-1, metavar="[TASK|DATA]..."),
    ):
        command = decorate(command)
    return command


_no_cache = click.option(
    "--no-cache", is_flag=True, help="Do not read or write the cache of embeddings."
)


@click.group()
def evaluate() -> None:
    """Evaluate a model on tasks with known answers.

    TASK is the name or the path of a task file in eval/tasks; DATA is the folder or file of a data
    set.
    """


evaluate.add_command(compare)
evaluate.add_command(fusion)
evaluate.add_command(mlm)


@evaluate.command()
@click.option("--trained-on", type=_FILE, help="Pairs the model was trained on; they are excluded.")
@click.option("--cross-encoder", metavar="MODEL", help="Cross-encoder to evaluate instead.")
@click.option(
    "--baselines",
    is_flag=True,
    help="Also evaluate the encoder's mean token embedding, [CLS] state and mean state.",
)
@_no_cache
@_eval_options
def sts(trained_on: Path | None, cross_encoder: str | None, baselines: bool, **options: Any) -> int:
    """Measure textual similarity (STS).

    This is the correlation of cosine similarities with human scores of text pairs.
    """
    from sbert_search.corpus.pairs import read_pairs
    from sbert_search.evaluation.sts import evaluate_sts

    seen = read_pairs(trained_on) if trained_on else []
    data, seed = options["data"], options["seed"]

    def evaluator(model: TextEmbedder | Reranker) -> Evaluate:
        return lambda task: evaluate_sts(task, model, data=data, trained_on=seen, seed=seed)

    if cross_encoder:
        scorer = _cross_encoder({**options, "model": cross_encoder})
        return _report("sts", evaluator(scorer), options)
    systems = {}
    if baselines:
        from sbert_search.embedding.baselines import open_baselines

        embedders = open_baselines(options["model"], device=options["device"])
        systems = {name: evaluator(embedder) for name, embedder in embedders.items()}
    with _embedder(options) as embedder:
        return _report("sts", evaluator(embedder), options, systems)


@evaluate.command()
@click.option("--index", type=_FOLDER, help="Index to search.  [default: a new exact index]")
@ranking_options
@_no_cache
@_eval_options
def retrieval(
    index: Path | None,
    rerank: str | None,
    rerank_windows: int,
    **options: Any,
) -> int:
    """Measure search on BEIR folders.

    The corpus of each folder is searched with its queries.
    """
    from sbert_search.evaluation.retrieval import evaluate_retrieval
    from sbert_search.search.maxp import BestWindow

    search = search_options(options)
    reranker = None
    if rerank:
        reranker = BestWindow(_cross_encoder({**options, "model": rerank}), rerank_windows)
    with _embedder(options) as embedder:
        fixed = {"index": index, "search": search, "reranker": reranker, "seed": options["seed"]}
        return _report(
            "retrieval",
            lambda task: evaluate_retrieval(task, embedder, data=options["data"], **fixed),
            options,
        )


@evaluate.command()
@_eval_options
def rerank(**options: Any) -> int:
    """Measure a cross-encoder on reranking.

    It orders the given candidates of each query.
    """
    from sbert_search.evaluation.rerank import evaluate_rerank

    model, data, seed = _cross_encoder(options), options["data"], options["seed"]
    return _report(
        "rerank", lambda task: evaluate_rerank(task, model, data=data, seed=seed), options
    )


@evaluate.command()
@_eval_options
def nli(**options: Any) -> int:
    """Measure a cross-encoder on inference (NLI)."""
    from sbert_search.evaluation.nli import evaluate_nli

    model, data, seed = _cross_encoder(options), options["data"], options["seed"]
    return _report("nli", lambda task: evaluate_nli(task, model, data=data, seed=seed), options)


@evaluate.command()
@_no_cache
@_eval_options
def triplets(**options: Any) -> int:
    """Measure the accuracy on triplets.

    This is the share of anchors that are nearer to their positive than to their negative text.
    """
    from sbert_search.evaluation.triplets import evaluate_triplets

    data, seed = options["data"], options["seed"]
    with _embedder(options) as embedder:
        return _report(
            "triplets",
            lambda task: evaluate_triplets(task, embedder, data=data, seed=seed),
            options,
        )


@contextmanager
def _embedder(options: Mapping[str, Any]) -> Iterator[TextEmbedder]:
    """Open the bi-encoder, with the cache of embeddings unless --no-cache is given."""
    from sbert_search.embedding.cache import CachedEmbedder
    from sbert_search.embedding.embedder import Embedder, open_embedder

    embedder = open_embedder(**{name: options[name] for name in _MODEL})
    if options["no_cache"] or not isinstance(embedder, Embedder):
        yield embedder
        return
    with closing(CachedEmbedder(embedder)) as cached:
        yield cached
        note(f"{cached.computed:,} texts were embedded, {cached.cached:,} came from the cache.")


def _cross_encoder(options: Mapping[str, Any]) -> Reranker:
    from sbert_search.search.reranker import Reranker

    if options["model"] is None:
        raise click.UsageError("Name a cross-encoder with --model.")
    return Reranker(**{name: options[name] for name in _MODEL})


def _report(
    kind: Kind,
    evaluate: Evaluate,
    options: Mapping[str, Any],
    baselines: Mapping[str, Evaluate] | None = None,
) -> int:
    """Evaluate all tasks, print and write the scores, and compare them with expected scores."""
    from sbert_search.evaluation.expected import judge, load_expected
    from sbert_search.evaluation.report import require_room, write_reports
    from sbert_search.evaluation.tasks import distinct_tasks, find_task, load_suite

    tasks, suite, out = options["tasks"], options["suite"], options["out"]
    if bool(tasks) == bool(suite):
        raise click.UsageError("Name tasks or data sets, or one --suite.")
    loaded_suite = load_suite(suite) if suite else None
    names = loaded_suite.runnable if loaded_suite else tasks
    to_run = distinct_tasks([find_task(kind, name, split=options["split"]) for name in names])
    if out:
        paths = [*names, suite, options["expect"], options["model"]]
        data = [options["data"] / task.path for task in to_run]
        require_room(to_run, out, [*data, *(Path(path) for path in paths if path)])
    expected = load_expected(options["expect"]) if options["expect"] else None
    evaluations = list(_evaluated(to_run, evaluate))
    others = {name: list(_evaluated(to_run, run)) for name, run in (baselines or {}).items()}
    _show(evaluations, loaded_suite, others, as_json=options["as_json"])
    if out:
        for path in write_reports(evaluations, out, loaded_suite, others):
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
    others: Mapping[str, Sequence[Evaluation]],
    *,
    as_json: bool,
) -> None:
    from sbert_search.evaluation.report import score_table, system_table

    if not as_json:
        show_table(*score_table(evaluations, suite))
        if others:
            name = evaluations[0].manifest["model"]["name"]
            show_table(*system_table({name: evaluations, **others}))
        return
    for system, its_evaluations in {"": evaluations, **others}.items():
        for evaluation in its_evaluations:
            emit(_record(evaluation) | ({"system": system} if system else {}))


def _record(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "task": evaluation.task.name,
        "main_metric": evaluation.task.main_metric,
        "score": evaluation.main_score,
        "interval": evaluation.interval,
        "scores": evaluation.scores,
        "counts": evaluation.counts,
        "settings": evaluation.manifest["settings"],
    }
