"""Time to find the most similar pair of 10,000 sentences, and all pairs above a threshold.

    python benchmarks/bench_pairs.py [--quick] [--out F.json]

The sentences are indexed with embeddings of all-MiniLM-L6-v2. `close_pairs` finds every pair with a
cosine of 0.8 or more. A brute-force search in float64 checks these pairs.

There are two peers. One is the paraphrase mining of sentence-transformers with the same vectors.
Paraphrase mining has no threshold; it keeps the 100 nearest sentences of each sentence. The other
peer is a cross-encoder, by default the encoder of all-MiniLM-L6-v2 with a random output layer. The
cross-encoder scores some pairs, from which its time for all pairs is extrapolated, as in Reimers &
Gurevych 2019, section 1.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from bench_reranking import model_folder
from common import Figure, Results, arguments, compare, rate, repeats_of, run_child, seconds
from sentence_transformers.util import paraphrase_mining_embeddings
from texts import sentences

from sbert_search import Embedder, Index, Reranker
from sbert_search.base.memory import anonymous_bytes
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.search.pairs import Pairs, best_pairs, close_pairs

THRESHOLD = 0.8


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--model", help="cross-encoder; default: MiniLM with random output weights")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(mine_pairs(options.child)))
        return
    results = Results(options)
    source, texts = sentences(2_000 if options.quick else 10_000)
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch) / "index"
        start = time.perf_counter()
        build(texts, index)
        results.add(f"{source}_sentences", Figure(len(texts), "texts"))
        results.add("embedding_and_indexing", Figure(time.perf_counter() - start, "s"))
        measure_mining(results, index)
        measure_cross_encoder(results, texts, model_folder(options, Path(scratch)))


def build(texts: list[str], out: Path) -> None:
    """Embed and index the sentences, without the lexical (BM25) index."""
    lines = out.with_name("texts.jsonl")
    rows = ({"_id": str(number), "text": text} for number, text in enumerate(texts))
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    Index.build(
        lines, out=out, model=Embedder(), settings=BuildSettings(lexical=None, on_truncate="warn")
    )


def mine_pairs(path: Path) -> dict[str, float]:
    """Find the best pair and all close pairs.

    Returns:
        ``best_s`` and ``close_s``, the seconds of each search; ``best``, the score of the best
        pair; ``close``, the number of close pairs; ``held_mib``, the anonymous memory of the
        process before the searches.
    """
    snapshot, held = Index.open(path).state, anonymous_bytes()
    start = time.perf_counter()
    best = best_pairs(snapshot, 1)
    first = time.perf_counter()
    n_close = sum(map(len, close_pairs(snapshot, THRESHOLD)))
    close_s = time.perf_counter() - first
    return {
        "best": float(best.scores[0]),
        "best_s": first - start,
        "close": n_close,
        "close_s": close_s,
        "held_mib": held / 2**20,
    }


def measure_mining(results: Results, path: Path) -> None:
    """Compare `close_pairs` with paraphrase mining, and count the errors of `close_pairs`."""
    child = run_child(str(Path(__file__)), "--child", str(path))
    results.add("best_pair", Figure(child.result["best_s"], "s"))
    results.add("best_pair_score", Figure(child.result["best"], "cosine"))
    results.add("all_close_pairs", Figure(child.result["close_s"], "s"))
    # Subtract the memory that the process had before the searches: the libraries and the index.
    mining_mib = child.anonymous_mib - child.result["held_mib"]
    results.add("memory_of_mining", Figure(mining_mib, "MiB"))
    snapshot = Index.open(path).state
    vectors = np.asarray(snapshot.segments[0].vectors)
    found = compare(
        lambda: seconds(lambda: list(close_pairs(snapshot, THRESHOLD))),
        lambda: seconds(
            lambda: paraphrase_mining_embeddings(torch.from_numpy(vectors.copy()), top_k=100)
        ),
        unit="s",
        repeats=repeats_of(results.options),
    )
    results.add("close_pairs_against_library", found)
    missed, extra = differences(list(close_pairs(snapshot, THRESHOLD)), snapshot, vectors)
    results.add("close_pairs", Figure(child.result["close"], "pairs"))
    results.add("close_pairs_missed", Figure(missed, "pairs"))
    results.add("close_pairs_too_many", Figure(extra, "pairs"))


def differences(found: list[Pairs], snapshot: Snapshot, vectors: np.ndarray) -> tuple[int, int]:
    """Count missing and extra pairs, compared with a brute-force search in float64."""
    ours = {pair for p in found for pair in zip(p.first.tolist(), p.second.tolist(), strict=True)}
    exact, rows = vectors.astype(np.float64), snapshot.segments[0].rows
    expected: set[tuple[int, int]] = set()
    for start in range(0, len(exact), 1000):
        scores = (exact[start : start + 1000] @ exact.T).astype(np.float32)
        first, second = np.nonzero(scores >= np.float32(THRESHOLD))
        once = start + first < second  # each pair in one order, and no text with itself
        pairs = rows[start + first[once]].tolist(), rows[second[once]].tolist()
        expected.update(zip(*pairs, strict=True))
    return len(expected - ours), len(ours - expected)


def measure_cross_encoder(results: Results, texts: list[str], folder: Path) -> None:
    """Time a cross-encoder on pairs of consecutive sentences, and extrapolate to all pairs."""
    pairs = list(zip(texts[::2], texts[1::2], strict=False))[
        : 200 if results.options.quick else 2000
    ]
    scorer = Reranker(folder, device="cpu")
    scorer.predict(pairs[:64])
    per_second = rate(len(pairs), partial(scorer.predict, pairs))
    n_pairs = len(texts) * (len(texts) - 1) // 2
    results.add("cross_encoder", Figure(per_second, "pairs/s"))
    results.add("cross_encoder_all_pairs_extrapolated", Figure(n_pairs / per_second / 3600, "h"))


if __name__ == "__main__":
    main()
