"""`eval fusion`: choose how hybrid search fuses dense and lexical scores."""

from __future__ import annotations

from pathlib import Path

import click

from sbert_search.cli.console import emit, say, show_table
from sbert_search.cli.options.shared import index_embedder_options, shared_options
from sbert_search.cli.options.source import model_options
from sbert_search.config import to_mapping

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("path", metavar="DIR", type=_FOLDER)
@click.argument("data", metavar="DATA", type=_FOLDER)
@click.option(
    "--split", default="train", show_default=True, help="Split of DATA's relevance judgements."
)
@click.option(
    "--folds", default=5, show_default=True, help="Number of folds of the cross-validation."
)
@click.option("--measure", default="nDCG@10", show_default=True, help="Metric to maximise.")
@index_embedder_options
@shared_options("allow-inexact", "seed", "quiet", "json")
@click.pass_context
def fusion(
    ctx: click.Context,
    /,
    path: Path,
    data: Path,
    split: str,
    folds: int,
    measure: str,
    model: str | None,
    allow_inexact: bool,
    seed: int,
    as_json: bool,
    **_: object,
) -> None:
    """Choose the fusion of `search --mode hybrid` on judged queries.

    DIR is an index and DATA a BEIR folder with queries and relevance judgements. Measure the
    chosen fusion on other queries, since its score on the queries of DATA is too high.
    """
    from sbert_search.evaluate.fusion_selection import choose_fusion, name_of
    from sbert_search.index.shards.index import open_index
    from sbert_search.text.labelled.retrieval import read_qrels, read_queries

    qrels = read_qrels(data, split)
    queries = [query for query in read_queries(data) if query.query_id in qrels]
    index = open_index(path)
    embedder = index.matching_embedder(model, allow_inexact=allow_inexact, **model_options(ctx))
    choice = choose_fusion(index, embedder, queries, qrels, measure=measure, folds=folds, seed=seed)
    if as_json:
        emit({"queries": len(queries), "measure": measure, **to_mapping(choice)})
        return
    rows = [[name, f"{score:.4f}"] for name, score in choice.scores.items()]
    show_table(["fusion", measure], rows)
    best = choice.fusion
    say(
        f"Use {name_of(best)} (--fusion {best.method} --dense-weight {best.dense_weight:g}). "
        f"{measure} over {len(queries):,} queries: {choice.held_out:.4f} with fusions chosen on "
        f"the other folds, {choice.default:.4f} with the default fusion."
    )
