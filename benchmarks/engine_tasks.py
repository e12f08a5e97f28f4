"""Run one task with one search engine: ``engine_tasks.py TASK ENGINE FOLDER ...``.

The result is printed as one JSON object, on the last line. `bench_engines` runs this script as a
process of its own, measures its time and memory, and kills it in some trials.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

from engines import STUB, Engine, FaissScript, SbertSearch, rows_of

NAMES = ("sbert-search", "faiss-script", "txtai", "lancedb", "chroma")
K = 10
STREAM_BATCH = 32  # documents of one small write
BUCKET = 7  # the bucket that filters select; each document has a bucket number
N_FILTERED = 50  # queries asked with a filter


def engine_of(name: str, folder: str, model: str, **options: Any) -> Engine:
    """Make an engine by its name."""
    if name == "sbert-search":
        return SbertSearch(Path(folder), model, **options)
    if name == "faiss-script":
        return FaissScript(Path(folder), model, **options)
    import engine_peers

    peers: dict[str, Callable[..., Engine]] = {
        "txtai": engine_peers.Txtai,
        "lancedb": engine_peers.LanceDb,
        "chroma": engine_peers.Chroma,
    }
    return peers[name](Path(folder), model, **options)


def create(name: str, folder: str, model: str, docs: str) -> dict[str, Any]:
    """Index a file; return the number of threads that torch uses, or None without torch."""
    engine_of(name, folder, model).create(Path(docs))
    torch: Any = sys.modules.get("torch")
    return {"threads": torch.get_num_threads() if torch else None}


def cold(name: str, folder: str, model: str, query: str) -> dict[str, Any]:
    """Open an index for one query and answer it."""
    engine = engine_of(name, folder, model)
    engine.open(once=True)
    return {"hits": ask_one(engine, query)}


def ask(name: str, folder: str, model: str, mode: str, queries: str) -> dict[str, Any]:
    """Answer queries one by one; in dense mode, answer some of them again with a filter.

    The first five queries are asked before to warm up.
    """
    hybrid = mode == "hybrid"
    engine, texts = opened(name, folder, model, hybrid=hybrid), json.loads(queries)
    for text in texts[:5]:
        engine.search(text, K, hybrid=hybrid)
    milliseconds, found = [], []
    for text in texts:
        start = time.perf_counter()
        hits = engine.search(text, K, hybrid=hybrid)
        milliseconds.append(1000 * (time.perf_counter() - start))
        found.append([doc_id for doc_id, _ in hits])
    few = [] if hybrid else texts[:N_FILTERED]
    hits_of = (engine.search(text, K, bucket=BUCKET) for text in few)
    filtered = [[doc_id for doc_id, _ in hits] for hits in hits_of]
    return {"milliseconds": milliseconds, "found": found, "filtered": filtered}


def killed(name: str, folder: str, docs: str) -> dict[str, Any]:
    """Index a file with an embedder that kills the process after half of the documents."""
    half = sum(1 for _ in rows_of(Path(docs))) // 2
    engine_of(name, folder, STUB, kill_after=half).create(Path(docs))
    return {}


def stream(name: str, folder: str, docs: str) -> dict[str, Any]:
    """Write batches until killed; after each, print the number of documents written so far."""
    engine, source = engine_of(name, folder, STUB), cycle(rows_of(Path(docs)))
    for written in count(STREAM_BATCH, STREAM_BATCH):
        rows = islice(source, STREAM_BATCH)
        engine.upsert([{**row, "_id": f"{written}-{i}"} for i, row in enumerate(rows)])
        print(written, flush=True)
    return {}


def counts(name: str, *folders: str) -> dict[str, Any]:
    """Open indexes and count their documents; None for an index that does not open."""
    found: list[int | None] = []
    for folder in folders:
        try:
            if name == "sbert-search":
                from sbert_search import Index

                found.append(len(Index.open(folder)))
            else:
                found.append(opened(name, folder, STUB).count())
        except Exception as error:  # of any type: the trial asks whether the index opens
            print(f"{name} {folder}: {type(error).__name__}: {error}", file=sys.stderr)
            found.append(None)
    return {"counts": found}


def upsert(name: str, folder: str, model: str, docs: str) -> dict[str, Any]:
    """Write documents into an index."""
    engine_of(name, folder, model).upsert(list(rows_of(Path(docs))))
    return {}


def stale(name: str, folder: str, model: str, old: str) -> dict[str, Any]:
    """Search for the titles of changed documents; return those whose old text is still found."""
    engine, former = opened(name, folder, model), list(rows_of(Path(old)))
    hits = [(row, engine.search(row["title"], K)) for row in former]
    still = [row["_id"] for row, found in hits if any(row["text"] in text for _, text in found)]
    return {"stale": still, "count": engine.count()}


def follow(name: str, folder: str, model: str, docs: str) -> dict[str, Any]:
    """Search while another process adds a document.

    Returns:
        Three truth values: ``written``, whether the other process could add the document;
        ``at_once``, whether this process then found it; ``refreshed``, whether this process found
        it after a refresh call.
    """
    (new,) = rows_of(Path(docs))
    engine = opened(name, folder, model)

    def finds(engine: Engine) -> bool:
        return new["_id"] in ask_one(engine, new["text"])

    assert not finds(engine), "the document is in the index already"
    other = [sys.executable, __file__, "upsert", name, folder, model, docs]
    written = subprocess.run(other, stdout=subprocess.DEVNULL).returncode == 0
    at_once = finds(engine)
    engine.refresh()
    return {"written": written, "at_once": at_once, "refreshed": finds(engine)}


def swapped(name: str, folder: str, model: str, query: str) -> dict[str, Any]:
    """Search an index after its model's weights have changed; return the hits or the refusal."""
    try:
        return {"hits": ask_one(opened(name, folder, model), query), "refused": None}
    except Exception as error:  # of any type: the message is the result
        return {"refused": f"{type(error).__name__}: {error}"}


def opened(name: str, folder: str, model: str, *, hybrid: bool = False) -> Engine:
    """Open an index for searching."""
    engine = engine_of(name, folder, model)
    engine.open(hybrid=hybrid)
    return engine


def ask_one(engine: Engine, query: str) -> list[str]:
    """Return the ids of the documents found."""
    return [doc_id for doc_id, _ in engine.search(query, K)]


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    task.__name__: task
    for task in (
        create,
        cold,
        ask,
        killed,
        stream,
        counts,
        upsert,
        stale,
        follow,
        swapped,
    )
}

if __name__ == "__main__":
    _, task, *arguments = sys.argv
    print(json.dumps(partial(TASKS[task], *arguments)()))
