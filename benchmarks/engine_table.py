"""Write the comparisons of engines in README.md and docs: python benchmarks/engine_table.py.

Every cell comes from the committed results of `bench_engines`.
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
Form = Callable[[Figure, str], str]


def times_ours(figure: Figure, side: str) -> str:
    """Write a peer's value as a multiple of ours."""
    return "1" if side == "value" else f"{1 / figure['ratio']:.1f}"


def number(form: str) -> Form:
    """Write a value as it was measured."""
    return lambda figure, side: format(figure[side], form)


def yes_or_no(figure: Figure, side: str) -> str:
    """Write what was tried."""
    return "yes" if figure[side] else "no"


# Times of indexing and of queries are in docs alone until a quiet machine has measured them.
Rows = dict[str, tuple[str, str, Form]]  # label: part of the benchmark, measure, how it is written
README_ROWS: Rows = {
    "nDCG@10 over 1,000 abstracts, by meaning": ("queries", "dense_ndcg_at_10", number(".3f")),
    "nDCG@10 over 1,000 abstracts, by meaning and words": (
        "queries",
        "hybrid_ndcg_at_10",
        number(".3f"),
    ),
    "time from a new process to its first hit, ours = 1": ("queries", "cold_start", times_ours),
    "hits of 10 asked for, with a filter that 20 documents pass": (
        *("queries", "filtered_hits"),
        number(".1f"),
    ),
    "size on disk, MiB": ("index", "disk", number(".1f")),
    "small writes a second, ours = 1": ("trials", "stream_rate", times_ours),
    "acknowledged documents lost in 5 kills during small writes": (
        *("trials", "stream_lost"),
        number(",.0f"),
    ),
    "documents kept of 5,183 when indexing is killed halfway": (
        *("trials", "killed_at_half_kept"),
        number(",.0f"),
    ),
    "outdated texts still found after 10 documents changed": (
        *("trials", "stale_documents"),
        number(".0f"),
    ),
    "refuses a query after the model's weights changed": (
        *("trials", "refuses_other_weights"),
        yes_or_no,
    ),
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
    "new process to first hit, s": ("queries", "cold_start", number(".1f")),
    "hits of 10, filter passed by 20 documents": ("queries", "filtered_hits", number(".1f")),
    "share of the exact filtered hits": ("queries", "filtered_recall", number(".3f")),
    "documents held after a kill at half of 5,183": (
        *("trials", "killed_at_half_kept"),
        number(",.0f"),
    ),
    "indexes that open after 5 kills in a stream of writes": (
        *("trials", "stream_opened"),
        number(".0f"),
    ),
    "documents acknowledged before those kills": (
        *("trials", "stream_acknowledged"),
        number(",.0f"),
    ),
    "of these, lost": ("trials", "stream_lost", number(",.0f")),
    "documents written a second, 32 at a time": ("trials", "stream_rate", number(",.0f")),
    "former texts found of 10 changed documents": ("trials", "stale_documents", number(".0f")),
    "rows too many after that": ("trials", "surplus_rows", number(".0f")),
    "another process can write while one reads": ("trials", "other_process_written", yes_or_no),
    "the reader finds its document at once": ("trials", "other_process_at_once", yes_or_no),
    "after a call to refresh": ("trials", "other_process_refreshed", yes_or_no),
    "a new process finds it": ("trials", "other_process_seen_by_a_third", yes_or_no),
    "other weights are refused": ("trials", "refuses_other_weights", yes_or_no),
}


def readme_table() -> list[str]:
    """Write the lines of the table in README.md."""
    lines = [
        f"| on SciFact | sbert-search | {' | '.join(ENGINES.values())} |",
        "|---|" + "---:|" * (1 + len(ENGINES)),
    ]
    return lines + [f"| {label} | {' | '.join(cells)} |" for label, cells in _cells(README_ROWS)]


def docs_table() -> list[str]:
    """Write the lines of the table in docs/measurements.md, which names a file in every row."""
    lines = [
        f"| measure | sbert-search | {' | '.join(ENGINES.values())} | file |",
        "|---|" + "---:|" * (1 + len(ENGINES)) + "---|",
    ]
    for label, cells in _cells(DOCS_ROWS):
        file = f"`benchmarks/results/bench_engines_{DOCS_ROWS[label][0]}_*.json`"
        lines.append(f"| {label} | {' | '.join(cells)} | {file} |")
    return lines


def _cells(rows: Rows) -> Iterator[tuple[str, list[str]]]:
    figures = {part: read(part) for part in ("trials", "index", "queries")}
    for label, (part, measure, form) in rows.items():
        found = [figures[part].get(f"{measure}_{engine}") for engine in ENGINES]
        if any(found):
            ours = next(form(figure, "value") for figure in found if figure)
            yield label, [ours, *(form(figure, "peer") if figure else "-" for figure in found)]


def read(part: str) -> dict[str, Figure]:
    """Read the figures of the committed run of a part of the benchmark; none if there is none."""
    found: dict[str, Figure] = {}
    for file in (ROOT / "benchmarks/results").glob(f"bench_engines_{part}_*.json"):
        found |= json.loads(file.read_text(encoding="utf-8"))["figures"]
    return found


TABLES = {"README.md": readme_table, "docs/measurements.md": docs_table}


def write(page: Path, table: list[str]) -> None:
    """Put a table in the place of the one with the same engines."""
    lines = page.read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if "| sbert-search | sentence-tr" in line)
    last = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    lines[first:last] = table
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name, make in TABLES.items():
        write(ROOT / name, make())
