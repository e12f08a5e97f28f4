"""`index build`, `add`, `upsert` and `delete`: change the documents of an index."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

import click

from sbert_search.cli.console import emit, say
from sbert_search.cli.options.runner import opened_runner, runner_options
from sbert_search.cli.options.shared import (
    CHUNKING,
    ListOption,
    embedder_options,
    index_embedder_options,
    index_folder,
    joined,
    model_options,
    options_of,
    prompt_options,
    shared_options,
    typed_model_options,
)
from sbert_search.cli.options.source import (
    changed,
    changed_words,
    finish,
    has_vectors,
    new_columns_option,
    overriding,
    source_options,
    vector_options,
    with_read_options,
)
from sbert_search.declared import declared
from sbert_search.index.building.settings import BuildSettings
from sbert_search.index.settings import IndexSpec, LexicalSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbert_search.embed.arguments import CheckedOptions
    from sbert_search.embed.protocol import TextEmbedder
    from sbert_search.index.building.ingest import IngestReport


_predicted_options = options_of(BuildSettings, "classify", "tag", unset="", multiple=True)


index_options = joined(
    options_of(IndexSpec, "factory", holds=False, flags={"factory": "--spec"}),
    options_of(BuildSettings, "metric", holds=False),
    options_of(LexicalSettings, "language", unset="guessed", holds=False),
    options_of(LexicalSettings, "title_weight", holds=False),
    options_of(BuildSettings, "dtype", holds=False),
)
"""The options of a new index: FAISS type, metric, language and type of the vectors."""


@click.command()
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the index.",
)
@click.option(
    "--recipe",
    "recipe_file",
    type=click.Path(path_type=Path),
    help="TOML file with checksums, model and settings. Options on the command line override it; "
    "the environment and the configuration file do not.",
)
@click.option(
    "--shards",
    "n_shards",
    type=click.IntRange(min=1),
    help="Make a sharded index: a folder of this many indexes that are used as one.",
)
@index_options
@_predicted_options
@source_options
@new_columns_option
@vector_options
@embedder_options
@prompt_options
@runner_options
@shared_options("batch-tokens", *CHUNKING, "on-error", "memory", "quiet", "json")
@click.pass_context
def build(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    out: Path,
    recipe_file: Path | None,
    n_shards: int | None,
    as_json: bool,
    **_: object,
) -> None:
    """Build an index, or resume an interrupted build."""
    from sbert_search.index.building.build import build_index, open_for_build
    from sbert_search.index.building.given_vectors import refuse_model_options, split_vectors
    from sbert_search.index.building.model_check import as_embedder
    from sbert_search.index.building.recipe import load_recipe

    settings: BuildSettings = BuildSettings()
    recipe = None
    opened: Callable[..., TextEmbedder] = partial(as_embedder, ctx.params["model"])
    if recipe_file:
        settings = recipe = load_recipe(recipe_file)
        for source in sources:
            recipe.check_corpus(Path(source))
    named: str | None = ctx.params["model"]
    if recipe and "model" not in overriding(ctx):
        named, opened = recipe.model, recipe.open_model
    options = model_options(ctx)
    if recipe and "prompts" not in typed_model_options(ctx):
        options.pop("prompts", None)
    open_model = partial(open_for_build, out, named, opened, n_shards=n_shards, **options)
    settings = with_overrides(settings, ctx)
    vectors, fields = split_vectors(ctx.params["vectors"], settings.fields)
    no_model = has_vectors(ctx, settings) and not named
    if no_model:
        refuse_model_options(typed_model_options(ctx))
    if has_vectors(ctx, settings) and ctx.params.get("runner", "local") != "local":
        raise click.UsageError(
            "--runner ray embeds texts, and the vectors are given; leave it out."
        )
    with opened_runner(ctx) as embed:
        report = build_index(
            sources,
            out,
            None if no_model else open_model,
            replace(settings, fields=fields),
            vectors=vectors,
            embed=embed,
            n_shards=n_shards,
        )
    finish(ctx, report, out, "index", as_json=as_json)


_update_options = joined(
    index_folder,
    source_options,
    new_columns_option,
    vector_options,
    index_embedder_options,
    shared_options(
        "batch-tokens", "allow-inexact", *CHUNKING, "on-error", "memory", "wait", "quiet", "json"
    ),
)


@click.command()
@_update_options
@click.pass_context
def add(ctx: click.Context, /, path: Path, as_json: bool, **_: object) -> None:
    """Add documents to the index DIR.

    A document is skipped if the index has the same id with the same content, so the command can
    be repeated. A document is a bad row if the index has its id with other content; use upsert to
    replace it. Fields and long texts are treated as in the build, unless options override that.
    """
    _update(ctx, path, "add", as_json)


@click.command()
@_update_options
@click.option(
    "--partial",
    "partial_rows",
    is_flag=True,
    help="Change only the fields that a row has, of a document that is indexed.",
)
@click.option("--dry-run", is_flag=True, help="Count what would be done, and write nothing.")
@click.pass_context
def upsert(ctx: click.Context, /, path: Path, as_json: bool, **_: object) -> None:
    """Add documents and replace those that changed.

    Unchanged documents of the index DIR are skipped. Fields and long texts are treated as in the
    build, unless options override that.
    """
    _update(ctx, path, "upsert", as_json)


@click.command(context_settings={"allow_extra_args": True})
@index_folder
@click.option("--ids", cls=ListOption, metavar="A,B,...", help="Ids of the documents to delete.")
@click.option("--ids-file", type=click.File("rb"), help='File with one id per line; "-": stdin.')
@click.option(
    "--where",
    metavar="EXPR",
    help="Filter of the documents to delete, such as \"year < 2000 AND kind = 'note'\".",
)
@shared_options("wait", "quiet", "json")
@click.pass_context
def delete(
    ctx: click.Context,
    /,
    path: Path,
    ids: str | None,
    ids_file: BinaryIO | None,
    where: str | None,
    wait_s: float,
    as_json: bool,
) -> None:
    r"""Delete documents from the index DIR.

    Spaces are part of an id. A file of ids is UTF-8; its lines end in LF or CRLF, and empty lines
    are skipped. Put an id that contains a comma into a file. Delete an id that contains a line end
    with the Python API: Index.open(DIR).delete(["..."]).
    """
    from sbert_search.index.index import Index
    from sbert_search.text.ids import read_ids

    if ctx.args:
        raise click.UsageError(f"Name ids by --ids: --ids {shlex.quote(','.join(ctx.args))}")
    if sum(option is not None for option in (ids, ids_file, where)) != 1:
        raise click.UsageError("Say what to delete with one of --ids, --ids-file and --where.")
    doc_ids = None if ids is None else ids.split(",")
    if ids_file:
        doc_ids = read_ids(ids_file, ids_file.name)
    index = Index.open(path, wait_s=wait_s)
    deleted = index.delete(doc_ids, where=where)
    absent = len(set(doc_ids)) - deleted if doc_ids else 0
    if as_json:
        emit({"index": str(path), "deleted": deleted, "absent": absent, "documents": len(index)})
    else:
        unknown = f"; unknown ids: {absent:,}" if absent else ""
        say(f"Documents deleted: {deleted:,}, left in {path}: {len(index):,}{unknown}.")


def _update(ctx: click.Context, path: Path, mode: Literal["add", "upsert"], as_json: bool) -> None:
    from sbert_search.index.index import Index

    index = Index.open(path, wait_s=ctx.params["wait_s"])
    ingest: Callable[..., IngestReport] = index.add
    if mode == "upsert":
        partial_rows, dry_run = ctx.params["partial_rows"], ctx.params["dry_run"]
        ingest = partial(index.upsert, partial=partial_rows, dry_run=dry_run)
    settings = with_read_options(index.read_settings, ctx)
    given = has_vectors(ctx, settings)
    if not (ctx.params["vectors"] or ctx.params["vector"]):
        given = given and not index.identity.is_model  # else the model embeds rows without a vector
    opens_model = ctx.params["model"] is not None or not given
    hardware = model_options(ctx) if opens_model else typed_model_options(ctx)
    options = cast("CheckedOptions", dict(hardware))
    if ctx.params["allow_inexact"]:
        options["allow_inexact"] = True
    report = ingest(
        ctx.params["sources"],
        model=ctx.params["model"],
        vectors=ctx.params["vectors"],
        settings=settings,
        **options,
    )
    finish(ctx, report, path, "index", as_json=as_json)


def with_overrides(settings: BuildSettings, ctx: click.Context) -> BuildSettings:
    """Override default or recipe settings with the options that `overriding` returns."""
    chosen = overriding(ctx)
    if chosen.keys() & declared(LexicalSettings).keys():
        words = settings.lexical or LexicalSettings()
        language = chosen.get("language", settings.language)
        settings = replace(settings, lexical=changed_words(words, chosen), language=language)
    settings = replace(settings, spec=changed(settings.spec, IndexSpec, chosen))
    stored = {name: chosen[name] for name in ("metric", "dtype") if name in chosen}
    return replace(with_read_options(settings, ctx), **stored)
