"""Filters of lists and texts, against the same conditions in polars.

    python benchmarks/bench_list_filters.py [--quick] [--out F.json]

A table of 1,000,000 rows (--quick: 100,000) has a list of five tags and a title in each row, drawn
from 1,000 words. Each condition marks the matching rows. The figure is the time of one evaluation;
polars evaluates the same condition on the same table, with one thread. The marks must be equal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before polars is imported

import numpy as np
import polars as pl
import pyarrow as pa
from common import Results, arguments, compare

from sbert_search.index.filters import conditions
from sbert_search.index.storage.manifest import ColumnType

TAGS = 5  # values of a list
WORDS = 1000
COLUMNS: dict[str, ColumnType] = {"tags": "list[string]"}
CONDITIONS: dict[str, tuple[str, pl.Expr]] = {
    "contains": ("'tag7' IN tags", pl.col("tags").list.contains("tag7")),
    "lower_contains": (
        "'tag7' IN lower(tags)",
        pl.col("tags").list.eval(pl.element().str.to_lowercase()).list.contains("tag7"),
    ),
    "lower": ("lower(title) = 'tag7'", pl.col("title").str.to_lowercase() == "tag7"),
}


def main() -> None:
    """Measure, print the figures and write the result file."""
    options = arguments(__doc__.partition("\n")[0]).parse_args()
    results = Results(options)
    table = make_table(100_000 if options.quick else 1_000_000, options.seed)
    columns = {name: table.column(name).combine_chunks() for name in table.schema.names}
    frame = pl.DataFrame(table)
    for name, (where, expression) in CONDITIONS.items():
        condition = conditions.parse(where, COLUMNS).condition

        def ours(condition: conditions.Condition = condition) -> float:
            return milliseconds(lambda: condition(columns))

        def peer(expression: pl.Expr = expression) -> float:
            return milliseconds(lambda: frame.select(expression))

        marks = condition(columns).to_pylist()
        assert marks == frame.select(expression).to_series().to_list(), where
        results.add(f"{name}_ms", compare(ours, peer, unit="ms", repeats=3 if options.quick else 9))


def make_table(n_rows: int, seed: int) -> pa.Table:
    """Draw a table with the columns ``tags`` and ``title``."""
    rng = np.random.default_rng(seed)
    words = pa.array([f"tag{n}" for n in range(WORDS)], pa.large_string())
    tags = words.take(pa.array(rng.integers(0, WORDS, TAGS * n_rows)))
    ends = pa.array(np.arange(0, TAGS * n_rows + 1, TAGS))
    return pa.table(
        {
            "tags": pa.LargeListArray.from_arrays(ends, tags),
            "title": words.take(pa.array(rng.integers(0, WORDS, n_rows))),
        }
    )


def milliseconds(evaluate: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    evaluate()
    return 1000 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
