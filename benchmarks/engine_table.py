"""Write the tables in README.md and docs/measurements.md that compare search engines.

    python benchmarks/engine_table.py

Every cell comes from the result files of `bench_engines` in benchmarks/results/.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENGINES = {
    "faiss-script": "sentence-transformers + FAISS",
    "txtai": "txtai",
    "lancedb": "LanceDB",
    "chroma": "Chroma",
}
Figure = dict[str, float]
"""One figure of a result file: our ``value``, the ``peer``'s value, and the ``ratio`` of both."""
Format = Callable[[Figure, str], str]
"""Formats one value of a figure; the second argument is its key, ``value`` or ``peer``."""


def multiple_of_ours(figure: Figure, key: str) -> str:
    """Format a peer's value as a multiple of our value, and our value as 1."""
    return "1" if key == "value" else f"{1 / figure['ratio']:.1f}"


def number(spec: str) -> Format:
    """Make a function that formats a value by a format specification, such as ``.1f``."""
    return lambda figure, key: format(figure[key], spec)


def yes_or_no(figure: Figure, key: str) -> str:
    """Format the outcome of a trial, 1 or 0, as yes or no."""
    return "yes" if figure[key] else "no"


Rows = dict[str, tuple[str, str, Format]]
"""For the label of each row: the part of `bench_engines`, the measure, the format of the cells."""
# README.md shows times and speeds as multiples of ours. docs/measurements.md shows the same figures
# in seconds, milliseconds or documents a second.
README_ROWS: Rows = {
    "nDCG@10 over 1,000 abstracts, by meaning and words": (
        *("queries", "hybrid_ndcg_at_10"),
        number(".3f"),
    ),
    "time of a query by meaning, ours = 1": ("queries", "dense_p50", multiple_of_ours),
    "small writes a second, ours = 1": ("trials", "stream_rate", multiple_of_ours),
}
DOCS_ROWS: Rows = {
    "documents": ("index", "documents", number(",.0f")),
    "indexing, s": ("index", "index", number(".0f")),
    "anonymous memory while indexing, MiB": ("index", "index_memory", number(".0f")),
    "size on disk, MiB": ("index", "disk", number(".1f")),
    "nDCG@10, dense": ("queries", "dense_ndcg_at_10", number(".3f")),
    "nDCG@10, hybrid": ("queries", "hybrid_ndcg_at_10", number(".3f")),
    "dense query, p50, ms": ("queries", "dense_p50", number(".1f")),
    "dense query, p99, ms": ("queries", "dense_p99", number(".0f")),
    "hybrid query, p50, ms": ("queries", "hybrid_p50", number(".1f")),
    "hybrid query, p99, ms": ("queries", "hybrid_p99", number(".0f")),
    "anonymous memory while searching, MiB": ("queries", "dense_memory", number(".0f")),
    "time from a new process to its first hit, s": ("queries", "cold_start", number(".1f")),
    "hits of 10 asked for, with a filter that 20 documents pass": (
        *("queries", "filtered_hits"),
        number(".1f"),
    ),
    "share of the exact hits found with that filter": ("queries", "filtered_recall", number(".3f")),
    "documents kept of 5,183 when indexing is killed halfway": (
        *("trials", "killed_at_half_kept"),
        number(",.0f"),
    ),
    "indexes of 5 that open after a kill during small writes": (
        *("trials", "stream_opened"),
        number(".0f"),
    ),
    "documents acknowledged before the 5 kills": (
        *("trials", "stream_acknowledged"),
        number(",.0f"),
    ),
    "acknowledged documents lost in the 5 kills": ("trials", "stream_lost", number(",.0f")),
    "documents written a second, 32 at a time": ("trials", "stream_rate", number(",.0f")),
    "outdated texts still found after 10 documents changed": (
        *("trials", "stale_documents"),
        number(".0f"),
    ),
    "surplus entries in the index after 10 documents changed": (
        *("trials", "surplus_rows"),
        number(".0f"),
    ),
    "a process can add a document while another process searches": (
        *("trials", "other_process_written"),
        yes_or_no,
    ),
    "the searching process then finds the new document": (
        *("trials", "other_process_at_once"),
        yes_or_no,
    ),
    "the searching process finds it after a refresh call": (
        *("trials", "other_process_refreshed"),
        yes_or_no,
    ),
    "a process started afterwards finds it": (
        *("trials", "other_process_seen_by_a_third"),
        yes_or_no,
    ),
    "refuses a query after the model's weights changed": (
        *("trials", "refuses_other_weights"),
        yes_or_no,
    ),
}


def readme_table() -> list[str]:
    """Return the lines of the table in README.md."""
    lines = [
        f"| on SciFact | sbert-search | {' | '.join(ENGINES.values())} |",
        "|---|" + "---:|" * (1 + len(ENGINES)),
    ]
    return lines + [f"| {label} | {' | '.join(cells)} |" for label, cells in _cells(README_ROWS)]


def docs_table() -> list[str]:
    """Return the lines of the table in docs/measurements.md, with the source file of each row."""
    lines = [
        f"| measure | sbert-search | {' | '.join(ENGINES.values())} | file |",
        "|---|" + "---:|" * (1 + len(ENGINES)) + "---|",
    ]
    for label, cells in _cells(DOCS_ROWS):
        file = f"`benchmarks/results/bench_engines_{DOCS_ROWS[label][0]}_*.json`"
        lines.append(f"| {label} | {' | '.join(cells)} | {file} |")
    return lines


def _cells(rows: Rows) -> Iterator[tuple[str, list[str]]]:
    """Yield the label and the cells of each row that has a figure; sbert-search comes first."""
    figures = {part: read(part) for part in ("trials", "index", "queries")}
    for label, (part, measure, format_value) in rows.items():
        found = [figures[part].get(f"{measure}_{engine}") for engine in ENGINES]
        if any(found):
            ours = next(format_value(figure, "value") for figure in found if figure)
            yield (
                label,
                [ours, *(format_value(figure, "peer") if figure else "-" for figure in found)],
            )


def read(part: str) -> dict[str, Figure]:
    """Read the figures of one part of `bench_engines`; return {} if there is no result file."""
    found: dict[str, Figure] = {}
    for file in (ROOT / "benchmarks/results").glob(f"bench_engines_{part}_*.json"):
        found |= json.loads(file.read_text(encoding="utf-8"))["figures"]
    return found


TABLES = {"README.md": readme_table, "docs/measurements.md": docs_table}


def write(page: Path, table: list[str]) -> None:
    """Replace the table of search engines on a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if "| sbert-search | sentence-tr" in line)
    last = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    lines[first:last] = table
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name, make in TABLES.items():
        write(ROOT / name, make())
