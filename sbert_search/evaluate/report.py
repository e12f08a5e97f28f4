"""Write reports of evaluations: Markdown, SVG, JSON and TREC run files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten

import numpy as np

from sbert_search.base.files import replace_file
from sbert_search.base.folders import require_apart
from sbert_search.base.progress import warn
from sbert_search.base.svg import COLOUR, Axis, Panel, document
from sbert_search.errors import ConfigError
from sbert_search.evaluate.manifest import ALIKE, Evaluation, EvaluationRecord
from sbert_search.evaluate.retrieval import OWN_DOCUMENTS
from sbert_search.evaluate.tasks import KINDS, EvalSuite, EvalTask, Kind
from sbert_search.text.labelled.retrieval import RunCellError, write_run

_TOP, _HEIGHT, _GAP = 26, 190, 50  # pixels above a panel, height of a panel, pixels below it
_BINS = 40
# A scatter plot of more pairs than this shows only every nth pair, since more dots would overlap.
_MOST_DOTS = 1500
_FAILURES = 10  # queries that are listed


def draw(record: EvaluationRecord) -> str:
    """Draw a record as an SVG document.

    For a correlation, it has a scatter plot of predicted over gold scores, and a histogram of
    predicted scores; else the value of every item in descending order. If the metric has no value
    for one item, such as F1, the first metric of the record that has one is shown.
    """
    name, metric = record["task"]["name"], record["task"]["main_metric"]
    if metric not in ("spearman", "pearson"):
        items = record["per_item"]
        shown = metric if metric in items else next(iter(items))
        return draw_sorted(f"{name}: {shown} of every item", items[shown].values())
    gold, predicted = (list(record["per_item"][side].values()) for side in ("gold", "predicted"))
    shown = f"{name}: predicted over gold score, Spearman {100 * record['scores']['spearman']:.2f}"
    parts = _scatter(shown, gold, predicted) + _histogram(f"{name}: predicted", predicted)
    return document(parts, 2 * (_TOP + _HEIGHT + _GAP))


def draw_sorted(title: str, values: Iterable[float]) -> str:
    """Draw values as a descending step line."""
    descending = sorted(map(float, values), reverse=True)
    panel = _panel(title, Axis(0, len(descending)), Axis.of([0.0, *descending]), 0)
    points = [(n + side, value) for n, value in enumerate(descending) for side in (0, 1)]
    return document(panel.frame() + panel.line(points), _TOP + _HEIGHT + _GAP)


def _scatter(title: str, gold: Sequence[float], predicted: Sequence[float]) -> str:
    panel = _panel(title, Axis.of(gold), Axis.of(predicted), 0)
    step = -(-len(gold) // _MOST_DOTS)
    dots = (panel.place(*point) for point in list(zip(gold, predicted, strict=True))[::step])
    body = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in dots)
    return panel.frame() + (
        f'<path d="{body}" stroke="{COLOUR}" stroke-width="4" stroke-linecap="round" '
        'stroke-opacity="0.35"/>\n'
    )


def _histogram(title: str, values: Sequence[float]) -> str:
    counts, edges = np.histogram(values, bins=_BINS)
    x, y = Axis(edges[0], edges[-1]), Axis(0, float(counts.max()))
    panel = _panel(title, x, y, 1)
    sides = zip(edges[:-1], edges[1:], counts, strict=True)
    points = [(edge, count) for low, high, count in sides for edge in (low, high)]
    return panel.frame() + panel.line([(edges[0], 0), *points, (edges[-1], 0)])


def _panel(title: str, x: Axis, y: Axis, number: int) -> Panel:
    top = _TOP + number * (_TOP + _HEIGHT + _GAP)
    return Panel(title, x, y, top, top + _HEIGHT)


_OF_MEAN = (
    "The interval of a mean is the union of Student's and the BCa bootstrap interval over the "
)
_EXPLAINED: Mapping[Kind, str] = {
    "sts": "Spearman and Pearson correlation, times 100, of the predicted similarity (cosine, or "
    'score of a cross-encoder) with the gold score, in the "all" setting: one '
    "correlation over the pooled pairs of a set. Alignment (of pairs with a gold score of at least "
    "4) and uniformity are those of Wang & Isola 2020; lower is better.",
    "retrieval": "trec_eval's metrics, averaged over all judged queries, by the rank order of the "
    "results; a query without results scores 0. MAP counts all documents retrieved. "
    f"{_OF_MEAN}queries.",
    "rerank": "trec_eval's metrics for the candidates of each query, sorted by score. "
    "With raw queries, all queries count, and a query without a relevant candidate scores 0. With "
    "clean queries, only those with relevant and irrelevant candidates count. "
    f"{_OF_MEAN}queries.",
    "nli": "Accuracy over the pairs; balanced: the mean of the per-label accuracies."
    f" {_OF_MEAN}pairs.",
    "binary": "F1, precision and recall of the pairs with the label 1, at the threshold of the "
    "score with the highest F1; accuracy at its own; AP, the average precision, at none. "
    "The interval is a percentile bootstrap interval over the pairs.",
    "triplets": "Share of the triplets whose anchor is nearer to its positive than to all "
    f"negatives, by Euclidean distance and by cosine. {_OF_MEAN}triplets.",
    "classify": "Accuracy, macro F1 and Matthews correlation over the texts; for several classes, "
    "F1 over all labels. ECE: expected calibration error in 15 bins, with the model's temperature. "
    f"{_OF_MEAN}texts. The interval of another metric is a percentile bootstrap interval.",
    "tag": "Precision, recall and F1 over entities, as conlleval counts them: type and both ends "
    "must be right. The interval is a percentile bootstrap interval over the sentences.",
    "qa": "SQuAD's exact match and F1: the best value over the accepted answers. "
    f"{_OF_MEAN}questions.",
}
_TIMES_100 = (
    *("spearman", "pearson", "accuracy", "balanced", "cosine accuracy"),
    *("macro F1", "Matthews", "F1", "precision", "recall", "tag accuracy", "exact match"),
)

Table = tuple[list[str], list[list[str]]]


def score_table(evaluations: Sequence[Evaluation], suite: EvalSuite | None = None) -> Table:
    """Return the columns and rows of a table of scores, with one row per task.

    The rows of absent tasks of the suite show the reason. The mean of the main metric is added only
    if the suite requests it, no task is absent, and its tasks have the same main metric. The column
    of the 95 % interval is for the main metric of the first task, and empty in the row of a task
    with another one.
    """
    first = evaluations[0]
    units = KINDS[first.task.kind].units
    names = (name for e in evaluations for name in e.scores)
    measures = list(dict.fromkeys([first.task.main_metric, *names]))
    columns = ["task", "split", units, *map(_column_name, measures)]
    rows = [
        [e.task.name, e.task.split, f"{e.counts[units]:,}"]
        + [_format_value(name, e.scores[name]) if name in e.scores else "" for name in measures]
        for e in evaluations
    ]
    if first.task.main_metric in first.per_item or any(e.interval for e in evaluations):
        columns.insert(4, "95 % interval")
        for row, evaluation in zip(rows, evaluations, strict=True):
            beside_own = evaluation.task.main_metric == first.task.main_metric
            row.insert(4, _format_interval(evaluation) if beside_own else "")
    blanks = [""] * (len(columns) - 3)
    if suite:
        rows += [[name, "absent", reason, *blanks] for name, reason in suite.absent.items()]
    averaged = [e for e in evaluations if suite and e.task.name in suite.tasks]
    metrics = {e.task.main_metric for e in averaged}
    if suite and suite.average and not suite.absent and len(metrics) == 1:
        (metric,) = metrics
        mean = _format_value(metric, sum(e.main_score for e in averaged) / len(averaged))
        index = columns.index(_column_name(metric))
        rows.append(["mean" if n == 0 else mean if n == index else "" for n in range(len(columns))])
    return columns, rows


def remarks(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return sentences on how the documents of a retrieval were found, for readers of the table."""
    if evaluations[0].task.kind != "retrieval":
        return []
    found = [f"Search mode:{_describe_search(evaluations[0]).removeprefix(',')}."]
    for evaluation in evaluations:
        if own := evaluation.counts.get(OWN_DOCUMENTS):
            found.append(
                f"{evaluation.task.name}: {own:,} of {evaluation.counts['queries']:,} queries are "
                "documents of the collection; their own document is left out of their results. "
                "ignore_identical_ids = false in a task file keeps it."
            )
        if alike := evaluation.counts.get(ALIKE):
            found.append(
                f"{evaluation.task.name}: for {alike:,} of {evaluation.counts['queries']:,} "
                "queries, all documents found have one score, so that their order is by chance."
            )
    if len(evaluations) == 1 and "MRR@10" in evaluations[0].per_item:
        found.append(_failures(evaluations[0]))
    return found


def _failures(evaluation: Evaluation) -> str:
    """Count the queries whose first hit is relevant, and list others, the worst first."""
    values = evaluation.per_item["MRR@10"]
    failed = sorted((item for item in values if values[item] < 1), key=values.__getitem__)
    n, rest = len(values), " The worst of the others:" if failed else ""
    lines = [f"The first hit is relevant for {n - len(failed):,} of {n:,} queries.{rest}"]
    for item in failed[:_FAILURES]:
        rank = f"at {1 / values[item]:.0f}" if values[item] else "not in the first 10"
        lines.append(f"- {item} ({rank}) {shorten(evaluation.texts.get(item, ''), 70)}".rstrip())
    return "\n".join(lines)


def system_table(systems: Mapping[str, Sequence[Evaluation]]) -> Table:
    """Return a table with one row per system and the main metric of each task."""
    tasks = [e.task for e in next(iter(systems.values()))]
    columns = ["system", *(f"{task.name} {_column_name(task.main_metric)}" for task in tasks)]
    rows = [
        [name, *(_format_value(e.task.main_metric, e.main_score) for e in evaluations)]
        for name, evaluations in systems.items()
    ]
    return columns, rows


def markdown(
    evaluations: Sequence[Evaluation],
    suite: EvalSuite | None = None,
    beside: Mapping[str, Sequence[Evaluation]] | None = None,
) -> str:
    """Return the Markdown report of one model on tasks of one kind, ``beside`` other systems."""
    first = evaluations[0]
    kind, name = first.task.kind, str(first.manifest["model"]["name"])
    title = suite.title if suite else KINDS[kind].title
    lines = [f"# {title}: {name}{_describe_search(first)}", "", _EXPLAINED[kind], ""]
    lines += [*markdown_table(*score_table(evaluations, suite), left=2), ""]
    lines += [text for remark in remarks(evaluations)[1:] for text in (remark, "")]
    if suite and suite.average and suite.absent:
        lines += ["Tasks are absent, so no mean is given.", ""]
    if beside:
        systems = {name: evaluations, **beside}
        lines += ["## Other systems", "", *markdown_table(*system_table(systems)), ""]
    for evaluation in evaluations:
        lines += _about_task(evaluation)
    return "\n".join(lines + _about_run(evaluations)) + "\n"


def refuse_overwriting(tasks: Sequence[EvalTask], out: Path, read: Iterable[Path]) -> None:
    """Refuse a report folder in which a report would overwrite an input of the evaluation.

    Of a folder in ``read``, the files in subfolders are no inputs.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder for the reports.")
    inputs = [file for path in read for file in (path.glob("*") if path.is_dir() else [path])]
    endings = (".json", ".svg", ".trec")
    names = [f"{tasks[0].kind}.md", *(f"{task.name}{end}" for task in tasks for end in endings)]
    files = [file for file in inputs if file.is_file()]
    for name in names if out.is_dir() else ():
        require_apart(out / name, files, "A report")


def write_reports(
    evaluations: Sequence[Evaluation],
    out: Path,
    suite: EvalSuite | None = None,
    beside: Mapping[str, Sequence[Evaluation]] | None = None,
) -> list[Path]:
    """Write ``KIND.md``, and ``TASK.json`` and ``TASK.svg`` for each task; return their paths.

    Retrieval and reranking also write ``TASK.trec``, with the scores by query and document, unless
    an id has white space, which such a file cannot hold; a warning then says so. Each system in
    ``beside`` gets a subfolder.
    """
    out.mkdir(parents=True, exist_ok=True)
    report = out / f"{evaluations[0].task.kind}.md"
    replace_file(report, markdown(evaluations, suite, beside).encode())
    written = [report]
    for folder, some in {out: evaluations, **report_folders(out, beside or {})}.items():
        folder.mkdir(exist_ok=True)
        for evaluation in some:
            written += _write_task(evaluation, folder)
    return written


def _write_task(evaluation: Evaluation, folder: Path) -> list[Path]:
    name, record = evaluation.task.name, evaluation.to_json()
    written = [folder / f"{name}.json", folder / f"{name}.svg"]
    replace_file(written[0], record.encode())
    replace_file(written[1], draw(json.loads(record)).encode())
    if evaluation.run is not None:
        path = folder / f"{name}.trec"
        try:
            write_run(evaluation.run, path)
            written.append(path)
        except RunCellError as error:
            path.unlink(missing_ok=True)  # the run of an earlier evaluation
            warn(f"{path} is not written. {error}")
    return written


def report_folders(
    out: Path, beside: Mapping[str, Sequence[Evaluation]]
) -> dict[Path, Sequence[Evaluation]]:
    """Name a folder below ``out`` for each system, and refuse two systems with one folder."""
    folders: dict[Path, Sequence[Evaluation]] = {}
    for name, evaluations in beside.items():
        folder = out / "".join(c if c.isalnum() else "-" for c in name).strip("-")
        if folder in folders:
            raise ConfigError(f"Two systems would be written to {folder}; rename {name!r}.")
        folders[folder] = evaluations
    return folders


def _describe_search(evaluation: Evaluation) -> str:
    settings = evaluation.manifest["settings"]
    parts = [str(settings["mode"])] if "mode" in settings else []
    if "reranker" in settings:
        parts.append(f"reranked by {settings['reranker']}")
    return f", {', '.join(parts)}" if parts else ""


def _about_task(evaluation: Evaluation) -> list[str]:
    task = evaluation.task
    facts: dict[str, object] = {"source": task.source, "licence": task.licence, "note": task.note}
    facts |= {name: f"{count:,}" for name, count in evaluation.counts.items()}
    return [f"## {task.name}", "", *_bullets(facts), ""]


def _about_run(evaluations: Sequence[Evaluation]) -> list[str]:
    manifest = evaluations[0].manifest
    model, host = manifest["model"], manifest["machine"]
    facts = {
        "model": f"{model['name']}, weights sha256 {model['weights_sha256']}",
        "pooling": model["pooling"],
        "most tokens of a text": model["max_len"],
        "computed by": f"{model['engine']} engine, {model['precision']}",
        "settings": ", ".join(f"{name} {value}" for name, value in manifest["settings"].items()),
        "code": f"{manifest['code']['version']}, commit {manifest['code']['commit']}",
        "libraries": ", ".join(f"{name} {v}" for name, v in manifest["libraries"].items()),
        "machine": f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB",
        "started": evaluations[0].manifest["started"],
        "seconds": f"{sum(sum(e.manifest['seconds'].values()) for e in evaluations):.0f}",
    }
    return ["## Made with", "", *_bullets(facts)]


def _bullets(facts: Mapping[str, object]) -> list[str]:
    return [f"- {name}: {value}" for name, value in facts.items() if value]


def markdown_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1
) -> list[str]:
    """Return the lines of a table in Markdown, whose first ``left`` columns are text."""
    rule = ["---"] * left + ["--:"] * (len(columns) - left)
    return ["| " + " | ".join(map(str, cells)) + " |" for cells in (columns, rule, *rows)]


def _column_name(measure: str) -> str:
    return f"{measure} x 100" if _is_share(measure) else measure


def _format_value(measure: str, value: float) -> str:
    return f"{100 * value:.2f}" if _is_share(measure) else f"{value:.4f}"


def _is_share(measure: str) -> bool:
    """Whether a metric is shown times 100, as publications do."""
    return measure in _TIMES_100 or measure.startswith(("F1 ", "exact match "))


def _format_interval(evaluation: Evaluation) -> str:
    if (interval := evaluation.interval) is None:
        return "-"
    return " to ".join(_format_value(evaluation.task.main_metric, end) for end in interval)
