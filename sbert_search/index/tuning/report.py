"""A tuning for people: table rows and a picture of recall against speed."""

from __future__ import annotations

from sbert_search.index.evidence import Trial, Tuning
from sbert_search.index.spec import IndexSpec
from sbert_search.index.tuning.choice import Finalist, pareto
from sbert_search.index.tuning.tune import TuneReport
from sbert_search.runtime import svg

COLUMNS = (
    "rows", "index", "recall", "p50 ms", "p99 ms", "queries/s", "bytes/vector", "predicted",
    "build s", "predicted s", "note",
)  # fmt: skip
_TOP, _HEIGHT = 26, 380  # pixels of the picture's panel


def table(report: TuneReport) -> list[tuple[str, ...]]:
    """Make a row of each family on the sample, then of each finalist over all rows."""
    outlook = {finalist.measured.family: finalist for finalist in report.outlook}
    rows = []
    for measured in report.measured:
        finalist = outlook.get(measured.family)
        if finalist:
            rows.append(_row(finalist.trial, _expected(finalist)))
        elif measured.trials:
            best = max(measured.trials, key=lambda t: t.recall)
            rows.append(_row(best, "has not the recall"))
        else:
            blanks = ("-",) * 8
            rows.append(("-", measured.family.pattern, *blanks, f"not built: {measured.skipped}"))
    chosen = report.tuning.verified.spec if report.tuning else None
    for trial in report.built:
        rows.append(_row(trial, "chosen" if trial.spec == chosen else ""))
    if report.tuning:
        rows.append(_row(report.tuning.verified, "chosen, on queries not seen before"))
    return rows


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
        svg.Axis.of([t.qps for t in trials], log=True, form=",.0f"),
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


def _expected(finalist: Finalist) -> str:
    if finalist.refused:
        return f"not built over all rows: {finalist.refused}"
    return f"{finalist.latency_ms:.3g} ms, {finalist.build_s:,.0f} s expected over all rows"


def _row(trial: Trial, text: str) -> tuple[str, ...]:
    expected = trial.predicted_bytes / trial.n_rows
    return (
        f"{trial.n_rows:,}",
        how(trial.spec),
        f"{trial.recall:.3f}",
        f"{trial.p50_ms:.3g}",
        f"{trial.p99_ms:.3g}",
        f"{trial.qps:,.0f}",
        f"{trial.bytes_per_vector:,.0f}",
        f"{expected:,.0f}",
        f"{trial.build_s:.1f}",
        f"{trial.predicted_build_s:.1f}",
        text,
    )
