"""Options and final report of the commands that read documents."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import REJECTED_ROWS, emit, say
from sbert_search.cli.options.shared import F, given, joined, options_of, typed
from sbert_search.config import names_of, to_mapping
from sbert_search.declared import declared
from sbert_search.index.building.settings import ReadSettings, read_types
from sbert_search.index.settings import LexicalSettings
from sbert_search.text.fields import FieldNames

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from sbert_search.index.building.ingest import IngestReport

T = TypeVar("T", bound="DataclassInstance")
R = TypeVar("R", bound=ReadSettings)
FIELD_FLAGS = {name: f"--{name}-field" for name in declared(FieldNames)}

_SOURCE_HELP = """

    SOURCE is JSONL, JSON, CSV, TSV, Parquet, Arrow or .txt (one document a line), plain or
    compressed; a SQLite or DuckDB file, or an .xlsx workbook; a Markdown, HTML, reStructuredText,
    notebook, .docx or source code file (one document), a PDF file (one document a page), or a
    folder of such files; a BEIR folder; a quoted glob of files; or "-" for JSONL on stdin. .xlsx
    and .docx need the extra office.
    """


column_type_option = options_of(
    ReadSettings, "column_types", unset="detected", flags={"column_types": "--column-type"}
)


metadata_option = options_of(ReadSettings, "metadata_fields", unset="all others")
new_columns_option = options_of(ReadSettings, "new_columns", holds=False)
field_options = joined(
    options_of(FieldNames, "id", "text", "title", unset="detected", flags=FIELD_FLAGS),
    metadata_option,
)
file_options = joined(
    options_of(ReadSettings, "encoding", unset="UTF-8"),
    options_of(ReadSettings, "html", unset="all"),
    options_of(ReadSettings, "references", unset="keep"),
    options_of(ReadSettings, "exclude", unset="", multiple=True),
)
_source_options = joined(
    click.argument("sources", nargs=-1, required=True, metavar="SOURCE..."),
    field_options,
    options_of(ReadSettings, "query", unset="its only table", flags={"query": "--sql"}),
    column_type_option,
    options_of(ReadSettings, "text_as", unset="a line; in a folder, the file"),
    file_options,
)
vector_options = joined(
    click.option(
        "--vectors",
        type=click.Path(path_type=Path),
        metavar="FILE.npy",
        help="Given vectors, one for each row of SOURCE, to index in place of those of a model.",
    ),
    options_of(FieldNames, "vector", flags=FIELD_FLAGS),
)


def source_options(function: F) -> F:
    """Add the argument SOURCE and the options that name the fields of a document."""
    function.__doc__ = f"{function.__doc__}{_SOURCE_HELP}"
    return _source_options(function)


def has_vectors(ctx: click.Context, settings: ReadSettings) -> bool:
    """Whether vectors are given, by an option or by a field that the settings name."""
    if ctx.params["vectors"] and ctx.params["vector"]:
        raise click.UsageError("Give vectors either by --vectors or by --vector-field.")
    return bool(ctx.params["vectors"] or settings.fields.vector)


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
    chosen |= {name: parse(chosen[name]) for name, parse in _PARSERS.items() if name in chosen}
    fields = changed(settings.fields, FieldNames, chosen)
    return replace(changed(settings, ReadSettings, read_types(settings, chosen)), fields=fields)


def changed(settings: T, of: type, values: Mapping[str, object]) -> T:
    """Return settings with the values of the options that name fields of the class ``of``."""
    own = {name: value for name, value in values.items() if name in declared(of)}
    return replace(settings, **own)


def changed_words(settings: LexicalSettings, values: Mapping[str, object]) -> LexicalSettings:
    """Return settings with the values of options; the stop words follow a new language."""
    more = {"stop_words": None} if "language" in values else {}
    return changed(settings, LexicalSettings, {**values, **more})


def _column_types(text: str) -> dict[str, str]:
    types = {}
    for part in filter(None, re.split(",(?=[^,=]*=|$)", text)):  # a format may have commas
        name, equals, kind = part.rpartition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"--column-type {part!r}: write NAME=TYPE, such as year=int.")
        types[name.strip()] = kind.strip()
    return types


def _models_by_column(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return the model of each column; paths are made absolute, since the index stores them."""
    models: dict[str, str] = {}
    for text in given:
        model, equals, column = text.rpartition("=")
        column = column.strip()
        if not equals or not model or not column:
            raise click.UsageError(f"{option} {text!r} is not MODEL=COLUMN.")
        if column in models:
            raise click.UsageError(f"{option} has two models for the column {column!r}.")
        path = Path(model)
        models[column] = str(path.absolute()) if path.is_dir() else model
    return models


_PARSERS: Mapping[str, Callable[[Any], object]] = {
    "text": names_of,
    "metadata_fields": names_of,
    "column_types": _column_types,
    "classify": partial(_models_by_column, "--classify"),
    "tag": partial(_models_by_column, "--tag"),
}


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
        had = f" ({report.reused:,} with the vectors they had)" if report.reused else ""
        kept = (
            f"{counts.indexed:,} indexed, {counts.replaced:,} replaced{had}, "
            f"{counts.duplicate:,} duplicate"
            if made == "index"
            else f"{counts.indexed:,} embedded"  # a file also contains duplicates
        )
        say(
            f"{counts.read:,} rows read: {kept}, {counts.rejected:,} rejected "
            f"({report.seconds:,.1f} s).{' Nothing was written.' if report.dry_run else ''}"
        )
        if made == "index" and counts.indexed and not report.dry_run:
            say(f'Search it: sbert-search search {shlex.quote(str(path))} "your question"')
    if report.rejects_file:
        note(f"{counts.rejected:,} rows were rejected; {report.rejects_file} says why.")
        ctx.exit(REJECTED_ROWS)
