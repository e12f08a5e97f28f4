"""`eval compare`, `eval fusion` and `eval mlm`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import emit, say, show_report, show_table
from sbert_search.cli.options.search import encoding_option
from sbert_search.cli.options.shared import (
    index_embedder_options,
    model_options,
    options_of,
    shared_options,
)
from sbert_search.config import to_mapping
from sbert_search.search.options import SearchOptions

if TYPE_CHECKING:
    from sbert_search.evaluate.comparison import Comparison, ItemChange


_SHOWN = 5  # number of gains, of losses and of the entries of a list to print
MAX_DRAWS = 1_000_000  # more draws take minutes and hardly change an interval
_WIDTH = 70  # characters of a query to print
_RUN = click.Path(exists=True, path_type=Path)


_draws = click.option(
    "--draws",
    type=click.IntRange(100, MAX_DRAWS),
    default=10_000,
    show_default=True,
    help="Number of random draws of each bootstrap and each randomisation test.",
)


@click.command()
@click.argument("qrels", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument(
    "runs", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    help="Metric, such as nDCG@10 or recall@100; may be repeated. The runs are compared by the "
    "first one.  [default: nDCG@10, recall@100, MRR@10 and MAP]",
)
@_draws
@shared_options("seed", "quiet", "json")
def run(
    qrels: Path,
    runs: tuple[Path, ...],
    metrics: tuple[str, ...],
    draws: int,
    seed: int,
    as_json: bool,
) -> None:
    """Measure and compare run files of any system.

    QRELS are relevance judgements in TREC's or BEIR's format. RUNS are files in TREC's format, such
    as those of Anserini, or .json files {query: {document: score}}. The metrics are those of
    trec_eval, with 95 % intervals. Each further run is compared with the first one as `eval
    compare` does.
    """
    from sbert_search.evaluate.comparison import compare, corrected_together
    from sbert_search.evaluate.judged import evaluate_run

    evaluations = [evaluate_run(path, qrels, metrics=metrics, seed=seed) for path in runs]
    first, *others = evaluations
    comparisons = corrected_together(
        [compare(first, other, draws=draws, seed=seed) for other in others]
    )
    if as_json:
        for path, evaluation in zip(runs, evaluations, strict=True):
            found = {"scores": evaluation.scores, "intervals": evaluation.intervals}
            emit({"run": str(path), **found, "counts": evaluation.counts})
        for path, comparison in zip(runs[1:], comparisons, strict=True):
            emit({"a": str(runs[0]), "b": str(path), **_of_change(comparison)})
        return
    intervals = [evaluation.intervals for evaluation in evaluations]
    names = [path.name for path in runs]
    if len({*names}) < len(names):
        names = [*map(str, runs)]
    show_table(
        ["run", *first.scores],
        [
            [
                name,
                *(
                    f"{value:.4f}" + (" ({:.4f} to {:.4f})".format(*ends[n]) if n in ends else "")
                    for n, value in evaluation.scores.items()
                ),
            ]
            for name, evaluation, ends in zip(names, evaluations, intervals, strict=True)
        ],
    )
    for name in first.counts:
        counts = [f"{n:,}" if (n := each.counts[name]) else "none" for each in evaluations]
        of_runs = [f"{n} in {run_name}" for n, run_name in zip(counts, names, strict=True)]
        say(f"{name}: {counts[0] if len({*counts}) == 1 else ', '.join(of_runs)}")
    for name, comparison in zip(names[1:], comparisons, strict=True):
        say(f"{name} (second) beside {names[0]} (first), {comparison}")


@click.command()
@click.argument("run_a", type=_RUN)
@click.argument("run_b", type=_RUN)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    help="Metric to compare; may be repeated.  [default: the main metric of each task]",
)
@_draws
@click.option(
    "--svg",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for plots of the gain of each query.",
)
@shared_options("seed", "quiet", "json")
def compare(
    run_a: Path,
    run_b: Path,
    metrics: tuple[str, ...],
    draws: int,
    svg: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Compare two evaluation runs.

    RUN_A and RUN_B are JSON files that --out of another `eval` command wrote, or folders of such
    files. Intervals come from a bootstrap and p-values from a randomisation test, both over the
    queries (for STS, over the pairs). Holm's method corrects the p-values for the number of tasks
    and metrics that are compared.
    """
    from sbert_search.base.folders import require_apart
    from sbert_search.evaluate.comparison import compare_runs, query_texts

    comparisons = compare_runs(run_a, run_b, metrics=metrics, draws=draws, seed=seed)
    if svg:
        plots = {_plot_path(comparison, svg): comparison for comparison in comparisons}
        records = [file for run in (run_a, run_b) for file in _records(run)]
        for path in plots:
            require_apart(path, records, "--svg")
        for path, comparison in plots.items():
            _draw(comparison, path)
    if as_json:
        for comparison in comparisons:
            emit(_record(comparison))
        return
    _show_settings(comparisons)
    columns = ["task", "metric", "A", "B", "B - A", "95 % interval", "p (Holm)"]
    show_table(columns, map(_row, comparisons))
    texts = query_texts(run_b)
    for comparison in comparisons:
        _show_changes(comparison, texts.get(comparison.task, {}))


def _plot_path(comparison: Comparison, folder: Path) -> Path:
    return folder / f"{comparison.task}-{comparison.metric.replace('@', '-')}.svg"


def _records(run: Path) -> list[Path]:
    return sorted(run.glob("*.json")) if run.is_dir() else [run]


def _draw(comparison: Comparison, path: Path) -> None:
    from sbert_search.base.files import replace_file
    from sbert_search.evaluate.report import draw_sorted

    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{comparison.task} {comparison.metric}: gain of B over A on every item"
    svg = draw_sorted(title, [change.gain for change in comparison.changes])
    replace_file(path, svg.encode())
    note(f"wrote {path}")


def _row(comparison: Comparison) -> list[object]:
    difference = comparison.difference
    interval = f"{difference.low:+.4f} to {difference.high:+.4f}"
    return [
        *(comparison.task, comparison.metric, comparison.first, comparison.second),
        *(f"{difference.value:+.4f}", interval, f"{comparison.corrected:.4f}"),
    ]


def _show_settings(comparisons: Sequence[Comparison]) -> None:
    """Print settings that differ between the runs; name the tasks if only some differ."""
    tasks = {comparison.task: comparison.differs for comparison in comparisons}
    lines: dict[str, list[str]] = defaultdict(list)
    for task, differs in tasks.items():
        for name, (a, b) in differs.items():
            lines[f"{name}: {_shortened(a)} (A), {_shortened(b)} (B)"].append(task)
    for line, where in lines.items():
        say(line if len(where) == len(tasks) else f"{line} in {', '.join(where)}")


def _shortened(value: object) -> object:
    if isinstance(value, list) and len(value) > _SHOWN:
        return f"[{', '.join(map(repr, value[:_SHOWN]))} and {len(value) - _SHOWN} more]"
    return value


def _show_changes(comparison: Comparison, texts: Mapping[str, str]) -> None:
    """Print the largest gains and losses: if texts of queries are known, each on a line."""
    say(f"{comparison.task} {comparison.metric}: {_of_b(comparison.conclusion)}.")
    for title, changes in (("better", comparison.wins), ("worse", comparison.losses)):
        say(f"  B is {title} on {len(changes)} of {len(comparison.changes)}{_most(changes, texts)}")


def _most(changes: Sequence[ItemChange], texts: Mapping[str, str]) -> str:
    shown = {c.item: f"{c.item} ({c.first:.3f}, {c.second:.3f})" for c in changes[:_SHOWN]}
    if not texts or not shown:
        return f", most: {', '.join(shown.values())}" if shown else ""
    known = {item: shorten(texts.get(item, ""), _WIDTH, placeholder=" ...") for item in shown}
    return ", most:" + "".join(f"\n    {shown[item]} {known[item]}" for item in shown)


def _of_b(conclusion: str) -> str:
    return conclusion.replace("second", "B")


def _of_change(comparison: Comparison) -> dict[str, object]:
    difference = comparison.difference
    return {
        "metric": comparison.metric,
        "difference": difference.value,
        "interval": [difference.low, difference.high],
        "p": difference.p_value,
        "p_holm": comparison.corrected,
        "verdict": _of_b(comparison.verdict),
    }


def _record(comparison: Comparison) -> dict[str, object]:
    return {
        "task": comparison.task,
        **{"a": comparison.first, "b": comparison.second},
        **_of_change(comparison),
        "differs": comparison.differs,
        **{"wins": len(comparison.wins), "losses": len(comparison.losses)},
        "items": [asdict(change) for change in comparison.changes],
    }


@click.command()
@click.argument(
    "path", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.argument("data", metavar="DATA", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--split", default="train", show_default=True, help="Split of the judgements of a BEIR folder."
)
@click.option(
    "--folds", default=5, show_default=True, help="Number of folds of the cross-validation."
)
@click.option("--measure", default="nDCG@10", show_default=True, help="Metric to maximise.")
@options_of(SearchOptions, "where", "group_by")
@encoding_option
@index_embedder_options
@shared_options("allow-inexact", "seed", "quiet", "json")
@click.pass_context
def fusion(
    ctx: click.Context,
    /,
    path: Path,
    data: Path,
    split: str,
    folds: int,
    measure: str,
    where: str | None,
    group_by: str | None,
    encoding: str | None,
    model: str | None,
    allow_inexact: bool,
    seed: int,
    as_json: bool,
    **_: object,
) -> None:
    """Choose the fusion of `search --mode hybrid` on judged queries.

    DIR is an index. DATA is a BEIR folder with queries and relevance judgements, or a file of pairs
    of a query and a text or an id in the index. Measure the chosen fusion on other queries, since
    its score on the queries of DATA is too high.
    """
    from sbert_search.evaluate.retrieval import choose_fusion, judged_queries, name_of
    from sbert_search.index.index import Index

    index = Index.open(path)
    queries, qrels = judged_queries(data, index, split, encoding)
    embedder = index.matching_embedder(model, allow_inexact=allow_inexact, **model_options(ctx))
    choice = choose_fusion(
        *(index, embedder, queries, qrels),
        measure=measure,
        folds=folds,
        seed=seed,
        group_by=group_by,
        where=where,
    )
    if as_json:
        emit({"queries": len(queries), "measure": measure, **to_mapping(choice)})
        return
    rows = [[name, f"{score:.4f}"] for name, score in choice.scores.items()]
    show_table(["fusion", measure], rows)
    best = choice.fusion
    source = f"the split {split}" if data.is_dir() else data.name
    say(
        f"Use {name_of(best)} (--fusion {best.method} --dense-weight {best.dense_weight:g}, for "
        "`search`, `serve` and `mcp`). "
        f"{measure} over {len(queries):,} queries of {source}: {choice.held_out:.4f} with "
        f"fusions chosen on the other folds, {choice.default:.4f} with the default fusion. To "
        "judge the choice, run `eval retrieval` on other queries."
    )


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("--model", required=True, metavar="NAME|FOLDER", help="Masked language model.")
@click.option(
    "--max-len",
    type=click.IntRange(min=8),
    default=128,
    show_default=True,
    help="Maximum number of tokens of one example.",
)
@click.option(
    "--examples",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Maximum number of examples.",
)
@click.option(
    "--pseudo",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of examples for the pseudo-perplexity, which masks one token at a time; 0: none.",
)
@click.option("--text-field", help="Field that holds the text.  [default: detected]")
@click.option(
    "--wrapped",
    is_flag=True,
    help="Join the lines of a paragraph, for text wrapped to a fixed width, as in books.",
)
@shared_options("device", "quiet", "json")
def mlm(
    sources: tuple[str, ...],
    model: str,
    max_len: int,
    examples: int,
    pseudo: int,
    text_field: str | None,
    wrapped: bool,
    device: str,
    as_json: bool,
) -> None:
    """Measure how well a model predicts masked tokens of SOURCE.

    15 % of the tokens are masked, the same ones in every run. The output has the loss, the
    perplexity and the unigram entropy of the text, which is the loss of a model that knows only
    how often each token occurs. Compare losses only between models with the same vocabulary.
    """
    from sbert_search.base.device import resolve_device
    from sbert_search.evaluate.perplexity import evaluate_masked
    from sbert_search.models.loading.resolve import resolve_model
    from sbert_search.models.pretraining import MaskedLanguageModel
    from sbert_search.text.documents import CorpusReader, FieldNames

    loaded = MaskedLanguageModel.load(resolve_model(model).path)
    report = evaluate_masked(
        loaded.to(resolve_device(device)),
        CorpusReader(sources, fields=FieldNames(text=text_field)),
        max_len=max_len,
        most=examples,
        pseudo=pseudo,
        wrapped=wrapped,
    )
    show_report(report, as_json=as_json)
