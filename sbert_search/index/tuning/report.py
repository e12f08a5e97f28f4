"""Showing a tuning: tables, remarks and a plot of recall against speed."""

from __future__ import annotations

from sbert_search.base import svg
from sbert_search.index.spec import IndexSpec
from sbert_search.index.trials import Trial, Tuning
from sbert_search.index.tuning.choice import Candidate, pareto
from sbert_search.index.tuning.sweep import MeasuredFamily
from sbert_search.index.tuning.tune import TuneReport

COLUMNS = ("index", "recall", "p50/p99 ms", "queries/s", "bytes/vector", "build s")
_TOP, _HEIGHT = 26, 380  # pixels of the plot's panel


def tables(report: TuneReport) -> dict[str, list[tuple[str, ...]]]:
    """Return the tables of a report by title: one of the sample, and one of all rows.

    The first table has a row for each kind of index that was measured, with its best trial. The
    second table has a row for each index that was built over all rows, and one for the chosen index
    on held-out queries; after a dry run there is no second table. Predicted bytes and seconds are
    in parentheses.
    """
    best = [_best(measured, report) for measured in report.measured if measured.trials]
    by_title = {f"On a sample of {best[0].n_rows:,} rows": [_row(trial) for trial in best]}
    if report.tuning:
        verified = report.tuning.verified
        built = [_row(trial) for trial in report.built]
        held_out = ("chosen, on held-out queries", *_row(verified)[1:])
        by_title[f"Over all {verified.n_rows:,} rows"] = [*built, held_out]
    return by_title


def remarks(report: TuneReport) -> list[str]:
    """Return a sentence for each kind of index that was not built or that reached the recall.

    For a kind that was not built on the sample, the sentence gives the reason. For a kind that
    reached the recall on the sample, it gives the predicted latency and build time over all rows,
    or the reason why it exceeds the budget.
    """
    skipped = [
        f"{measured.family.name} was not built: {measured.skipped}."
        for measured in report.measured
        if measured.skipped
    ]
    expected = [_expected(candidate) for candidate in report.outlook]
    return [*skipped, *expected]


def verdict(tuning: Tuning) -> str:
    """Return the chosen index and its measurements on held-out queries as one line."""
    trial = tuning.verified
    return (
        f"{how(trial.spec)}: recall@{tuning.k} {trial.recall:.3f} ± {trial.recall_error:.3f} on "
        f"{tuning.n_verifying:,} held-out queries ({tuning.queries}), p50 {trial.p50_ms:.3g} ms, "
        f"p99 {trial.p99_ms:.3g} ms; the target recall is {tuning.recall:g}"
    )


def how(spec: IndexSpec) -> str:
    """Name an index with the search parameters that it uses."""
    parts = ["exact scan" if spec.is_flat else spec.factory]
    parts += [f"nprobe {spec.nprobe}"] if spec.n_lists else []
    parts += [f"ef {spec.ef_search}"] if spec.is_hnsw else []
    parts += [f"refine {spec.refine}"] if spec.refine > 1 else []
    return " ".join(parts)


def draw(report: TuneReport) -> str:
    """Plot recall against queries per second on the sample: all trials, and their Pareto front."""
    trials = report.trials
    names = [m.family.name for m in report.measured if m.trials]
    panel = svg.Panel(
        "queries per second (one thread) against recall, on the sample",
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
    """Return the trial that `predict_costs` chose, or the one with the highest recall.

    The latter is returned if no trial of the family reaches the target recall.
    """
    for candidate in report.outlook:
        if candidate.measured is measured:
            return candidate.trial
    return max(measured.trials, key=lambda t: t.recall)


def _expected(candidate: Candidate) -> str:
    name = how(candidate.trial.spec)
    if candidate.refused:
        return f"{name} was not built over all rows: {candidate.refused}."
    cost = f"{candidate.latency_ms:.3g} ms per query and {candidate.build_s:,.0f} s to build"
    return f"{name}: predicted over all rows: {cost}."


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
