"""Reranking speed of `Reranker.predict` against CrossEncoder.predict, same pairs and weights.

    python benchmarks/bench_reranking.py [--quick] [--model FOLDER] [--out F.json]

A pair is a SciFact query with an abstract. If SBERT_SEARCH_DATA is not set, both texts are
docstrings of Python's standard library. Without --model, the cross-encoder is the encoder of
all-MiniLM-L6-v2 with an output layer of random weights. The scores of this model have no meaning,
but it is as fast as any cross-encoder of this shape.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import Figure, Results, arguments, compare, rate, repeats_of
from sentence_transformers import CrossEncoder as LibraryCrossEncoder
from texts import documents, questions

from sbert_search import Reranker
from sbert_search.encoder.weights import load_encoder
from sbert_search.models.cross_encoder import CrossEncoder
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.tokens.tokenizer import TextTokenizer

TOP = 10  # documents compared between the two rankings


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--model", help="cross-encoder; default: MiniLM with random output weights")
    options = parser.parse_args()
    results = Results(options)
    n_queries, n_documents = (2, 24) if options.quick else (10, 100)
    source, queries = questions(n_queries)
    _, texts = documents(n_documents)
    pairs = [(query, text.full_text) for query in queries for text in texts]
    with tempfile.TemporaryDirectory() as scratch:
        measure(results, source, pairs, n_documents, model_folder(options, Path(scratch)))
    results.write()


def model_folder(options: argparse.Namespace, scratch: Path) -> Path:
    """Return the folder of --model, or write a model with random output weights."""
    if options.model:
        return resolve_model(options.model).path
    torch.manual_seed(options.seed)
    base, made = resolve_model(None).path, scratch / "cross-encoder"
    encoder = load_encoder(base)
    tokenizer = TextTokenizer.from_folder(base, encoder.config.max_positions)
    CrossEncoder(encoder, tokenizer, activation=torch.nn.Identity()).save(made)
    return made


def measure(
    results: Results, source: str, pairs: list[tuple[str, str]], n_documents: int, folder: Path
) -> None:
    """Compare speed and scores on pairs of queries and documents, ordered by query."""
    peer = LibraryCrossEncoder(str(folder), device="cpu")
    reference = np.asarray(peer.predict(pairs)).reshape(-1, n_documents)
    for name in ("fp32", "bf16"):
        ours = Reranker(folder, device="cpu", precision=name)
        figure = compare(
            partial(rate, len(pairs), partial(ours.predict, pairs)),
            partial(rate, len(pairs), partial(peer.predict, pairs)),
            unit="pairs/s",
            repeats=repeats_of(results.options),
        )
        results.add(f"{source}_{name}", figure)
        scores = ours.predict(pairs).reshape(-1, n_documents)
        difference = float(np.abs(scores - reference).max())
        results.add(f"{source}_{name}_max_difference", Figure(difference, "score"))
        results.add(f"{source}_{name}_scores_deviate", Figure(float(reference.std()), "score"))
        same = [
            len(set(best(mine)) & set(best(theirs))) / TOP
            for mine, theirs in zip(scores, reference, strict=True)
        ]
        results.add(f"{source}_{name}_top_{TOP}_shared", Figure(float(np.mean(same)), "share"))


def best(scores: np.ndarray) -> list[int]:
    """Return the positions of the highest scores; ``scores`` is float (n_documents,)."""
    return [int(position) for position in np.argsort(-scores, kind="stable")[:TOP]]


if __name__ == "__main__":
    main()
