"""`eval`: evaluate a model or an index on tasks with known answers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from sbert_search.cli.evaluate.reporting import (
    FILE,
    FOLDER,
    EvalOptions,
    eval_options,
    no_cache,
    report,
)
from sbert_search.cli.lazy_group import LazyGroup, is_for_all_commands
from sbert_search.cli.options.search import (
    boost_option,
    encoding_option,
    ranking_options,
    search_options,
)
from sbert_search.cli.options.shared import options_of, prompt_options, refuse_typed
from sbert_search.search.options import SearchOptions

if TYPE_CHECKING:
    from sbert_search.embed.arguments import EmbedderOptions


@click.group("eval", cls=LazyGroup)
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
def sts(
    options: EvalOptions, trained_on: Path | None, cross_encoder: str | None, baselines: bool
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
        unused = {"model", "no_cache"}
        refuse_typed(click.get_current_context(), unused, "with --cross-encoder")
    from sbert_search.evaluate.similarity import evaluate_sts
    from sbert_search.text.labelled.pairs import read_pairs

    evaluate = partial(evaluate_sts, trained_on=read_pairs(trained_on) if trained_on else [])
    if cross_encoder:
        return report("sts", evaluate, options.cross_encoder(cross_encoder), options)
    systems = {}
    if baselines:
        from sbert_search.evaluate.baselines import open_baselines

        systems = open_baselines(options.model, device=options.hardware["device"])
    with options.embedder() as embedder:
        return report("sts", evaluate, embedder, options, systems)


@click.command()
@click.option("--index", type=FOLDER, help="Index to search.  [default: a new exact index]")
@options_of(SearchOptions, "where", "fuzzy", "group_by")
@ranking_options("auto")
@boost_option
@no_cache
@prompt_options
@encoding_option
@eval_options
def retrieval(
    options: EvalOptions, index: Path | None, rerank: str | None, rerank_windows: int, **_: object
) -> int:
    """Measure search on BEIR folders.

    The corpus of each folder is searched with its queries, by default in the mode that `search`
    uses. Queries are read as plain text: quotes, + and - in them are no operators. With --index,
    the model is that of the index; --model can name another place to find it. If a query is itself
    a document of the corpus, with the same id and text, its results leave out this document.
    """
    from sbert_search.embed.arguments import reranker_options
    from sbert_search.evaluate.retrieval import evaluate_retrieval
    from sbert_search.search.rerankers import BestWindow

    ctx = click.get_current_context()
    search = search_options(ctx)
    if index is not None:
        from sbert_search.index.building.model_check import require_model, with_kept_choices
        from sbert_search.index.index import Index

        opened = Index.open(index)
        if options.model is None or is_for_all_commands(ctx, "model"):
            require_model(opened.identity, index)
            options = replace(options, model=opened.identity.name)
        hardware = cast("EmbedderOptions", options.hardware)
        kept = with_kept_choices(options.model, hardware, opened.state.settings)
        options = replace(options, hardware=kept)
    scorer = replace(options, hardware=reranker_options(options.hardware))
    reranker = BestWindow(scorer.cross_encoder(rerank), rerank_windows) if rerank else None
    with options.embedder() as embedder:
        read = partial(evaluate_retrieval, encoding=ctx.params["encoding"])
        evaluate = partial(read, index=index, search=search, reranker=reranker)
        return report("retrieval", evaluate, embedder, options)


@click.command()
@eval_options
def rerank(options: EvalOptions) -> int:
    """Measure a cross-encoder on reranking.

    The cross-encoder orders the given candidates of each query.
    """
    from sbert_search.evaluate.cross_encoders import evaluate_rerank

    return report("rerank", evaluate_rerank, options.cross_encoder(options.model), options)


@click.command()
@eval_options
def nli(options: EvalOptions) -> int:
    """Measure a cross-encoder on inference (NLI)."""
    from sbert_search.evaluate.cross_encoders import evaluate_nli

    return report("nli", evaluate_nli, options.cross_encoder(options.model), options)


@click.command()
@no_cache
@eval_options
def triplets(options: EvalOptions) -> int:
    """Measure the accuracy on triplets.

    This is the share of anchors that are nearer to their positive text than to every negative.
    """
    from sbert_search.evaluate.similarity import evaluate_triplets

    with options.embedder() as embedder:
        return report("triplets", evaluate_triplets, embedder, options)
