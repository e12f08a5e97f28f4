"""Write the task `squad-wikipedia-101k`: SQuAD questions over 101,216 paragraphs, as a BEIR folder.

    python eval/squad_wikipedia.py DATA OUT
    sbert-search eval retrieval squad-wikipedia-101k --mode dense --data OUT

The corpus starts with every distinct paragraph of the SQuAD 2.0 development set, which is in two
halves (dev_a and dev_b). Then come the first 100,000 paragraphs of 150 characters or more of a 2014
extract of Wikipedia, in file order. Queries are the answerable questions of dev_a. Each has one
relevant document, the paragraph that it was asked about. ``qrels/all.tsv`` judges all 2,910
questions, and ``qrels/test.tsv`` 300 of them, drawn with seed 0.

Equal input gives files of equal bytes. eval/tasks/squad-wikipedia-101k.toml has the hashes of the
corpus, the queries and test.tsv.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from sbert_search.base.progress import note
from sbert_search.text.sources import open_bytes

NAME = "squad-wikipedia-101k"
DISTRACTORS = 100_000
MIN_CHARS = 150
QUESTIONS = 300


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a compressed JSON lines file."""
    with open_bytes(path) as lines:
        yield from map(json.loads, lines)


def paragraphs(data: Path) -> Iterator[str]:
    """Read the long paragraphs of Wikipedia from the files train-0, train-1, ..., in order."""
    files = (data / "wikipedia-en-2014" / f"train-{n}.jsonl.xz" for n in count())
    for file in files:
        for article in rows_of(file):
            yield from (line for line in article["text"].split("\n") if len(line) >= MIN_CHARS)


def write(
    data: Path, out: Path, distractors: int = DISTRACTORS, questions: int = QUESTIONS
) -> None:
    """Write corpus, queries and judgements; the folder appears only when all are written."""
    if (out / NAME).exists():
        note(f"{out / NAME} exists; nothing to do.")
        return
    folder = out / f"{NAME}.part"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "qrels").mkdir(parents=True)
    note(f"Reading questions and {distractors:,} other paragraphs")
    first, second = (list(rows_of(data / "squad" / f"dev_{half}.jsonl.gz")) for half in "ab")
    contexts = dict.fromkeys(row["context"] for row in chain(first, second))
    ids = {context: f"squad-{n}" for n, context in enumerate(contexts)}
    others = (
        {"_id": f"wikipedia-{n}", "text": text}
        for n, text in enumerate(islice(paragraphs(data), distractors))
    )
    corpus = chain(({"_id": name, "text": text} for text, name in ids.items()), others)
    answerable = [row for row in first if not row["is_impossible"]]
    write_lines(folder / "corpus.jsonl", map(json.dumps, corpus))
    queries = ({"_id": row["id"], "text": row["question"].strip()} for row in answerable)
    write_lines(folder / "queries.jsonl", map(json.dumps, queries))
    drawn = random.Random(0).sample(answerable, questions)
    for split, chosen in (("all", answerable), ("test", drawn)):
        judged = (f"{row['id']}\t{ids[row['context']]}\t1" for row in chosen)
        write_lines(
            folder / "qrels" / f"{split}.tsv", chain(["query-id\tcorpus-id\tscore"], judged)
        )
    folder.rename(out / NAME)


def write_lines(path: Path, lines: Iterator[str] | chain[str]) -> None:
    """Write lines of text."""
    with path.open("x", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python eval/squad_wikipedia.py DATA OUT")
    write(Path(sys.argv[1]), Path(sys.argv[2]))
