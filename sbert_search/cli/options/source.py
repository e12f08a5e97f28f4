"""Options and final report of the commands that read documents."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import REJECTED_ROWS, emit, say
from sbert_search.cli.options.shared import Decorator, F, given, typed
from sbert_search.config import to_mapping

if TYPE_CHECKING:
    from sbert_search.embed.arguments import EmbedderOptions
    from sbert_search.index.building.ingest import IngestReport
    from sbert_search.index.building.read_settings import ReadSettings

R = TypeVar("R", bound="ReadSettings")
_RULES = ("on_error", "on_truncate", "text_as", "chunk_tokens", "chunk_overlap")

_SOURCE_HELP = """

    SOURCE is JSONL, JSON, CSV, TSV, Parquet, Arrow or .txt (one document a line), plain or
    compressed; a SQLite or DuckDB file; a Markdown, HTML, reStructuredText, notebook or source code
    file (one document), or a folder of such files; a BEIR folder; a quoted glob of files; or "-"
    for JSONL on stdin.
    """


_FIELD_OPTIONS = (
    ("--id-field", "NAME", "Field that holds the id.  [default: detected]"),
    (
        "--text-field",
        "NAME,...",
        "Field of the text, or several, which are joined by a blank line.  [default: detected]",
    ),
    ("--title-field", "NAME", "Field that holds the title.  [default: detected]"),
    (
        "--metadata-fields",
        "NAME,...",
        "Fields that become metadata columns.  [default: all others]",
    ),
)

column_type_option: Decorator = click.option(
    "--column-type",
    metavar="NAME=TYPE,...",
    help="Types of metadata columns, such as year=int,published=date. Types: text, int, float, "
    "bool, date, timestamp, list[text] and other lists.  [default: detected]",
)


def field_options(function: F) -> F:
    """Add the options that name the fields of a document."""
    for option, metavar, help in reversed(_FIELD_OPTIONS):
        function = click.option(option, metavar=metavar, help=help)(function)
    return function


def source_options(function: F) -> F:
    """Add the argument SOURCE and the options that name the fields of a document."""
    function.__doc__ = f"{function.__doc__}{_SOURCE_HELP}"
    function = click.option(
        "--text-as",
        type=click.Choice(["lines", "file"]),
        help="What a document is in a .txt file: a line, or the file.  [default: a line; in a "
        "folder, the file]",
    )(function)
    function = column_type_option(function)
    function = click.option(
        "--sql",
        metavar="SELECT",
        help="Query that gives the rows of a SQLite or DuckDB file.  [default: its only table]",
    )(function)
    function = field_options(function)
    return click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")(function)


def vector_options(function: F) -> F:
    """Add the options for vectors that the user provides, so that no model embeds the texts."""
    function = click.option(
        "--vector-field",
        metavar="NAME",
        help="Field with the vector of each row, a list of numbers; no model embeds the row.",
    )(function)
    return click.option(
        "--vectors",
        type=click.Path(path_type=Path),
        metavar="FILE.npy",
        help="Given vectors, one for each row of SOURCE, to index in place of those of a model.",
    )(function)


def has_vectors(ctx: click.Context, settings: ReadSettings) -> bool:
    """Whether vectors are given, by an option or by a field that the settings name."""
    if ctx.params["vectors"] and ctx.params["vector_field"]:
        raise click.UsageError("Give vectors either by --vectors or by --vector-field.")
    return bool(ctx.params["vectors"] or settings.fields.vector)


def typed_model_options(ctx: click.Context) -> EmbedderOptions:
    """Return the options for opening a model that are on the command line."""
    on_line = typed(ctx)
    options = {name: value for name, value in model_options(ctx).items() if name in on_line}
    return cast("EmbedderOptions", options)


def overriding(ctx: click.Context) -> dict[str, Any]:
    """Return the options that override settings, with their values.

    If a recipe is named, only those on the command line do: the environment and the configuration
    file apply to all commands and must not change a recipe.
    """
    names = typed(ctx) if ctx.params.get("recipe_file") else given(ctx)
    return {name: ctx.params[name] for name in names}


def with_read_options(settings: R, ctx: click.Context) -> R:
    """Return the settings, with the values of the options that `overriding` returns."""
    chosen = overriding(ctx)
    sizes = chosen.keys() & {"chunk_tokens", "chunk_overlap"}
    if sizes and chosen.setdefault("on_truncate", "chunk") != "chunk":
        on_line = typed(ctx)
        if wrong := sizes & on_line if "on_truncate" in on_line else sizes:
            option = f"--{min(wrong).replace('_', '-')}"
            raise click.UsageError(f"{option} needs --on-truncate chunk.")
        chosen = {name: value for name, value in chosen.items() if name not in sizes}
    rules: dict[str, Any] = {name: chosen[name] for name in _RULES if name in chosen}
    fields = ("id", "text", "title", "vector")
    named = {name: chosen[f"{name}_field"] for name in fields if f"{name}_field" in chosen}
    if "text" in named:
        named["text"] = _names(named["text"])
    if "metadata_fields" in chosen:
        rules["metadata_fields"] = _names(chosen["metadata_fields"])
    if "sql" in chosen:
        rules["query"] = chosen["sql"]
    if "column_type" in chosen:
        rules["column_types"] = _column_types(chosen["column_type"])
    return replace(settings, fields=replace(settings.fields, **named), **rules)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _column_types(text: str) -> dict[str, str]:
    types = {}
    for part in filter(None, text.split(",")):
        name, equals, kind = part.rpartition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"--column-type {part!r}: write NAME=TYPE, such as year=int.")
        types[name.strip()] = kind.strip()
    return types


def model_options(ctx: click.Context) -> EmbedderOptions:
    """Return the options for opening a model, such as its device."""
    options: EmbedderOptions = {
        "device": ctx.params["device"],
        "engine": ctx.params["engine"],
        "precision": ctx.params["precision"],
    }
    if ctx.params.get("calibrate"):
        options["calibrate"] = ctx.params["calibrate"]
    if "batch_tokens" in ctx.params:
        options["batch_tokens"] = ctx.params["batch_tokens"]
    return options


def finish(
    ctx: click.Context,
    report: IngestReport,
    path: Path,
    made: Literal["index", "file"],
    *,
    as_json: bool,
) -> None:
    """Print how many rows were indexed or rejected; exit with 3 if some were rejected."""
    counts = report.counts
    if as_json:
        facts = to_mapping(report)
        del facts["counts"]
        emit({made: str(path), "read": counts.read, **to_mapping(counts), **facts})
    else:
        kept = (
            f"{counts.indexed:,} indexed, {counts.replaced:,} replaced, {counts.duplicate:,} "
            "duplicate"
            if made == "index"
            else f"{counts.indexed:,} embedded"  # a file also contains duplicates
        )
        say(
            f"{counts.read:,} rows read: {kept}, {counts.rejected:,} rejected "
            f"({report.seconds:,.1f} s)."
        )
        if made == "index" and counts.indexed:
            say(f'Search it: sbert-search search {shlex.quote(str(path))} "your question"')
    if report.rejects_file:
        note(f"{counts.rejected:,} rows were rejected; {report.rejects_file} says why.")
        ctx.exit(REJECTED_ROWS)
