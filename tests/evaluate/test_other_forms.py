"""The same judged rows, written in another form, have the same figures."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from sbert_search.evaluate import evaluate

WORDS = ["river", "mill", "bees", "moon", "tide", "zebra", "horse", "wheel", "stone", "bread"]
Row = dict[str, Any]


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.choice([2, 3, 5])))


def pairs(rng: random.Random) -> list[Row]:
    queries = [text(rng) for _ in range(8)]
    return [
        {"query": rng.choice(queries), "positive": text(rng), "negative": text(rng)}
        for _ in range(12)
    ]


def scored(rng: random.Random) -> list[Row]:
    return [{"sentence1": text(rng), "sentence2": text(rng), "score": n % 6} for n in range(12)]


def labelled(rng: random.Random) -> list[Row]:
    return [{"sentence1": text(rng), "sentence2": text(rng), "label": n % 2} for n in range(14)]


def renamed(**names: str) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [{names.get(name, name): row[name] for name in row} for row in rows]


def changed(column: str, change: Callable[[Any], Any]) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [{**row, column: change(row[column])} for row in rows]


CHANGES: dict[str, Callable[[list[Row]], list[Row]]] = {
    "as they are": lambda rows: rows,
    "columns in another order": lambda rows: [dict(reversed(row.items())) for row in rows],
    "other columns": lambda rows: [{"n": n, **row, "note": "x"} for n, row in enumerate(rows)],
    "capitals": lambda rows: [{name.title(): row[name] for name in row} for row in rows],
    "upper case": lambda rows: [{name.upper(): row[name] for name in row} for row in rows],
}
OF_PAIRS = {
    "anchor": renamed(query="anchor", negative="negative_1"),
    "question": renamed(query="question", positive="answer", negative="hard_negative"),
}
OF_SCORES = {
    "floats": changed("score", float),
    "texts": changed("score", lambda score: f"{score:.3f}"),
    "similarity": renamed(sentence1="text1", sentence2="text2", score="similarity"),
}
OF_LABELS = {
    "texts": changed("label", str),
    "yes": changed("label", lambda label: ("no", "yes")[label]),
    "match": changed("label", lambda label: ("mismatch", "match")[label]),
    "Entailment": changed("label", lambda label: ("Contradiction", "Entailment")[label]),
}
CASES = [
    (make, name, change)
    for make, own in ((pairs, OF_PAIRS), (scored, OF_SCORES), (labelled, OF_LABELS))
    for name, change in (CHANGES | own).items()
]


def as_csv(rows: list[Row], path: Path, end: str, encoding: str, **options: Any) -> Path:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [*rows[0]], lineterminator=end, **options)
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(buffer.getvalue().encode(encoding))
    return path


def as_lines(rows: list[Row], path: Path) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def as_json(rows: list[Row], path: Path) -> Path:
    path.write_text(json.dumps(rows, indent=1))
    return path


def as_parquet(rows: list[Row], path: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=5)
    return path


def as_arrow(rows: list[Row], path: Path) -> Path:
    table = pa.Table.from_pylist(rows)
    columns = [
        column.combine_chunks().dictionary_encode() if column.type == pa.string() else column
        for column in table.columns
    ]
    feather.write_feather(pa.table(columns, names=table.column_names), path)
    return path


FORMS: dict[str, Callable[[list[Row], Path], Any]] = {
    "csv": lambda rows, at: as_csv(rows, at / "a.csv", "\r\n", "utf-8-sig"),
    "semicolons": lambda rows, at: as_csv(rows, at / "a.csv", "\n", "utf-8", delimiter=";"),
    "tsv": lambda rows, at: as_csv(rows, at / "a.tsv", "\n", "utf-8", delimiter="\t"),
    "json lines": lambda rows, at: as_lines(rows, at / "a.jsonl.gz"),
    "json": lambda rows, at: as_json(rows, at / "a.json"),
    "parquet": lambda rows, at: as_parquet(rows, at / "a.parquet"),
    "arrow": lambda rows, at: as_arrow(rows, at / "a.arrow"),
    "rows": lambda rows, at: rows,
    "generator": lambda rows, at: iter(rows),
    "frame": lambda rows, at: pd.DataFrame(rows).set_index(pd.Index(range(5, 5 + len(rows)))),
    "table": lambda rows, at: pa.Table.from_pylist(rows),
}


@pytest.mark.parametrize(
    ("make", "change"),
    [pytest.param(make, change, id=f"{make.__name__}: {name}") for make, name, change in CASES],
)
def test_other_forms_have_the_same_figures(
    tmp_path: Path,
    make: Callable[[random.Random], list[Row]],
    change: Callable[[list[Row]], list[Row]],
) -> None:
    rows = make(random.Random(5))
    expected = evaluate("hashing", rows)
    for name, write in FORMS.items():
        found = evaluate("hashing", write(change(rows), tmp_path))
        assert found.scores == expected.scores, name
        assert found.per_item == expected.per_item, name
