"""`index sync`: keep an index in sync with a folder of files."""

from __future__ import annotations

import shlex
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from sbert_search.base.progress import note, reporting
from sbert_search.cli.console import REJECTED_ROWS, emit, say
from sbert_search.cli.index.update import index_options, with_overrides
from sbert_search.cli.options.shared import (
    CHUNKING,
    embedder_options,
    model_options,
    prompt_options,
    shared_options,
    typed,
)
from sbert_search.cli.options.source import (
    column_type_option,
    file_options,
    metadata_option,
    new_columns_option,
    with_read_options,
)
from sbert_search.config import to_mapping
from sbert_search.index.building.settings import BuildSettings, ReadSettings

if TYPE_CHECKING:
    from sbert_search.embed.delegation import LazyEmbedder
    from sbert_search.embed.protocol import TextEmbedder
    from sbert_search.index.building.sync import SyncReport
    from sbert_search.index.index import Index

_LANGUAGE_ROWS = 256  # documents whose texts show the language of a new index
_SHOWN = 20  # largest number of paths to list of each kind, such as added or deleted


def _as_path(ctx: click.Context, param: click.Parameter, text: str) -> Path:
    if not text:  # for example, an unset shell variable; Path("") would be the current folder
        raise click.BadParameter("it is empty; write . for the current folder.")
    if text == "-":
        raise click.BadParameter(
            "a sync compares with all rows of a file and reads no standard input; write the rows "
            "to a file, or add them by `index upsert INDEX -`."
        )
    return Path(text)


@click.command()
@click.argument("path", metavar="INDEX", type=click.Path(path_type=Path))
@click.argument("folder", metavar="FOLDER|TABLE", callback=_as_path)
@click.option("--dry-run", is_flag=True, help="List what would be done, and write nothing.")
@click.option(
    "--watch", is_flag=True, help="Keep running and sync after each change, until Ctrl-C."
)
@click.option(
    "--allow-empty",
    is_flag=True,
    help="Accept an absent or empty FOLDER, or a table without most rows; delete the documents.",
)
@click.option("--moved", is_flag=True, help="The folder of the index was moved to FOLDER.")
@index_options
@metadata_option
@column_type_option
@new_columns_option
@file_options
@embedder_options
@prompt_options
@shared_options("batch-tokens", "allow-inexact", *CHUNKING, "memory", "wait", "quiet", "json")
@click.pass_context
def sync(
    ctx: click.Context, /, path: Path, folder: Path, watch: bool, as_json: bool, **_: object
) -> None:
    """Keep INDEX in sync with the files of FOLDER, or with the rows of a table.

    Adds new files, replaces changed ones and deletes documents of files that are gone. INDEX is
    made if it does not exist; else FOLDER is the folder that it was built from, or one below it.
    Documents of other sources stay. Files are compared by content, and the model is loaded only if
    one changed. An interrupted sync is finished by the next one. If a file cannot be read, its old
    document stays and the exit code is 3.

    If FOLDER is a table, such as a CSV, JSONL or Parquet file, INDEX gets all its rows, and loses
    the other documents, except those of files. A table that lacks more than half needs
    --allow-empty.
    """
    from sbert_search.text.sources import is_table

    if watch and is_table(folder):
        raise click.UsageError("--watch is for folders; run the sync again when the table changes.")
    from sbert_search.index.building.synced_files import FolderWatch

    if watch and ctx.params["dry_run"]:
        raise click.UsageError("--watch has no effect with --dry-run; leave it out.")
    watching = FolderWatch(folder) if watch else None
    work = _Sync(ctx, path, folder)
    what = "Documents" if is_table(folder) else "Files"
    report = work.run()
    show(report, path, what, as_json=as_json)
    shown = report.failed
    if watching:
        note(f"Watching {folder}; Ctrl-C ends.")
    problem = ""
    while watching:
        watching.wait()
        later, reason = work.run_again()
        if later is None:
            watching.retry()
        elif later.changes or later.failed != shown:
            show(later, path, what, as_json=as_json)
            shown = later.failed
        if reason and reason != problem:
            note(reason)
        problem = reason
    if report.failed:
        ctx.exit(REJECTED_ROWS)


class _Sync:
    """A sync that can be repeated; a model is opened once, unless another index needs another."""

    def __init__(self, ctx: click.Context, path: Path, folder: Path) -> None:
        self._ctx, self._path, self._folder = ctx, path, folder
        self._model: LazyEmbedder | None = None
        self._model_of = ""  # the model's name in the index for which it was opened

    def run(self) -> SyncReport:
        """Sync the index; make it first if there is none."""
        from sbert_search.errors import NotAnIndex
        from sbert_search.index.index import Index

        try:
            index = Index.open(self._path, wait_s=self._ctx.params["wait_s"])
        except NotAnIndex:
            if report := self._preview():
                return report
            index = self._create()
        else:
            self._refuse_build_options(index)
        return self._sync(index)

    def run_again(self) -> tuple[SyncReport | None, str]:
        """Sync the index, but never make one: it may be away only until a backup is in its place.

        If the sync must be tried again, there is no report, but a reason.
        """
        from sbert_search.errors import (
            CorpusError,
            CorruptIndex,
            IndexLocked,
            ModelMismatch,
            NotAnIndex,
            UnfinishedBuild,
        )
        from sbert_search.index.index import Index

        try:
            return self._sync(Index.open(self._path, wait_s=self._ctx.params["wait_s"])), ""
        except NotAnIndex as error:
            return None, f"{error} The watch goes on when there is one again."
        except (CorpusError, CorruptIndex, IndexLocked, ModelMismatch, UnfinishedBuild) as error:
            return None, str(error)

    def _sync(self, index: Index) -> SyncReport:
        options = self._ctx.params
        if self._model is None or self._model_of != index.identity.name:
            self._model = self._opener(self._named() or index.identity.name, index)
            self._model_of = index.identity.name
        return index.sync(
            self._folder,
            dry_run=options["dry_run"],
            allow_empty=options["allow_empty"],
            moved=options["moved"],
            model=self._model,
            settings=with_read_options(index.read_settings, self._ctx),
            allow_inexact=options["allow_inexact"],
        )

    def _named(self) -> str | None:
        """Return the value of --model; in the configuration file, it is only for new indexes."""
        in_file = self._ctx.get_parameter_source("model") is ParameterSource.DEFAULT_MAP
        return None if in_file else self._ctx.params["model"]

    def _opener(self, name: str | None, index: Index | None = None) -> LazyEmbedder:
        from sbert_search.embed.delegation import LazyEmbedder
        from sbert_search.index.building.model_check import as_embedder, with_kept_choices

        def opened() -> TextEmbedder:
            options = model_options(self._ctx)
            if index is not None:
                options = with_kept_choices(name, options, index.state.settings)
            return as_embedder(name, **options)

        return LazyEmbedder(opened)

    def _preview(self) -> SyncReport | None:
        """Check FOLDER before a new index is made; in a dry run, return the planned changes."""
        from sbert_search.errors import NotAnIndex
        from sbert_search.index.building import sync
        from sbert_search.text.sources import is_table

        options = self._ctx.params
        if is_table(self._folder):
            build = ["sbert-search", "index", "build", str(self._folder), "--out", str(self._path)]
            raise NotAnIndex(
                f"{self._path} is no index yet. Build it from the table, with its fields, of which "
                f"the id tells rows apart: {shlex.join(build)} --id-field NAME"
            )
        settings = with_read_options(ReadSettings(), self._ctx)
        scan = sync.scan_folder(sync.require_place(self._folder, None, settings))
        sync.require_files(scan, allow_empty=options["allow_empty"])
        return sync.preview(scan, settings) if options["dry_run"] else None

    def _create(self) -> Index:
        from sbert_search.index.building.build import in_likely_language
        from sbert_search.index.building.sync import require_place
        from sbert_search.index.index import Index
        from sbert_search.text.formats.rows import RawRow, RowLimit
        from sbert_search.text.sources import read_rows

        settings = with_overrides(BuildSettings(), self._ctx)
        rows = read_rows(require_place(self._folder, None, settings), limit=RowLimit.within())
        texts = (row.text for row in islice(rows, _LANGUAGE_ROWS) if isinstance(row, RawRow))
        settings = in_likely_language(settings, texts)
        self._model = self._opener(self._ctx.params["model"])
        index = Index.create(self._path, model=self._model.inner, settings=settings)
        self._model_of = index.identity.name
        return index

    def _refuse_build_options(self, index: Index) -> None:
        """Refuse options that are only for new indexes; ignore them in a configuration file."""
        from sbert_search.text.sources import is_table

        new = {"factory", "metric", "language", "title_weight", "dtype"}
        kept = index.read_settings
        if with_read_options(kept, self._ctx).metadata_fields != kept.metadata_fields:
            new |= set() if is_table(self._folder) else {"metadata_fields"}
        new &= typed(self._ctx)
        for option in self._ctx.command.params:
            if option.name in new:
                raise click.UsageError(f"{option.opts[0]} is for a new index; {self._path} exists.")


def show(report: SyncReport, path: Path, what: str = "Files", *, as_json: bool) -> None:
    """Print the changes of a sync, or the planned changes of a dry run."""
    if as_json:
        emit({"index": str(path), **to_mapping(report)})
        return
    for sign, paths in (("+", report.added), ("~", report.replaced), ("-", report.deleted)):
        for name in paths[:_SHOWN]:
            say(f"{sign} {name}")
        if len(paths) > _SHOWN:
            say(f"{sign} ... {len(paths) - _SHOWN:,} more")
    would = "would be " if report.dry_run else ""
    say(
        f"{what}: {would}added {len(report.added):,}, {would}replaced {len(report.replaced):,}, "
        f"{would}deleted {len(report.deleted):,}, unchanged {report.unchanged:,}"
        f"{_rejected(report)}; documents in {path}: {report.documents:,} "
        f"({report.seconds:,.1f} s)."
    )
    for name, reason in list(report.failed.items())[:_SHOWN]:
        kept = " The index keeps the old documents of this file." if name in report.kept else ""
        note(f"{name}: {reason}.{kept}")
    if known := [f"{name} ({reason})" for name, reason in report.failed_before.items()]:
        more = f" and {len(known) - 3:,} more" if len(known) > 3 else ""
        note(
            f"Not indexed, as an earlier sync reported: {', '.join(known[:3])}{more}. To leave "
            "files out, pass --exclude."
        )
    if any("invalid UTF-8" in reason for reason in report.failed.values()):
        note("To read files that are not UTF-8, name their encoding, such as --encoding cp1252.")
    if len(report.failed) > _SHOWN:
        note(f"... {len(report.failed) - _SHOWN:,} more could not be read.")


def _rejected(report: SyncReport) -> str:
    """Return how many files could not be read, and the place of the reasons; "" if none."""
    if not report.failed:
        return ""
    why = ""
    if report.rejects_file:
        why = f" ({report.rejects_file} says why)"
    elif reporting().quiet:
        why = " (leave out -q to see why)"
    return f", rejected {len(report.failed):,}{why}"
