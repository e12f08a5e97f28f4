"""`eval`: evaluate a model or an index on tasks with known answers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbert_search.cli.evaluate.reporting import (
    FILE,
    FOLDER,
    EvalOptions,
    eval_options,
    no_cache,
    report,
)
from sbert_search.cli.lazy_group import is_for_all_commands, lazy_group
from sbert_search.cli.options.search import ranking_options, search_options
from sbert_search.cli.options.shared import refuse_typed

if TYPE_CHECKING:
    from sbert_search.cli.evaluate.reporting import Evaluate
    from sbert_search.embed.protocol import TextEmbedder
    from sbert_search.search.rerankers import Reranker


_COMMANDS = {
    "compare": "sbert_search.cli.evaluate.commands:compare",
    "fusion": "sbert_search.cli.evaluate.commands:fusion",
    "mlm": "sbert_search.cli.evaluate.commands:mlm",
    "sts": "sbert_search.cli.evaluate.run:sts",
    "retrieval": "sbert_search.cli.evaluate.run:retrieval",
    "rerank": "sbert_search.cli.evaluate.run:rerank",
    "nli": "sbert_search.cli.evaluate.run:nli",
    "triplets": "sbert_search.cli.evaluate.run:triplets",
}


@click.group("eval", cls=lazy_group("eval", _COMMANDS))
def evaluate() -> None:
    """Evaluate a model on tasks with known answers.

    TASK is the name of a task file in eval/tasks, or the path of any task file; DATA is the folder
    or file of a data set.
    """


@click.command()
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

    The score is the correlation of cosine similarities, or of the scores of a cross-encoder, with
    human scores of text pairs.
    """
    if cross_encoder and baselines:
        raise click.UsageError(
            "--baselines evaluates the encoder of --model, and --cross-encoder replaces --model; "
            "omit one of them."
        )
    if cross_encoder:
        refuse_typed(ctx, {"model", "no_cache"}, "with --cross-encoder")
    from sbert_search.evaluate.similarity import evaluate_sts
    from sbert_search.text.labelled.pairs import read_pairs

    seen = read_pairs(trained_on) if trained_on else []
    options = EvalOptions.of(ctx)
    data, seed = options.data, options.seed

    def evaluator(model: TextEmbedder | Reranker) -> Evaluate:
        return lambda task: evaluate_sts(task, model, data=data, trained_on=seen, seed=seed)

    if cross_encoder:
        return report("sts", evaluator(options.cross_encoder(cross_encoder)), options)
    systems = {}
    if baselines:
        from sbert_search.evaluate.baselines import open_baselines

        embedders = open_baselines(options.model, device=options.device)
        systems = {name: evaluator(embedder) for name, embedder in embedders.items()}
    with options.embedder() as embedder:
        return report("sts", evaluator(embedder), options, systems)


@click.command()
@click.option("--index", type=FOLDER, help="Index to search.  [default: a new exact index]")
@ranking_options("auto")
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

    The corpus of each folder is searched with its queries, by default in the mode that `search`
    uses. Queries are read as plain text: quotes, + and - in them are no operators. With --index,
    the model is that of the index; --model can name another place to find it. If a query is itself
    a document of the corpus, with the same id and text, its results leave out this document.
    """
    from sbert_search.embed.engines.protocol import pair_engine
    from sbert_search.evaluate.retrieval import evaluate_retrieval
    from sbert_search.search.rerankers import BestWindow

    options, search = EvalOptions.of(ctx), search_options(ctx)
    if index is not None and (options.model is None or is_for_all_commands(ctx, "model")):
        from sbert_search.index.building.model_check import require_model
        from sbert_search.index.index import Index

        identity = Index.open(index).identity
        require_model(identity, index)
        options = replace(options, model=identity.name)
    scorer = replace(options, engine=pair_engine(options.engine))
    reranker = BestWindow(scorer.cross_encoder(rerank), rerank_windows) if rerank else None
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
        return report("retrieval", run, options)


@click.command()
@eval_options
@click.pass_context
def rerank(ctx: click.Context, /, **_: object) -> int:
    """Measure a cross-encoder on reranking.

    The cross-encoder orders the given candidates of each query.
    """
    from sbert_search.evaluate.cross_encoders import evaluate_rerank

    options = EvalOptions.of(ctx)
    model = options.cross_encoder(options.model)
    run = partial(evaluate_rerank, reranker=model, data=options.data, seed=options.seed)
    return report("rerank", run, options)


@click.command()
@eval_options
@click.pass_context
def nli(ctx: click.Context, /, **_: object) -> int:
    """Measure a cross-encoder on inference (NLI)."""
    from sbert_search.evaluate.cross_encoders import evaluate_nli

    options = EvalOptions.of(ctx)
    model = options.cross_encoder(options.model)
    run = partial(evaluate_nli, model=model, data=options.data, seed=options.seed)
    return report("nli", run, options)


@click.command()
@no_cache
@eval_options
@click.pass_context
def triplets(ctx: click.Context, /, **_: object) -> int:
    """Measure the accuracy on triplets.

    This is the share of anchors that are nearer to their positive text than to every negative.
    """
    from sbert_search.evaluate.similarity import evaluate_triplets

    options = EvalOptions.of(ctx)
    with options.embedder() as embedder:
        run = partial(evaluate_triplets, embedder=embedder, data=options.data, seed=options.seed)
        return report("triplets", run, options)
