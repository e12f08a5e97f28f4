"""`index export` and `index import`: exchange vectors with other search engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from sbert_search.cli.console import REJECTED_ROWS, emit, say
from sbert_search.cli.index.update import index_options, with_overrides
from sbert_search.cli.options.shared import (
    ListOption,
    embedder_options,
    given,
    index_folder,
    model_options,
    options_of,
    prompt_options,
    shared_options,
    typed_model_options,
)
from sbert_search.cli.options.source import FIELD_FLAGS, column_type_option, field_options
from sbert_search.config import names_of, to_mapping
from sbert_search.declared import declared
from sbert_search.index.building.settings import BuildSettings
from sbert_search.records import RowCounts
from sbert_search.text.fields import FieldNames

if TYPE_CHECKING:
    from sbert_search.exchange.plan import Target
    from sbert_search.index.building.settings import BuildKeywords

_TARGETS = ("parquet", "faiss", "qdrant", "milvus", "opensearch")  # also in `exchange.plan`


@click.command("export")
@index_folder
@click.option(
    "--to", type=click.Choice(_TARGETS), required=True, help="Engine or format to write for."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File to write; for milvus and opensearch, a new folder of files to import.",
)
@click.option(
    "--url",
    metavar="URL|PATH",
    help="Upload to a server; also to a folder (qdrant) or to a file.db of Milvus Lite (milvus).",
)
@click.option("--name", help="Name of the collection or OpenSearch index.  [default: that of DIR]")
@click.option(
    "--api-key",
    envvar="SBERT_SEARCH_API_KEY",
    help="API key of Qdrant, token of Milvus or bearer token of OpenSearch.",
)
@click.option("--replace", is_flag=True, help="Delete a collection of this name first.")
@click.option(
    "--columns",
    cls=ListOption,
    metavar="NAME,...",
    help="Metadata columns to export.  [default: all of them]",
)
@shared_options("quiet", "json")
def export(
    path: Path,
    to: Target,
    out: Path | None,
    url: str | None,
    name: str | None,
    api_key: str | None,
    replace: bool,
    columns: str | None,
    as_json: bool,
) -> None:
    """Write the passages of the index DIR for another engine.

    The vectors are those of the index; no text is embedded. Deleted documents are left out. Give
    either --out or --url. An interrupted upload goes on where it was if the command is repeated
    without --replace. At the end, Python code is printed that searches the exported passages. If
    DIR is searched exactly, this code ranks them like a dense search of DIR for passages.
    """
    from sbert_search.exchange.export import export_index

    names = None if columns is None else names_of(columns)
    report = export_index(
        path, to, out, url=url, name=name, api_key=api_key, replace=replace, columns=names
    )
    if as_json:
        emit({"index": str(path), **to_mapping(report)})
        return
    for file in report.files:
        say(f"wrote {file}")
    if report.url:
        say(f"uploaded to {report.name!r} at {report.url}")
    say(
        f"{report.passages:,} passages of {report.documents:,} documents ({report.seconds:,.1f} s)."
    )
    say("Python code that searches the exported passages:\n")
    say(report.query)


@click.command("import")
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the index.",
)
@click.option(
    "--ids",
    type=click.Path(path_type=Path),
    help="File of the ids of an .npy or FAISS file: a line each, .npy, or .parquet with texts.  "
    "[default: SOURCE.ids.parquet, .ids.npy or .ids.txt]",
)
@click.option(
    "--table", metavar="NAME", help="Chroma collection or LanceDB table, if there are several."
)
@field_options
@options_of(FieldNames, "vector", unset="detected", flags=FIELD_FLAGS)
@column_type_option
@index_options
@embedder_options
@prompt_options
@shared_options("on-error", "memory", "quiet", "json")
@click.pass_context
def import_(
    ctx: click.Context,
    /,
    source: Path,
    out: Path,
    ids: Path | None,
    table: str | None,
    model: str | None,
    as_json: bool,
    **_: object,
) -> None:
    """Build an index from vectors that already exist.

    SOURCE is a Parquet file with a column of vectors, an .npy file, a FAISS file (.faiss or .index)
    of the types Flat or HNSW, or the folder of a Chroma client or a LanceDB database. No text is
    embedded. With --model, the index can be searched by text: name the model that made the vectors.
    """
    from sbert_search.exchange.import_index import import_index

    settings = with_overrides(BuildSettings(), ctx)
    tables = {"factory": "spec", "language": "lexical", "title_weight": "lexical"}
    names = {tables.get(name, name) for name in given(ctx)} & declared(BuildSettings).keys()
    keywords = {name: getattr(settings, name) for name in names}
    options = model_options(ctx) if model else typed_model_options(ctx)
    index = import_index(
        source,
        out,
        model=model,
        ids=ids,
        table=table,
        **cast("BuildKeywords", {**keywords, **options, "fields": settings.fields}),
    )
    build = index.state.manifest.build
    counts = build.counts if build else RowCounts()
    if as_json:
        emit({"index": str(out), "documents": len(index), **to_mapping(counts)})
    else:
        say(
            f"{len(index):,} documents in {out}, compared by {index.state.settings.metric}; "
            f"{counts.duplicate:,} duplicate, {counts.rejected:,} rejected."
        )
    if counts.rejected:
        ctx.exit(REJECTED_ROWS)
