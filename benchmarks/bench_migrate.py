"""A change of the model of an index, against the embedding that it cannot avoid.

    python benchmarks/bench_migrate.py [--quick] [--out F.json]
    python benchmarks/bench_migrate.py --model FOLDER [--out F.json]

The new model is the present one, fine-tuned by a few steps. The peer embeds the same texts with the
new model, which is loaded already, and keeps the vectors. Both run alternately, on the same index,
without searches.

Then, one query a second is answered by an engine with the old model: first alone (the peer), and
while the command migrates the index with --background. The command's wall time is a figure, too.

With --model, 5,000 abstracts of SciFact are migrated to that model, once and without searches; the
peer is the time that `Index.plan_migration` predicts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
from common import Figure, Results, arguments, compare, repeats_of, seconds
from texts import documents, nli_pairs, paragraphs, sentences, squad_questions

from sbert_search.embed.embedder import Embedder
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.train.fine_tune import fine_tune

SENTENCES, QUICK_SENTENCES = 50_000, 2_000
ALONE_S, QUICK_ALONE_S = 120, 15  # seconds of the queries without a migration
ABSTRACTS = 5_000


def many_sentences(count: int) -> list[str]:
    """Return distinct sentences of STSb and SNLI and, if more are needed, of Wikipedia."""
    _, rated = sentences(count)
    _, labelled = nli_pairs(count)
    found = dict.fromkeys(chain(rated, *((pair.text1, pair.text2) for pair in labelled)))
    for paragraph in paragraphs(count):
        if len(found) >= count:
            break
        found.setdefault(paragraph.partition(". ")[0])
    return list(found)[:count]


def latencies(engine: SearchEngine, queries: list[str], goes_on: Callable[[], bool]) -> list[float]:
    """Ask one query a second while ``goes_on``; return the seconds of each."""
    taken: list[float] = []
    while goes_on():
        started = time.perf_counter()
        engine.search(queries[len(taken) % len(queries)])
        taken.append(time.perf_counter() - started)
        time.sleep(max(0.0, 1.0 - taken[-1]))
    return taken


def tree_bytes(folder: Path) -> int:
    """Return the size of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Measure, print and write the figures."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", help="migrate abstracts to this model")
    options = parser.parse_args()
    results = Results(options)
    if options.model:
        texts = [document.text for document in documents(ABSTRACTS)[1]]
    else:
        texts = many_sentences(QUICK_SENTENCES if options.quick else SENTENCES)
    old = Embedder(precision="fp32")
    with tempfile.TemporaryDirectory(prefix="bench-migrate-") as scratch:
        path, tuned = Path(scratch, "index"), Path(scratch, "tuned")
        model = options.model
        if model is None:
            pairs = [{"query": a, "positive": b} for a, b in pairwise(texts[:65])]
            fine_tune(pairs, tuned, epochs=1)
            model = str(tuned / "model")
        new = Embedder(model, precision="auto" if options.model else "fp32")
        index = Index.from_texts(texts, out=path, model=old)
        passages = [passage.text for passage in index.state.fetch(index.state.live_rows())]
        size, larger = tree_bytes(path), 0

        def ours() -> float:
            took = seconds(lambda: index.migrate(new, switch=False))
            nonlocal larger
            larger = tree_bytes(path) - size
            index.drop_unused_vectors()
            return took

        def peer() -> float:
            return seconds(lambda: new.encode_document(passages))

        name = f"migrate_{len(passages)}"
        if options.model:
            predicted = index.plan_migration(new).minutes * 60
            took = ours()
            results.add(name, Figure(took, "s", predicted, took / predicted))
        else:
            repeats = repeats_of(options)
            results.add(name, compare(ours, peer, unit="s", repeats=repeats, warm_up=False))
        needed = float(len(passages) * new.dim * 4)
        results.add(f"{name}_bytes", Figure(larger, "bytes", needed, larger / needed))
        if options.model:
            return

        engine, queries = SearchEngine(index, old), squad_questions(100)
        until = time.monotonic() + (QUICK_ALONE_S if options.quick else ALONE_S)
        alone = latencies(engine, queries, lambda: time.monotonic() < until)
        command = [sys.executable, "-m", "sbert_search", "index", "migrate", str(path), "--quiet"]
        command += ["--model", model, "--precision", "fp32", "--background", "--no-switch"]
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
            beside = latencies(engine, queries, lambda: running.poll() is None)
        results.add(f"{name}_in_background", Figure(time.perf_counter() - started, "s"))
        assert running.returncode == 0
        for share in (50, 95):
            a, b = (float(np.percentile(taken, share)) * 1e3 for taken in (beside, alone))
            results.add(f"query_p{share}_in_background", Figure(a, "ms", b, a / b))


if __name__ == "__main__":
    main()
