"""`index info`, `check`, `repair`, `compact`, `lexical`, `backup` and `tune`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from sbert_search.cli.console import emit, say, show_facts, show_table, size_text
from sbert_search.cli.options.shared import (
    Finite,
    given,
    index_embedder_options,
    index_folder,
    model_options,
    options_of,
    shared_options,
    typed,
)
from sbert_search.cli.options.source import changed_words
from sbert_search.config import from_mapping, to_mapping
from sbert_search.declared import declared
from sbert_search.index.settings import MIN_ANN_ROWS, LexicalSettings, TuneSettings

if TYPE_CHECKING:
    from sbert_search.index.storage.manifest import QueryModel
    from sbert_search.index.upkeep.info import DriftReport, IndexInfo


@click.command()
@index_folder
@shared_options("json")
def info(path: Path, as_json: bool) -> None:
    """Print contents, size and settings of the index DIR."""
    from sbert_search.index.index import Index

    report = Index.open(path).info()
    if as_json:
        emit(to_mapping(report))
    else:
        show_facts(_facts(report))


@click.command()
@index_folder
@click.option(
    "--drift",
    is_flag=True,
    help="Also measure the effect of updates: dead rows, rows outside FAISS, recall.",
)
@click.option(
    "--recall",
    type=Finite(0, 1),
    help="With --drift: target of recall@10.  [default: the target of `index tune`, or 0.95]",
)
@shared_options("json")
@click.pass_context
def check(
    ctx: click.Context, /, path: Path, drift: bool, recall: float | None, as_json: bool
) -> None:
    """Verify the checksums of all files of the index DIR.

    The exit code is 1 if a file is damaged. Advice of --drift does not change the exit code.
    """
    from sbert_search.index.index import Index
    from sbert_search.index.upkeep.check import check as check_index

    if recall is not None and not drift:
        raise click.UsageError("--recall is for --drift; add that option, or leave --recall out.")
    report = check_index(path)
    problems = [str(problem) for problem in report.problems]
    drifted = Index.open(path).drift(recall) if drift and not problems else None
    if as_json:
        more = {"drift": to_mapping(drifted)} if drifted else {}
        emit({**to_mapping(report), "index": str(path), "problems": problems, **more})
    else:
        for line in problems or [f"{path} is sound."]:
            say(line)
        strays = f", {len(report.strays)} unreferenced" if report.strays else ""
        files = "1 file" if report.n_files == 1 else f"{report.n_files:,} files"
        say(f"{files}, {size_text(report.size_bytes)} read{strays}.")
        if drifted:
            show_facts(_drift_facts(drifted))
    if problems:
        ctx.exit(1)


@click.command()
@index_folder
@shared_options("wait", "quiet", "json")
def repair(path: Path, wait_s: float, as_json: bool) -> None:
    """Write damaged derived files of DIR again.

    Derived files of an index are those of FAISS and of BM25. Files that the index does not use are
    deleted. Damaged documents and vectors are not repaired: restore them from a backup, or build
    the index again.
    """
    from sbert_search.index.index import Index

    dropped = Index.open(path, wait_s=wait_s).repair()
    if as_json:
        emit({"index": str(path), "dropped": dropped})
    else:
        say("\n".join(f"dropped {name}" for name in dropped) or "Nothing to repair.")


@click.command()
@index_folder
@click.option("--retrain", is_flag=True, help="Also train FAISS again and rebuild all its files.")
@shared_options("memory", "wait", "quiet", "json")
def compact(path: Path, retrain: bool, wait_s: float, as_json: bool) -> None:
    """Rewrite the index DIR without dead rows.

    Dead rows are those of deleted and replaced documents. Updates already merge segments when
    that is worthwhile; this command merges segments up to a million rows each and removes all
    dead rows.
    """
    from sbert_search.index.index import Index

    index = Index.open(path, wait_s=wait_s)
    before = index.info()
    index.compact(retrain=retrain)
    after = index.info()
    if as_json:
        emit({"index": str(path), "before": to_mapping(before), "after": to_mapping(after)})
    else:
        say(
            f"{_segments(before)}, {size_text(before.size_bytes)} before; "
            f"{_segments(after)}, {size_text(after.size_bytes)} now."
        )


def _segments(info: IndexInfo) -> str:
    return "1 segment" if info.segments == 1 else f"{info.segments:,} segments"


@click.command()
@index_folder
@options_of(LexicalSettings, "language", "title_weight", "k1", "b", unset="")
@shared_options("wait", "quiet", "json")
@click.pass_context
def lexical(ctx: click.Context, /, path: Path, wait_s: float, as_json: bool, **_: object) -> None:
    """Add BM25 postings to DIR or change their settings.

    Settings that are not given keep their values. An index without postings starts with english,
    a title weight of 2, k1 = 1.2 and b = 0.75. Postings are computed again if a change needs it.
    """
    from sbert_search.index.index import Index

    index = Index.open(path, wait_s=wait_s)
    before = index.state.manifest.lexical or LexicalSettings()
    settings = changed_words(before, {name: ctx.params[name] for name in given(ctx)})
    index.set_lexical(settings)
    if as_json:
        emit({"index": str(path), **to_mapping(settings)})
    else:
        say(f"{path}: {_lexical_text(settings)}.")


@click.command()
@index_folder
@click.argument("target", type=click.Path(path_type=Path))
@shared_options("quiet", "json")
def backup(path: Path, target: Path, as_json: bool) -> None:
    """Back up the index DIR to a new folder TARGET.

    Files are hard-linked if the file system can do that, so the backup is quick and takes little
    space. Otherwise they are copied.
    """
    from sbert_search.index.index import Index

    index = Index.open(path)
    if os.path.lexists(target):
        raise click.UsageError(f"{target} exists already; name a new folder for the backup.")
    index.backup(target)
    if as_json:
        emit({"index": str(path), "backup": str(target), "documents": len(index)})
    else:
        say(f"{target} holds {len(index):,} documents.")


def _drift_facts(report: DriftReport) -> dict[str, object]:
    if report.recall is None:
        recall = "exact: no search of this index is approximate"
    else:
        recall = f"{report.recall:.3f} over {report.probes} probes, target {report.target}"
    return {
        "segments": report.segments,
        "dead rows": f"{report.dead_share:.1%}",
        "without FAISS": f"{report.scanned_share:.1%} of the rows",
        "imbalance": "no inverted lists" if report.imbalance is None else f"{report.imbalance:.2f}",
        "recall@10": recall,
        "to do": "; ".join(report.actions) or "nothing",
    }


def _lexical_text(settings: LexicalSettings | None) -> str:
    if settings is None:
        return "none; `index lexical` adds BM25 postings"
    return (
        f"{settings.language}, titles count {settings.title_weight} times, BM25 with "
        f"k1 = {settings.k1:g} and b = {settings.b:g}"
    )


def _approximate_text(report: IndexInfo) -> str:
    return f"{report.factory} (an index below {MIN_ANN_ROWS:,} passages: exact scan)"


def _long_texts(report: IndexInfo) -> str:
    if report.on_truncate != "chunk":
        return {"warn": "cut", "error": "an error"}.get(report.on_truncate, "not known")
    size = report.chunk_tokens or report.model["max_len"]
    overlap = f", {report.chunk_overlap} of them shared" if report.chunk_overlap else ""
    return f"split into passages of at most {size} tokens{overlap}"


def _model_facts(report: IndexInfo) -> dict[str, object]:
    from sbert_search.base.verdicts import Verdict
    from sbert_search.models.loading.identity import ModelIdentity
    from sbert_search.text.tokens.tokenizer import NO_LIMIT

    model = report.model
    if model["engine"] == ModelIdentity.NO_ENGINE:
        return {"model": "none; the vectors were given"}
    computed, limit = f"{model['engine']}, {model['precision']}", cast(int, model["max_len"])
    is_split = (report.chunk_tokens or limit) < NO_LIMIT
    if calibration := model.get("calibration"):
        computed += f", calibration {str(calibration)[:12]}"
    return {
        "model": f"{model['name']} ({computed})",
        **({"precision": str(from_mapping(Verdict, report.verdict))} if report.verdict else {}),
        "weights": f"sha256 {model['weights_sha256']}",
        **({"prompts": json.dumps(model["prompts"])} if model.get("prompts") else {}),
        "reads": f"{limit} tokens of a text" if limit < NO_LIMIT else "texts of any length",
        "long texts": _long_texts(report) if is_split else "not split",
    }


def query_model_text(record: QueryModel) -> str:
    """Describe a query model of an index."""
    model = record.identity
    kept = "not measured"
    if record.retention is not None:
        kept = f"{record.retention:.3f} on {record.measured_on}"
    return (
        f"{model['name']} ({model['engine']}, {model['precision']}), {model['dim']} dimensions, "
        f"sha256 {str(model['weights_sha256'])[:12]}, cosine {record.cosine:.2f}, retention {kept}"
    )


def _facts(report: IndexInfo) -> dict[str, object]:
    built = report.built
    facts: dict[str, object] = {
        "index": report.path if report.finished else f"{report.path} (an unfinished build)",
        "documents": report.documents,
        "passages": report.passages,
        "dead rows": report.dead_rows,
        **({"shards": report.shards} if report.shards else {}),
        "segments": report.segments,
        "size": size_text(report.size_bytes),
        "vectors": f"{report.dim} x {report.dtype}, {report.metric}",
        "search": "exact scan" if report.factory == "Flat" else _approximate_text(report),
        "words": _lexical_text(report.lexical),
        **_model_facts(report),
        "columns": ", ".join(f"{name} {kind}" for name, kind in report.columns.items()) or "none",
    }
    for name, record in report.query_models.items():
        facts[f"queries by {name}"] = query_model_text(record)
    if report.root:
        facts["folder"] = report.root
    if report.source_sha256:
        facts["built from"] = f"sha256 {report.source_sha256}"
        facts["rows"] = (
            f"{built.read:,} read: {built.indexed:,} indexed, {built.duplicate:,} duplicate, "
            f"{built.rejected:,} rejected"
        )
    if report.tuning:
        from sbert_search.index.tuning.tune import verdict

        facts["tuned"] = verdict(report.tuning)
    if model := report.migrating_to:
        facts["migration"] = f"to {model}; {report.without_vectors:,} passages are left"
    if model := report.migrated_from:
        facts["model before"] = f"{model}, which lacks {report.without_vectors:,} passages"
    if report.advice:
        facts["advice"] = f"`index compact`: {report.advice}"
    return facts


@click.command()
@index_folder
@options_of(TuneSettings, "recall", "k", "latency_ms", "max_minutes", flags={"k": "-k"})
@click.option(
    "--queries",
    type=click.Path(path_type=Path),
    help='File of typical queries: a JSON object {"_id", "text"} per line.  '
    "[default: documents of the index]",
)
@click.option("--svg", type=click.Path(path_type=Path), help="File for a plot of recall and speed.")
@click.option(
    "--dry-run", is_flag=True, help="Measure on a sample and predict; do not change the index."
)
@index_embedder_options
@shared_options("allow-inexact", "memory", "seed", "wait", "quiet", "json")
@click.pass_context
def tune(
    ctx: click.Context,
    /,
    path: Path,
    queries: Path | None,
    svg: Path | None,
    dry_run: bool,
    model: str | None,
    allow_inexact: bool,
    wait_s: float,
    as_json: bool,
    **_: object,
) -> None:
    """Choose the fastest search with a target recall.

    Candidates are compared on a sample of at most 100,000 rows. The best two are built over all
    rows and verified on held-out queries. A candidate that exceeds a limit of memory, latency or
    time is not built. With --memory, the FAISS files together may not be larger than the limit
    either, although they are mapped.
    """
    from sbert_search.base import files
    from sbert_search.base.folders import require_apart, require_possible_output
    from sbert_search.index.index import Index
    from sbert_search.index.tuning.tune import COLUMNS, draw, remarks, tables, verdict
    from sbert_search.text.labelled.retrieval import queries_file

    of_model = {"model", "device", "engine", "precision", "calibrate", "allow_inexact"}
    if queries is None and (names := sorted(typed(ctx) & of_model)):
        raise click.UsageError(
            f"--{names[0].replace('_', '-')} is for the model that embeds --queries; without that "
            "option, documents of the index serve as queries."
        )
    if svg:
        inputs = [path, *([queries_file(queries)] if queries else [])]
        require_possible_output(svg, "--svg")
        require_apart(svg, inputs, "--svg")
    own = ctx.params.keys() & declared(TuneSettings).keys()
    settings = TuneSettings(**{name: ctx.params[name] for name in own})
    index = Index.open(path, wait_s=wait_s)
    if queries is None:
        report = index.tune(settings, dry_run=dry_run)
    else:
        report = index.tune(
            settings,
            queries=queries,
            dry_run=dry_run,
            model=model,
            allow_inexact=allow_inexact,
            **model_options(ctx),
        )
    if svg:
        files.replace_file(svg, draw(report).encode())
    if as_json:
        emit({"index": str(path), **to_mapping(report)})
        return
    for title, rows in tables(report).items():
        say(title)
        show_table(COLUMNS, rows)
    for remark in remarks(report):
        say(remark)
    say(verdict(report.tuning) if report.tuning else "A dry run: nothing was changed.")
