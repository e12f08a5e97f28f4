"""`index migrate` and `index query-model`: another model for an index, or a fast one beside it."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from sbert_search.cli.console import emit, say, show_facts, size_text
from sbert_search.cli.index.maintain import query_model_text
from sbert_search.cli.options.runner import opened_runner, runner_options
from sbert_search.cli.options.shared import (
    Finite,
    embedder_options,
    index_folder,
    model_options,
    prompt_options,
    refuse_typed,
    shared_options,
)
from sbert_search.config import to_mapping

if TYPE_CHECKING:
    from sbert_search.evaluate.judged import SearchAgreement
    from sbert_search.index.building.migration import MigrationPlan, MigrationReport
    from sbert_search.index.index import Index
    from sbert_search.index.storage.manifest import QueryModel

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
Step = Literal["dry_run", "rollback", "finish", "abandon"]


@click.command()
@index_folder
@click.option(
    "--dry-run", "step", flag_value="dry_run", help="Predict time and space; change nothing."
)
@click.option("--rollback", "step", flag_value="rollback", help="Switch back to the model before.")
@click.option(
    "--finish", "step", flag_value="finish", help="Remove the vectors of the model before."
)
@click.option(
    "--abandon", "step", flag_value="abandon", help="Remove the vectors of a begun migration."
)
@click.option(
    "--switch/--no-switch",
    default=True,
    show_default=True,
    help="Search with the new model as soon as all vectors are there.",
)
@click.option(
    "--vectors",
    type=FILE,
    help=".npy file of vectors to take, one for each passage in the order of `index export`.",
)
@click.option(
    "--judge",
    type=FILE,
    help="File of queries: make all vectors, compare the hits of both models, do not switch.",
)
@click.option("--qrels", type=FILE, help="Judgements of the queries of --judge, for nDCG@10.")
@click.option(
    "--background",
    is_flag=True,
    help="Leave the cores to searches: use one of them, only while it is idle.",
)
@click.option("--max-minutes", type=Finite(0), help="Stop at a commit after this time.")
@embedder_options
@prompt_options
@runner_options
@shared_options("memory", "wait", "quiet", "json")
@click.pass_context
def migrate(
    ctx: click.Context,
    /,
    path: Path,
    step: Step | None,
    switch: bool,
    vectors: Path | None,
    judge: Path | None,
    qrels: Path | None,
    background: bool,
    max_minutes: float | None,
    model: str | None,
    wait_s: float,
    as_json: bool,
    **_: object,
) -> None:
    """Embed the passages of DIR with another model, then switch to it.

    Searches and updates go on with the old model until one commit switches to the new one. The same
    command resumes after an interruption. The old vectors stay until --finish, so that --rollback
    can go back to them. `index info` shows a migration that is under way.
    """
    if background:
        _yield_cores()
    from sbert_search.index.index import Index

    index = Index.open(path, wait_s=wait_s)
    if step is not None:
        others = {"switch", "vectors", "judge", "qrels", "max_minutes"}
        needless = others if step == "dry_run" else {*others, "model"}
        refuse_typed(ctx, needless, f"with --{step.replace('_', '-')}")
    if step in (None, "dry_run") and model is None and vectors is None:
        raise click.UsageError("Name the new model with --model.")
    if judge is None:
        refuse_typed(ctx, {"qrels"}, "without --judge")
    if judge is not None:
        _require_readable(judge, qrels)
    if step == "dry_run":
        assert model is not None
        return _show_plan(index.plan_migration(model, **model_options(ctx)), as_json=as_json)
    if step in ("finish", "abandon"):
        return _drop(index, step, as_json=as_json)
    if step == "rollback":
        report = index.roll_back(**model_options(ctx))
    else:
        options = {} if model is None else model_options(ctx)
        with opened_runner(ctx) as runner:
            report = index.migrate(
                model,
                vectors=vectors,
                switch=switch and judge is None,
                max_minutes=max_minutes,
                runner=None if ctx.params.get("runner", "local") == "local" else runner,
                **options,
            )
        if judge is not None and not report.left:
            return _judge(index, judge, qrels, as_json=as_json)
    _show_report(report, path, is_back=step == "rollback", as_json=as_json)


def _yield_cores() -> None:
    """Run on one core, and there only while nothing else wants it."""
    import torch

    torch.set_num_threads(1)
    os.nice(19)
    if sys.platform == "linux":
        # With niceness alone a search waits for its share of the core, up to a tenth of a second;
        # with two cores in turn, one of its two threads does.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _show_report(report: MigrationReport, path: Path, *, is_back: bool, as_json: bool) -> None:
    if as_json:
        return emit({"index": str(path), **to_mapping(report)})
    done = f"{report.embedded:,} passages embedded in {report.seconds:,.0f} s"
    if report.switched:
        others = "`--rollback` goes back, `--finish` removes the old vectors"
        if is_back:
            others = "`--abandon` removes the vectors of the other model"
        return say(f"{done}. {path} is searched with {report.model} now; {others}.")
    if report.left:
        return say(f"{done}, {report.left:,} left; the same command resumes.")
    say(f"{done}. The vectors of {report.model} are complete; --switch uses them.")


def _show_plan(plan: MigrationPlan, *, as_json: bool) -> None:
    if as_json:
        return emit(to_mapping(plan))
    show_facts(
        {
            "passages": plan.passages,
            "tokens": f"about {plan.tokens:,}",
            "time": f"about {plan.minutes:,.1f} minutes on this machine",
            "space": f"{size_text(plan.size_bytes)} beside the old vectors",
            **{name: f"{old} -> {new}" for name, (old, new) in plan.changes.items()},
        }
    )


def _require_judgeable(index: Index) -> None:
    """Refuse to compare a query model with the model of an index that has none."""
    if not index.identity.is_model:
        raise click.UsageError(
            f"--judge searches with the model of the index, too, and {index.path} has vectors that "
            "were given without one; leave --judge out, and stored passages are compared."
        )


def _require_readable(queries: Path, qrels: Path | None) -> None:
    """Refuse wrong files of queries and judgements before the work for them."""
    from sbert_search.text.labelled.retrieval import read_qrels_file, read_queries

    read_queries(queries)
    if qrels is not None:
        read_qrels_file(qrels)


def _judge(index: Index, queries: Path, qrels: Path | None, *, as_json: bool) -> None:
    """Compare the hits of both models, and say how to switch."""
    from sbert_search.evaluate import compare_searches
    from sbert_search.search.engine import SearchEngine
    from sbert_search.search.options import SearchOptions

    engines = SearchEngine(index), SearchEngine(index.preview_migration())
    found = compare_searches(*engines, queries, qrels)
    if as_json:
        judged = found.judged and {
            "first": found.judged.first,
            "second": found.judged.second,
            "difference": to_mapping(found.judged.difference),
        }
        return emit({**to_mapping(replace(found, judged=None)), "judged": judged})
    say(f"Searched in mode {SearchOptions().for_index(index.state).mode}:")
    _show_agreement(found, "old and new model")
    say("The same command without --judge switches to the new model.")


def _show_agreement(found: SearchAgreement, engines: str) -> None:
    facts: dict[str, object] = {
        "queries": found.queries,
        "same first hit": f"{found.same_first:.0%}",
        f"shared of {found.k} hits": f"{found.overlap:.0%}",
    }
    if found.rank_correlation is not None:
        facts["correlation of ranks"] = f"{found.rank_correlation:.2f}"
    if found.judged:
        facts[engines] = found.judged
    show_facts(facts)


def _drop(index: Index, step: Step, *, as_json: bool) -> None:
    info = index.info()
    wanted = {"finish": info.migrated_from, "abandon": info.migrating_to}
    if not wanted[step]:
        state = "has no vectors of a model before" if step == "finish" else "is in no migration"
        raise click.UsageError(f"{index.path} {state}.")
    dropped = index.drop_unused_vectors()
    if as_json:
        return emit({"index": str(index.path), "dropped": dropped})
    say(f"The vectors of {', '.join(dropped)} are removed.")


@click.command()
@index_folder
@click.argument("model", required=False)
@click.option("--name", default="fast", show_default=True, help="Name of the query model.")
@click.option("--remove", is_flag=True, help="Remove the query model --name from the index.")
@click.option(
    "--judge",
    type=FILE,
    help="File of queries: measure how much of the quality of dense search the model keeps.",
)
@click.option("--qrels", type=FILE, help="Judgements of the queries of --judge, for nDCG@10.")
@shared_options("wait", "quiet", "json")
@click.pass_context
def query_model(
    ctx: click.Context,
    /,
    path: Path,
    model: str | None,
    name: str,
    remove: bool,
    judge: Path | None,
    qrels: Path | None,
    wait_s: float,
    as_json: bool,
    **_: object,
) -> None:
    """Let the small MODEL embed queries of the index DIR, for `search --query-model NAME`.

    The documents keep their vectors, so MODEL must give vectors in the same space, as a model does
    that was distilled from that of the index. Another one is refused. Without MODEL, the query
    models of the index are listed.
    """
    from sbert_search.index.index import Index

    if model is None or remove:
        where = "with --remove" if remove else "without MODEL"
        refuse_typed(ctx, {"model", "judge", "qrels", *(() if remove else ("name",))}, where)
    if judge is None:
        refuse_typed(ctx, {"qrels"}, "without --judge")
    index = Index.open(path, wait_s=wait_s)
    if remove:
        index.remove_query_model(name)
        removed = {"index": str(path), "removed": name}
        return emit(removed) if as_json else say(f"{path} has no query model {name} any more.")
    if model is not None:
        if judge is not None:
            _require_judgeable(index)
            _require_readable(judge, qrels)
        before = index.query_models.get(name)
        index.add_query_model(model, name)
        if judge is not None:
            _judge_query_model(index, name, before, judge, qrels, as_json=as_json)
    shown = {k: m for k, m in index.query_models.items() if model is None or k == name}
    if as_json:
        for each, record in shown.items():
            emit({"name": each, **to_mapping(record)})
        return
    show_facts({each: query_model_text(record) for each, record in shown.items()})
    if model is not None:
        say(f'Use it: sbert-search search {path} "your question" --query-model {name}')


def _judge_query_model(
    index: Index,
    name: str,
    before: QueryModel | None,
    queries: Path,
    qrels: Path | None,
    *,
    as_json: bool,
) -> None:
    """Compare dense hits by the query model with those by the model, and record the result.

    If that fails, the query model of this name is again what it was before.
    """
    from sbert_search.evaluate import compare_searches
    from sbert_search.index.building.query_models import HITS, compared_hits, put
    from sbert_search.search.engine import SearchEngine

    k = compared_hits(len(index))
    try:
        engines = SearchEngine(index), SearchEngine(index, query_model=name)
        found = compare_searches(*engines, queries, qrels, k=k or HITS, mode="dense")
    except BaseException:
        put(index, name, before)
        raise
    if not as_json:
        _show_agreement(found, "model and query model")
    kept = found.overlap if k else None
    record = replace(index.query_models[name], retention=kept, measured_on="queries")
    if found.judged and found.judged.first:
        share = found.judged.second / found.judged.first
        record = replace(record, retention=share, measured_on="judgements")
    put(index, name, record)
