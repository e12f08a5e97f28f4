"""`pairs`: find pairs or clusters of similar documents."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

import click

from sbert_search.base.progress import note, progress, warn
from sbert_search.cli.console import REJECTED_ROWS, emit, say
from sbert_search.cli.options.shared import (
    CHUNKING,
    Finite,
    document_prompt,
    embedder_options,
    model_options,
    refuse_typed,
    shared_options,
)
from sbert_search.cli.options.source import source_options, with_read_options
from sbert_search.index.building.settings import BuildSettings
from sbert_search.index.settings import TuneSettings

if TYPE_CHECKING:
    from sbert_search.index.index import Index
    from sbert_search.index.snapshot import Snapshot
    from sbert_search.search.pairs import Pairs

# A temporary index with more rows than this gets a FAISS index, since the time of an exact
# comparison grows with the square of the number of rows.
EXACT_ROWS = 200_000
_FOR_INDEX = {"sources", "threshold", "top", "as_clusters", "deduplicated", "as_json"}
_SHOWN = 300  # characters of a text; JSON has the whole
_BATCH_PAIRS = 1000  # number of pairs whose texts are in memory at the same time


@click.command()
@click.option(
    "--threshold",
    type=Finite(),
    default=0.8,
    show_default=True,
    help="Minimum score of a pair.",
)
@click.option("--top", type=click.IntRange(1), help="Maximum number of pairs, best first.")
@click.option(
    "--clusters",
    "as_clusters",
    is_flag=True,
    help="Print clusters: groups of documents that pairs connect.",
)
@click.option(
    "--deduplicated",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.jsonl",
    help="Write the documents as JSON lines in place of printing pairs; of close ones, the first.",
)
@source_options
@embedder_options
@document_prompt
@shared_options(*CHUNKING, "on-error", "memory", "quiet", "json")
@click.pass_context
def pairs(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    threshold: float,
    top: int | None,
    as_clusters: bool,
    deduplicated: Path | None,
    as_json: bool,
    **_: object,
) -> None:
    """Find pairs of similar documents in SOURCE.

    Pairs are printed as they are found, not by score; --top prints the best pairs, best first.
    SOURCE may also be the folder of an index; its stored vectors are then compared.
    """
    import numpy as np

    from sbert_search.search.pairs import best_pairs, close_pairs, clusters, later_duplicates

    if deduplicated and (top or as_clusters):
        raise click.UsageError("--deduplicated goes with neither --top nor --clusters.")
    with _open_index(ctx, sources) as index:
        with progress("Comparing", index.state.n_rows) as advance:
            if top:
                batches = iter([best_pairs(index.state, top, threshold, advance)])
            else:
                batches = close_pairs(index.state, threshold, advance)
            if deduplicated:
                left_out = later_duplicates(batches)
                doc_ids = index.state.doc_ids(np.array(left_out, np.int64))
                _write_others(index, set(doc_ids), deduplicated, as_json)
                return
            n_shown, is_cosine = 0, index.state.settings.metric == "cosine"
            if as_clusters:
                for n_shown, rows in enumerate(clusters(batches), 1):
                    _show_cluster(n_shown, index.state.doc_ids(np.array(rows)), as_json)
            else:
                for batch in batches:
                    _show_pairs(index.state, batch, as_json)
                    n_shown += len(batch)
        if not n_shown:
            above = "; no cosine is above 1" if is_cosine and threshold > 1 else ""
            note(f"No two documents score {threshold:g} or more{above}.")


@contextmanager
def _open_index(ctx: click.Context, sources: tuple[str, ...]) -> Iterator[Index]:
    """Open the index that the user named, or build a temporary one; exit with 3 after bad rows."""
    from sbert_search.index.index import Index
    from sbert_search.index.storage.manifest import NAME, SHARDS
    from sbert_search.text.documents import first_of
    from sbert_search.text.formats.rows import listed_rejects

    if len(sources) == 1 and any((Path(sources[0]) / name).exists() for name in (NAME, SHARDS)):
        refuse_typed(ctx, ctx.params.keys() - _FOR_INDEX, "if SOURCE is an index")
        index = Index.open(sources[0])
        index.require_finished()
        yield index
        return
    settings = with_read_options(BuildSettings(lexical=None, on_truncate="warn"), ctx)
    with tempfile.TemporaryDirectory(prefix="sbert-search-pairs-") as scratch:
        out, options = Path(scratch) / "index", model_options(ctx)
        index = Index.build(
            sources,
            out=out,
            model=ctx.params["model"],
            settings=settings,
            **options,
        )
        if index.state.n_rows > EXACT_ROWS:
            note(f"{index.state.n_rows:,} passages: choosing an index that searches them fast.")
            index.tune(TuneSettings())
        rejects = [str(bad) for bad in listed_rejects(out)]
        if rejects:
            shown = "\n".join(first_of(rejects, "more"))
            warn(f"{len(rejects):,} bad rows, files or pages are left out:\n{shown}")
        yield index
        if rejects:
            ctx.exit(REJECTED_ROWS)


def _write_others(index: Index, left_out: AbstractSet[str], path: Path, as_json: bool) -> None:
    """Write the documents of an index as JSON lines, except those to leave out."""
    from sbert_search.base.files import replacing
    from sbert_search.text.labelled.pairs import json_lines

    with replacing(path) as file:
        for doc in index:
            if doc.doc_id not in left_out:
                own = {"_id": doc.doc_id, "title": doc.title, "text": doc.text}
                file.write(json_lines([{**doc.metadata, **own}]))
    kept = len(index) - len(left_out)
    if as_json:
        emit({"documents": len(index), "left_out": len(left_out), "file": str(path)})
    else:
        say(f"{len(index):,} documents: {len(left_out):,} left out, {kept:,} written to {path}.")


def _show_pairs(snapshot: Snapshot, found: Pairs, as_json: bool) -> None:
    import numpy as np

    for start in range(0, len(found), _BATCH_PAIRS):
        batch = found.take(np.arange(start, min(start + _BATCH_PAIRS, len(found))))
        rows = np.unique([batch.first, batch.second])
        passages = zip(rows.tolist(), snapshot.fetch(rows), strict=True)
        documents = {row: passage.document for row, passage in passages}
        for *rows_of_pair, score in zip(
            batch.first, batch.second, batch.scores.tolist(), strict=True
        ):
            pair = [documents[int(row)] for row in rows_of_pair]
            if as_json:
                texts = [{"doc_id": each.doc_id, "text": each.full_text} for each in pair]
                emit({"score": score, "first": texts[0], "second": texts[1]})
            else:
                cut = partial(shorten, width=_SHOWN, placeholder=" ...")
                lines = (f"    {each.doc_id}  {cut(each.full_text)}" for each in pair)
                say("\n".join([f"{score:.4f}", *lines]))


def _show_cluster(number: int, doc_ids: list[str], as_json: bool) -> None:
    if as_json:
        emit({"cluster": number, "size": len(doc_ids), "doc_ids": doc_ids})
    else:
        say(f"{number:>4}  {len(doc_ids):,} documents: {' '.join(doc_ids)}")
