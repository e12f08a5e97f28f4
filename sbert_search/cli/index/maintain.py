"""`index info`, `check`, `repair`, `compact`, `lexical`, `snapshot`: keeping an index healthy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbert_search.cli.console import emit, say, show_facts, size_text
from sbert_search.cli.shared_options import Decorator, Finite, given, shared_options
from sbert_search.config import to_mapping

if TYPE_CHECKING:
    from sbert_search.index.lexical_settings import LexicalSettings
    from sbert_search.index.maintenance.drift import DriftReport
    from sbert_search.index.maintenance.info import IndexInfo

_folder: Decorator[Any] = click.argument("path", metavar="DIR", type=click.Path(path_type=Path))


@click.command()
@_folder
@shared_options("json")
def info(path: Path, as_json: bool) -> None:
    """Say what the index DIR holds and what made it."""
    from sbert_search.index.index import Index

    found = Index.open(path).info()
    if as_json:
        emit(to_mapping(found))
    else:
        show_facts(_facts(found))


@click.command()
@_folder
@click.option("--drift", is_flag=True, help="Also say how far updates have moved the index.")
@click.option(
    "--recall",
    type=Finite(0, 1),
    help="With --drift: share of the 10 nearest documents that a search should find.  "
    "[default: what the index was tuned for, else 0.95]",
)
@shared_options("json")
@click.pass_context
def check(
    ctx: click.Context, /, path: Path, drift: bool, recall: float | None, as_json: bool
) -> None:
    """Verify every byte of the index DIR.

    Exits with 1 when something is damaged. What --drift advises is no damage.
    """
    from sbert_search.index.index import Index
    from sbert_search.index.maintenance.check import check as check_index

    report = check_index(path)
    problems = [str(problem) for problem in report.problems]
    moved = Index.open(path).drift(recall) if drift and not problems else None
    if as_json:
        more = {"drift": to_mapping(moved)} if moved else {}
        emit({**to_mapping(report), "index": str(path), "problems": problems, **more})
    else:
        for line in problems or [f"{path} is sound."]:
            say(line)
        strays = f", {len(report.strays)} that nothing refers to" if report.strays else ""
        say(f"{report.n_files:,} files, {size_text(report.size_bytes)} read{strays}.")
        if moved:
            show_facts(_moved(moved))
    if problems:
        ctx.exit(1)


@click.command()
@_folder
@shared_options("quiet", "json")
def repair(path: Path, as_json: bool) -> None:
    """Drop damaged derived files and remake them.

    Files that nothing refers to are dropped too. Documents and vectors are never touched: what is
    damaged there comes back from a snapshot, or from building again.
    """
    from sbert_search.index.index import Index

    dropped = Index.open(path).repair()
    if as_json:
        emit({"index": str(path), "dropped": dropped})
    else:
        say("\n".join(f"dropped {name}" for name in dropped) or "Nothing to repair.")


@click.command()
@_folder
@click.option("--retrain", is_flag=True, help="Train FAISS anew and make all its files again.")
@shared_options("memory", "wait", "quiet", "json")
def compact(
    path: Path, retrain: bool, memory_bytes: int | None, wait_s: float, as_json: bool
) -> None:
    """Rewrite the index DIR without dead rows.

    Updates tidy up after themselves; this leaves nothing at all to tidy.
    """
    from sbert_search.index.index import Index

    index = Index.open(path, wait_s=wait_s)
    before = index.info()
    index.compact(memory_bytes=memory_bytes, retrain=retrain)
    after = index.info()
    if as_json:
        emit({"index": str(path), "before": to_mapping(before), "after": to_mapping(after)})
    else:
        say(
            f"{before.segments:,} segments, {size_text(before.size_bytes)} before; "
            f"{after.segments:,} segments, {size_text(after.size_bytes)} now."
        )


@click.command()
@_folder
@click.option("--language", metavar="NAME", help="Of stemmer and stop words; none: neither.")
@click.option("--title-weight", type=int, help="How often a word of a title counts.")
@click.option("--k1", type=Finite(), help="BM25: how fast repeated words saturate.")
@click.option("--b", type=Finite(), help="BM25: how far the length of a document counts, 0 to 1.")
@shared_options("quiet", "json")
@click.pass_context
def lexical(ctx: click.Context, /, path: Path, as_json: bool, **_: Any) -> None:
    """Add the data of search by words to DIR, or change their settings.

    Settings that are not given stay; those of an index without such data are first english, a
    title weight of 2, k1 = 1.2 and b = 0.75. Postings are counted again where they must be.
    """
    from sbert_search.index.index import Index
    from sbert_search.index.lexical_settings import LexicalSettings

    names = ("language", "title_weight", "k1", "b")
    chosen = {name: value for name, value in given(ctx).items() if name in names}
    if "language" in chosen:
        chosen["stop_words"] = None
    index = Index.open(path)
    settings = replace(index.state.settings.lexical or LexicalSettings(), **chosen)
    index.set_lexical(settings)
    if as_json:
        emit({"index": str(path), **to_mapping(settings)})
    else:
        say(f"{path}: {_words(settings)}.")


@click.command()
@_folder
@click.argument("target", type=click.Path(path_type=Path))
@shared_options("quiet", "json")
def snapshot(path: Path, target: Path, as_json: bool) -> None:
    """Copy the state of DIR to a new folder TARGET.

    Files are shared by hard links where the file system has them, so this is quick and small.
    """
    from sbert_search.index.index import Index

    index = Index.open(path)
    index.backup(target)
    if as_json:
        emit({"index": str(path), "snapshot": str(target), "documents": len(index)})
    else:
        say(f"{target} holds {len(index):,} documents.")


def _moved(report: DriftReport) -> dict[str, object]:
    exact = "exact, as every search of it is"
    return {
        "segments": report.segments,
        "dead rows": f"{report.dead_share:.1%}",
        "without FAISS": f"{report.scanned_share:.1%} of the rows",
        "imbalance": "no inverted lists" if report.imbalance is None else f"{report.imbalance:.2f}",
        "recall@10": exact
        if report.recall is None
        else f"{report.recall:.3f} over {report.probes} probes, {report.target} wanted",
        "to do": "; ".join(report.actions) or "nothing",
    }


def _words(settings: LexicalSettings | None) -> str:
    if settings is None:
        return "none; `index lexical` adds them"
    return (
        f"{settings.language}, titles count {settings.title_weight} times, BM25 with "
        f"k1 = {settings.k1:g} and b = {settings.b:g}"
    )


def _graph_or_lists(found: IndexInfo) -> str:
    from sbert_search.index.spec import MIN_ANN_ROWS

    return f"{found.factory} (a segment below {MIN_ANN_ROWS:,} passages: exact scan)"


def _facts(found: IndexInfo) -> dict[str, object]:
    model, built = found.model, found.built
    facts: dict[str, object] = {
        "index": found.path if found.finished else f"{found.path} (an unfinished build)",
        "documents": found.documents,
        "passages": found.passages,
        "dead rows": found.dead_rows,
        "segments": found.segments,
        "size": size_text(found.size_bytes),
        "vectors": f"{found.dim} x {found.dtype}, {found.metric}",
        "search": "exact scan" if found.factory == "Flat" else _graph_or_lists(found),
        "words": _words(found.lexical),
        "model": f"{model['name']} ({model['engine']}, {model['precision']})",
        "weights": f"sha256 {model['weights_sha256']}",
        "reads": f"{model['max_len']} tokens of a text",
        "columns": ", ".join(f"{name} {kind}" for name, kind in found.columns.items()) or "none",
        "built from": f"sha256 {found.source_sha256}",
        "rows": f"{built.read:,} read: {built.indexed:,} indexed, {built.duplicate:,} duplicate, "
        f"{built.rejected:,} rejected",
    }
    if found.tuning:
        from sbert_search.index.tuning.report import verdict

        facts["tuned"] = verdict(found.tuning)
    if found.advice:
        facts["advice"] = f"`index compact`: {found.advice}"
    return facts
