"""Evaluations for people (Markdown) and for programs (JSON, TREC run files)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sbert_search.corpus.trec import write_run
from sbert_search.evaluation.manifest import Evaluation
from sbert_search.evaluation.tasks import EvalSuite, Kind
from sbert_search.runtime.files import replace_file

_EXPLAINED: Mapping[Kind, str] = {
    "sts": "Spearman and Pearson correlation, times 100, of the cosine of two texts with the gold "
    'score, in the "all" setting: one correlation over the pooled pairs of a set.',
    "retrieval": "trec_eval's numbers, averaged over every judged query; a run is judged in the "
    "order shown, and a query without an answer scores 0. MAP is over the depth retrieved.",
}
_TITLES: Mapping[Kind, str] = {"sts": "Textual similarity", "retrieval": "Retrieval"}
_STYLE: Mapping[Kind, tuple[float, int]] = {"sts": (100.0, 2), "retrieval": (1.0, 4)}


def score_table(
    evaluations: Sequence[Evaluation], suite: EvalSuite | None = None
) -> tuple[list[str], list[list[str]]]:
    """Make the column names and rows of a table: one row a task, absent ones with the reason.

    The mean of the main metric is added only where a suite asks for it and no task is absent.
    """
    kind = evaluations[0].task.kind
    units = "pairs" if kind == "sts" else "queries"
    rows = [
        [e.task.name, e.task.split, f"{e.counts[units]:,}", *_shown(kind, e.scores)]
        for e in evaluations
    ]
    measures = list(evaluations[0].scores)
    if suite:
        blanks = [""] * len(measures)
        rows += [[name, "absent", reason, *blanks] for name, reason in suite.absent.items()]
    if suite and suite.average and not suite.absent:
        averaged = [e.scores for e in evaluations if e.task.name in suite.tasks]
        means = {m: sum(scores[m] for scores in averaged) / len(averaged) for m in measures}
        rows.append(["mean", "", "", *_shown(kind, means)])
    scale = " x 100" if kind == "sts" else ""
    return ["task", "split", units, *(f"{name}{scale}" for name in measures)], rows


def markdown(evaluations: Sequence[Evaluation], suite: EvalSuite | None = None) -> str:
    """Write the report of tasks of one kind that one model was evaluated on."""
    first = evaluations[0]
    kind, model = first.task.kind, first.manifest["model"]
    columns, rows = score_table(evaluations, suite)
    lines = [
        f"# {suite.title if suite else _TITLES[kind]}: {model['name']}",
        "",
        _EXPLAINED[kind],
        "",
        _line(columns),
        _line(["---"] * 2 + ["--:"] * (len(columns) - 2)),
        *map(_line, rows),
        "",
    ]
    if suite and suite.average and suite.absent:
        lines += ["Tasks are absent, so no mean is given.", ""]
    for evaluation in evaluations:
        lines += _about_task(evaluation)
    return "\n".join(lines + _about_run(evaluations)) + "\n"


def write_reports(
    evaluations: Sequence[Evaluation], out: Path, suite: EvalSuite | None = None
) -> list[Path]:
    """Write ``KIND.md``, and for each task ``TASK.json`` and, of retrieval, ``TASK.trec``."""
    out.mkdir(parents=True, exist_ok=True)
    report = out / f"{evaluations[0].task.kind}.md"
    replace_file(report, markdown(evaluations, suite).encode())
    written = [report]
    for evaluation in evaluations:
        record = out / f"{evaluation.task.name}.json"
        replace_file(record, evaluation.to_json().encode())
        written.append(record)
        if evaluation.run is not None:
            run_file = out / f"{evaluation.task.name}.trec"
            write_run(evaluation.run, run_file)
            written.append(run_file)
    return written


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
        "read as": f"{model['pooling']} pooling, at most {model['max_len']} tokens",
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


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _shown(kind: Kind, scores: Mapping[str, float]) -> list[str]:
    scale, digits = _STYLE[kind]
    return [f"{value * scale:.{digits}f}" for value in scores.values()]
