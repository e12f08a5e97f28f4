"""A tuning for people: table rows and a picture of recall against speed."""

from __future__ import annotations

from sbert_search.index.spec import IndexSpec
from sbert_search.index.trials import Trial, Tuning
from sbert_search.index.tuning.choice import Finalist, pareto
from sbert_search.index.tuning.sweep import MeasuredFamily
from sbert_search.index.tuning.tune import TuneReport
from sbert_search.runtime import svg

COLUMNS = ("index", "recall", "p50/p99 ms", "queries/s", "bytes/vector", "build s")
_TOP, _HEIGHT = 26, 380  # pixels of the picture's panel


def tables(report: TuneReport) -> dict[str, list[tuple[str, ...]]]:
    """Make a table of the sample and one of all rows, by title; predictions are in brackets."""
    best = [_best(measured, report) for measured in report.measured if measured.trials]
    found = {f"On a sample of {best[0].n_rows:,} rows": [_row(trial) for trial in best]}
    if report.tuning:
        verified = report.tuning.verified
        title = f"Over all {verified.n_rows:,} rows, the last line on queries not seen before"
        found[title] = [_row(trial) for trial in (*report.built, verified)]
    return found


def remarks(report: TuneReport) -> list[str]:
    """Say what was not built and why, and what the candidates are expected to do over all rows."""
    skipped = [
        f"{measured.family.pattern.format(lists='...')} was not built: {measured.skipped}."
        for measured in report.measured
        if measured.skipped
    ]
    expected = [_expected(finalist) for finalist in report.outlook]
    return [*skipped, *expected]


def verdict(tuning: Tuning) -> str:
    """Say in a line what was chosen and what it does."""
    trial = tuning.verified
    return (
        f"{how(trial.spec)}: recall@{tuning.k} {trial.recall:.3f} ± {trial.recall_error:.3f} on "
        f"{tuning.n_verifying:,} unseen queries ({tuning.queries}), p50 {trial.p50_ms:.3g} ms, "
        f"p99 {trial.p99_ms:.3g} ms; {tuning.recall:g} was asked for"
    )


def how(spec: IndexSpec) -> str:
    """Name an index with the search parameters that matter to it."""
    parts = ["exact scan" if spec.is_flat else spec.factory]
    parts += [f"nprobe {spec.nprobe}"] if spec.n_lists else []
    parts += [f"ef {spec.ef_search}"] if spec.is_hnsw else []
    parts += [f"refine {spec.refine}"] if spec.refine > 1 else []
    return " ".join(parts)


def draw(report: TuneReport) -> str:
    """Draw recall against queries a second on the sample: all trials, and those that none beats."""
    trials = report.trials
    names = [m.family.pattern for m in report.measured if m.trials]
    panel = svg.Panel(
        "queries a second (one thread) against recall, on the sample",
        svg.Axis.of([t.recall for t in trials]),
        svg.Axis.of([t.qps for t in trials], log=True),
        _TOP,
        _HEIGHT,
    )
    parts = [panel.frame(), panel.line([(t.recall, t.qps) for t in pareto(trials)], "#999")]
    for i, measured in enumerate(m for m in report.measured if m.trials):
        for t in measured.trials:
            label = f"{how(t.spec)}: recall {t.recall:.3f}, {t.qps:,.0f} queries/s"
            parts.append(panel.dot((t.recall, t.qps), svg.colour_of(i), label))
    parts.append(svg.legend(names, _HEIGHT + 40))
    return svg.document("".join(parts), _HEIGHT + 40 + 16 * len(names))


def _best(measured: MeasuredFamily, report: TuneReport) -> Trial:
    """The fastest trial with the recall, or the one that comes nearest to it."""
    for finalist in report.outlook:
        if finalist.measured is measured:
            return finalist.trial
    return max(measured.trials, key=lambda t: t.recall)


def _expected(finalist: Finalist) -> str:
    name = how(finalist.trial.spec)
    if finalist.refused:
        return f"{name} was not built over all rows: {finalist.refused}."
    cost = f"{finalist.latency_ms:.3g} ms and {finalist.build_s:,.0f} s to build"
    return f"{name}: {cost} expected over all rows."


def _row(trial: Trial) -> tuple[str, ...]:
    predicted = trial.predicted_bytes / trial.n_rows
    return (
        how(trial.spec),
        f"{trial.recall:.3f}",
        f"{trial.p50_ms:.3g}/{trial.p99_ms:.3g}",
        f"{trial.qps:,.0f}",
        f"{trial.bytes_per_vector:,.0f} ({predicted:,.0f})",
        f"{trial.build_s:.1f} ({trial.predicted_build_s:.1f})",
    )
