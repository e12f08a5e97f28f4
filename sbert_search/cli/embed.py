"""`embed` and `fill-mask`: write the embeddings of texts, or predict masked tokens of a text."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import click

from sbert_search.cli.console import emit, show_table
from sbert_search.cli.options.runner import opened_runner, runner_options
from sbert_search.cli.options.shared import (
    CHUNKING,
    document_prompt,
    embedder_options,
    model_options,
    shared_options,
)
from sbert_search.cli.options.source import finish, source_options, with_read_options
from sbert_search.index.building.settings import ReadSettings


@click.command()
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Parquet file to write."
)
@source_options
@embedder_options
@document_prompt
@runner_options
@shared_options("batch-tokens", *CHUNKING, "on-error", "memory", "quiet", "json")
@click.pass_context
def embed(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    out: Path,
    model: str | None,
    as_json: bool,
    **_: object,
) -> None:
    """Embed the documents of SOURCE and write a Parquet file.

    The file has one row for each passage. Its columns are doc_id, chunk, text, n_tokens,
    lost_tokens (tokens that were cut off), vector (a fixed-size list of float32), and one column
    for each metadata field.
    """
    from sbert_search.index.building.model_check import as_embedder
    from sbert_search.index.building.parquet import embed_to_parquet

    settings = with_read_options(ReadSettings(), ctx)
    open_model = partial(as_embedder, model, **model_options(ctx))
    with opened_runner(ctx) as embed_batches:
        report = embed_to_parquet(sources, out, open_model, settings, embed=embed_batches)
    finish(ctx, report, out, "file", as_json=as_json)


@click.command("fill-mask")
@click.argument("model")
@click.argument("text")
@click.option("-k", default=5, show_default=True, help="Number of tokens to print for each [MASK].")
@shared_options("device", "quiet", "json")
def fill_mask(model: str, text: str, k: int, device: str, as_json: bool) -> None:
    """Predict the most probable tokens for each [MASK] of TEXT.

    MODEL is the folder `model` of a `pretrain` run, or a published masked language model. Such a
    model reads the text on both sides of a mask; it cannot continue a text.
    """
    from sbert_search.base.device import resolve_device
    from sbert_search.models.loading.resolve import resolve_model
    from sbert_search.models.pretraining import MaskedLanguageModel
    from sbert_search.models.pretraining import fill_mask as fill

    loaded = MaskedLanguageModel.load(resolve_model(model).path).to(resolve_device(device))
    predictions = fill(loaded, text, k=k)
    if as_json:
        for prediction in predictions:
            emit(dataclasses.asdict(prediction))
    else:
        rows = [(p.hole + 1, p.rank, p.token, p.probability, p.text) for p in predictions]
        show_table(("mask", "rank", "token", "probability", "text"), rows)
