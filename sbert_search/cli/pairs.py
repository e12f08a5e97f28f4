"""`pairs`: documents of a corpus that say the same."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbert_search.cli.console import emit, say
from sbert_search.cli.shared_options import Finite, embedder_options, given, shared_options
from sbert_search.cli.source_options import model_options, read_as_given, source_options
from sbert_search.runtime.progress import note, progress

if TYPE_CHECKING:
    from sbert_search.index.index import Index
    from sbert_search.index.snapshot import Snapshot
    from sbert_search.search.pairs import Pairs

EXACT_ROWS = 200_000  # the time of an exact comparison grows as their square: minutes for so many
_AT_ONCE = 1000  # pairs whose texts are in memory


@click.command()
@click.option(
    "--threshold",
    type=Finite(),
    default=0.8,
    show_default=True,
    help="Least score of what counts as close.",
)
@click.option("--top", type=click.IntRange(1), help="Only so many pairs, the best first.")
@click.option("--clusters", "as_clusters", is_flag=True, help="Groups connected by such pairs.")
@source_options
@embedder_options
@shared_options("on-truncate", "memory", "quiet", "json")
@click.pass_context
def pairs(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    threshold: float,
    top: int | None,
    as_clusters: bool,
    as_json: bool,
    **_: Any,
) -> None:
    """Find documents of SOURCE... that are close to each other.

    An index can be named instead, whose vectors are then used as they are.
    """
    import numpy as np

    from sbert_search.search.pairs import best_pairs, close_pairs, clusters

    with _opened(ctx, sources) as index, progress("Comparing", index.state.n_rows) as advance:
        if top:
            found = iter([best_pairs(index.state, top, threshold, advance)])
        else:
            found = close_pairs(index.state, threshold, advance)
        n_found = 0
        if as_clusters:
            for n_found, docs in enumerate(clusters(found), 1):
                _show_cluster(n_found, index.state.doc_ids(np.array(docs)), as_json)
        else:
            for some in found:
                _show_pairs(index.state, some, as_json)
                n_found += len(some)
    if not n_found:
        note(f"No two documents score {threshold:g} or more.")


@contextmanager
def _opened(ctx: click.Context, sources: tuple[str, ...]) -> Iterator[Index]:
    """Open the index that is named, or build one that lives as long as this."""
    from sbert_search.index.index import Index
    from sbert_search.index.ingestion.build import BuildSettings
    from sbert_search.index.storage.manifest import NAME
    from sbert_search.index.tuning.settings import TuneSettings

    if len(sources) == 1 and (Path(sources[0]) / NAME).exists():
        index = Index.open(sources[0])
        index.require_finished()
        yield index
        return
    settings = read_as_given(BuildSettings(lexical=None), given(ctx))
    with tempfile.TemporaryDirectory(prefix="sbert-search-pairs-") as scratch:
        out, options = Path(scratch) / "index", model_options(ctx)
        index = Index.build(
            sources,
            out=out,
            model=ctx.params["model"],
            settings=settings,
            memory_bytes=ctx.params["memory_bytes"],
            **options,
        )
        if index.state.n_rows > EXACT_ROWS:
            note(f"{index.state.n_rows:,} passages: choosing an index that searches them fast.")
            index.tune(TuneSettings(memory_bytes=ctx.params["memory_bytes"]))
        yield index


def _show_pairs(snapshot: Snapshot, some: Pairs, as_json: bool) -> None:
    import numpy as np

    for start in range(0, len(some), _AT_ONCE):
        part = some.take(np.arange(start, min(start + _AT_ONCE, len(some))))
        rows = np.unique([part.first, part.second])
        read = zip(rows.tolist(), snapshot.fetch(rows), strict=True)
        documents = {row: passage.document for row, passage in read}
        for *docs, score in zip(part.first, part.second, part.scores.tolist(), strict=True):
            two = [documents[int(doc)] for doc in docs]
            if as_json:
                texts = [{"doc_id": doc.doc_id, "text": doc.full_text} for doc in two]
                emit({"score": score, "first": texts[0], "second": texts[1]})
            else:
                lines = (f"    {doc.doc_id}  {' '.join(doc.full_text.split())}" for doc in two)
                say("\n".join([f"{score:.4f}", *lines]))


def _show_cluster(number: int, doc_ids: list[str], as_json: bool) -> None:
    if as_json:
        emit({"cluster": number, "size": len(doc_ids), "doc_ids": doc_ids})
    else:
        say(f"{number:>4}  {len(doc_ids):,} documents: {' '.join(doc_ids)}")
