"""`demo`: index the docstrings of the standard library and search them."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from xxhash import xxh3_64_hexdigest

from sbert_search.base.cache import cache_folder
from sbert_search.base.progress import note
from sbert_search.cli.console import say, show_hits
from sbert_search.cli.options.shared import embedder_options, model_options, shared_options

if TYPE_CHECKING:
    from sbert_search.embed.protocol import TextEmbedder
    from sbert_search.index.building.ingest import IngestReport
    from sbert_search.index.index import Index

FIRST, MOST = 500, 1_500  # docstrings before the first answer, and in all
# Packages whose docstrings are the first ones; the questions are about three of them.
PACKAGES = ("collections", "difflib", "threading", "itertools", "string", "textwrap", "random")
QUESTIONS = (
    ("make several threads wait for each other", None),
    ("How can I find out how similar two strings are?", None),
    ("count how often each word occurs", "kind = 'class'"),
)


@click.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder for the demo's files.  [default: a folder in the user's cache]",
)
@embedder_options
@shared_options("quiet")
@click.pass_context
def demo(ctx: click.Context, /, folder: Path | None, model: str | None, **_: object) -> None:
    """Index and search the docstrings of Python.

    The documents are the docstrings of the standard library, which every Python installation has,
    so the demo works offline. A second run reuses the index of the first run.
    """
    from sbert_search.index.building.build import open_for_build
    from sbert_search.index.building.model_check import as_embedder
    from sbert_search.search.engine import SearchEngine

    folder = folder or cache_folder("demo")
    corpus = folder / f"stdlib-{sys.version_info[0]}.{sys.version_info[1]}.jsonl"
    path = corpus.with_suffix(f".{_model_name(model)}.index" if model else ".index")
    opened = partial(as_embedder, model)
    open_model = cache(partial(open_for_build, path, model, opened, **model_options(ctx)))
    index = _index(corpus, path, open_model)
    engine = SearchEngine(index, open_model())
    say()
    for question, where in QUESTIONS:
        start = time.perf_counter()
        hits = engine.search(question, k=3, where=where, highlight=True)
        latency_ms = 1000 * (time.perf_counter() - start)
        say(f"> {question}" + (f'   --where "{where}"' if where else ""))
        say(f"  {len(index):,} documents, {latency_ms:.0f} ms\n")
        show_hits(hits)
    if len(index) < MOST:
        _report(path, index.add(corpus, model=open_model()), "more ")
    say(_next_steps(corpus, path))


def _report(path: Path, report: IngestReport, more: str = "") -> None:
    n_docs = report.counts.indexed
    rate = n_docs / max(report.seconds, 1e-9)
    say(f"{path}: {n_docs:,} {more}documents in {report.seconds:.1f} s, {rate:,.0f} a second.")


def _model_name(model: str) -> str:
    """Return a file name for the model, different for folders of the same name."""
    place = str(Path(model).resolve()) if Path(model).exists() else model
    return f"{Path(model).name}-{xxh3_64_hexdigest(place.encode())[:8]}"


def _index(corpus: Path, path: Path, open_model: Callable[[], TextEmbedder]) -> Index:
    from sbert_search.errors import NotAnIndex
    from sbert_search.index.building.build import BuildSettings, build_index
    from sbert_search.index.index import Index

    try:
        index = Index.open(path)
        if index.info().finished:
            say(f"{path}: {len(index):,} documents, from an earlier run.")
            return index
    except NotAnIndex:
        pass
    rows = _write_corpus(corpus)
    note(f"{len(rows):,} docstrings of the standard library: {corpus}")
    _report(path, build_index(rows[:FIRST], path, open_model, BuildSettings()))
    return Index.open(path)


def _write_corpus(path: Path) -> list[Mapping[str, object]]:
    """Write docstrings of the standard library as JSON lines; return their rows."""
    from sbert_search.base.files import replace_file
    from sbert_search.text.docstrings import stdlib_documents
    from sbert_search.text.labelled.pairs import json_lines

    every = list(stdlib_documents())
    first = [document for document in every if document.metadata["package"] in PACKAGES]
    others = [document for document in every if document.metadata["package"] not in PACKAGES]
    kept = [*first, *others[:: max(1, len(others) // MOST)]][:MOST]
    rows: list[Mapping[str, object]] = [
        {"_id": doc.doc_id, "title": doc.title, "text": doc.text, **doc.metadata} for doc in kept
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json_lines(rows))
    return rows


def _next_steps(corpus: Path, path: Path) -> str:
    index, documents = (shlex.quote(str(each)) for each in (path, corpus))
    return f"""Next:
  sbert-search search {index} "your own question"
  sbert-search search {index} "open a file" --where "package = 'io'" --json
  sbert-search index build {documents} --out my.index
  sbert-search index --help"""
