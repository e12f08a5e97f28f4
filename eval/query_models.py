"""Distil small query models from a bi-encoder and measure what they keep of its retrieval.

    python eval/query_models.py --data DATA --model all-MiniLM-L6-v2

The students are trained on texts only: sentences, passages and fragments of the training part of
Wikipedia and of the training parts of SNLI and MNLI, and titles. None is of a collection on which
they are measured, nor is a setting chosen on one. They are a static table over the teacher's
vocabulary, and encoders that start with two or four layers of the teacher. Each collection is
indexed once with the teacher; each student then embeds the queries of that index.

The report holds, for each collection and each model, nDCG@10 of dense and of hybrid search, the
share of the teacher's, and the difference with an interval of 95 %. Finished steps are kept under
--work, and training that was stopped goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from kept import kept
from squad_wikipedia import rows_of

from sbert_search import BiEncoderRecipe, Index, SearchEngine, load_recipe, train_bi_encoder
from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.progress import note
from sbert_search.evaluate.metrics.ranking import score_run, ties_by_hash
from sbert_search.evaluate.metrics.significance import compare_means
from sbert_search.evaluate.retrieval import own_documents, without_own
from sbert_search.evaluate.tasks import find_task
from sbert_search.search.options import SearchMode
from sbert_search.text.labelled.retrieval import read_qrels, read_queries
from sbert_search.train.loop.checkpoint import checkpoints

COLLECTIONS = ("scifact", "cranfield", "lisa", "npl")
MODES: tuple[SearchMode, ...] = ("dense", "hybrid")
STUDENTS = {
    "table": ("static", []),
    "2 layers": ("distill", ["layers=2"]),
    "4 layers": ("distill", ["layers=4"]),
}
ENCODERS = ["budget.epochs=2", "batching.size=64", "optim.lr=0.0003", "checkpoint.every=400"]
SEED = 17


def main() -> None:
    """Write the texts, train the students, search with them, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--texts", type=int, default=100_000, help="texts to train on")
    parser.add_argument("--students", nargs="+", choices=STUDENTS, default=list(STUDENTS))
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--work", type=Path, default=Path("eval/runs/query-models"))
    parser.add_argument("--out", type=Path, default=Path("eval/reports/query-models"))
    options = parser.parse_args()
    options.work /= f"{Path(options.model).name}-{options.texts}"  # what is kept depends on both
    options.work.mkdir(parents=True, exist_ok=True)
    train, dev = options.work / "train.txt", options.work / "dev.txt"
    if not dev.exists():
        replace_file(train, "\n".join(training_texts(options.data, options.texts)).encode())
        replace_file(dev, "\n".join(held_out(options.data, 1000)).encode())
    minutes = {}
    for name in options.students:
        recipe, settings = STUDENTS[name]
        folder = options.work / name.replace(" ", "-")
        settings = [
            *(f"data.train={train}", f"data.dev={dev}", f"teacher={options.model}"),
            *settings,
            *(ENCODERS if recipe == "distill" else []),
            *options.settings,
        ]
        minutes[name] = kept(
            folder.with_suffix(".json"), partial(trained, recipe, settings, folder)
        )
    rows = []
    for collection in COLLECTIONS:
        note(collection)
        file = options.work / f"{collection}-{'-'.join(options.students)}.json".replace(" ", "-")
        rows += kept(file, partial(measured, collection, options))
    report = {
        "made_with": made_with(),
        "model": Path(options.model).name,
        "texts": options.texts,
        "settings": options.settings,
        "training": minutes,
        "rows": rows,
    }
    name = f"{Path(options.model).name}.json"
    options.out.mkdir(parents=True, exist_ok=True)
    replace_file(options.out / name, (json.dumps(report, indent=1) + "\n").encode())
    for row in rows:
        note(
            f"{row['collection']:10}{row['mode']:8}{row['model']:10}{row['nDCG@10']:.4f}"
            f"{row['share']:8.3f}  [{row['low']:+.4f}, {row['high']:+.4f}]"
        )


def training_texts(data: Path, count: int) -> list[str]:
    """Return distinct texts: those of NLI pairs; then sentences, passages, fragments and titles."""
    draw = random.Random(SEED)
    texts = dict.fromkeys(_nli_texts(data))
    articles = [row for n in range(5) for row in rows_of(_wikipedia(data, f"train-{n}"))]
    draw.shuffle(articles)
    for article in articles:
        if len(texts) >= count:
            break
        found = _sentences(article["text"])
        draw.shuffle(found)
        texts |= dict.fromkeys(found[:4])
        texts[article["title"]] = None
        if found:
            words = draw.choice(found).split()
            size = draw.randint(2, 8)
            at = draw.randrange(max(1, len(words) - size))
            texts[" ".join(words[at : at + size])] = None
        texts[article["text"][: draw.randint(300, 700)].rpartition(" ")[0].replace("\n", " ")] = (
            None
        )
    texts.pop("", None)
    return list(texts)[:count]


def held_out(data: Path, count: int) -> list[str]:
    """Return sentences of the validation part of Wikipedia."""
    found = [text for row in rows_of(_wikipedia(data, "valid")) for text in _sentences(row["text"])]
    random.Random(SEED).shuffle(found)
    return list(dict.fromkeys(found))[:count]


def _nli_texts(data: Path) -> Iterator[str]:
    for file in ("snli/train_subset_18k.jsonl.gz", "mnli/train_subset.jsonl.gz"):
        for row in rows_of(data / file):
            for text in (row["sentence1"], row["sentence2"]):
                if text := " ".join(text.split()):
                    yield text


def _wikipedia(data: Path, part: str) -> Path:
    return data / "wikipedia-en-2014" / f"{part}.jsonl.xz"


def _sentences(text: str) -> list[str]:
    found = re.split(r"(?<=[.!?])\s+(?=[A-Z])|\n+", text)
    return [one for each in found if 25 <= len(one := " ".join(each.split())) <= 250]


def trained(recipe: str, settings: list[str], folder: Path) -> dict[str, float]:
    """Train a student, or go on with it, and return the minutes of this run."""
    start = time.monotonic(), time.process_time()
    train_bi_encoder(
        load_recipe(BiEncoderRecipe, "bi-encoder", recipe, settings),
        folder,
        resume=bool(checkpoints(folder)),
    )
    return {
        "minutes": (time.monotonic() - start[0]) / 60,
        "processor_minutes": (time.process_time() - start[1]) / 60,
    }


def measured(collection: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Search a collection with the teacher and with each student."""
    task = find_task("retrieval", collection)
    data = options.data / task.path
    index = Index.build(
        data,
        out=options.work / f"{collection}.index",
        model=options.model,
        precision="fp32",
        on_error=task.on_error,
        on_truncate="warn",
    )
    qrels = read_qrels(data, task.split)
    queries = [query for query in read_queries(data) if query.query_id in qrels]
    own = own_documents(index, queries, qrels, task.ignore_identical_ids)
    rows: list[dict[str, Any]] = []
    full: dict[str, list[float]] = {}
    for name in (None, *options.students):
        key = name and name.replace(" ", "-")
        record = index.add_query_model(options.work / key / "model", name=key) if key else None
        engine = SearchEngine(index, query_model=key)
        for mode in MODES:
            found = engine.run(queries, task.depth + bool(own), mode=mode)
            run = ties_by_hash(without_own(found, own, task.depth))
            scores = list(score_run(run, qrels, ["nDCG@10"])["nDCG@10"].values())
            full.setdefault(mode, scores)
            gain = compare_means(full[mode], scores)
            rows.append(
                {
                    "collection": collection,
                    "mode": mode,
                    "model": name or "teacher",
                    "nDCG@10": float(np.mean(scores)),
                    "share": float(np.mean(scores) / np.mean(full[mode])),
                    "difference": gain.value,
                    "low": gain.low,
                    "high": gain.high,
                    "cosine": record and record.cosine,
                }
            )
    return rows


if __name__ == "__main__":
    main()
