"""Reranking speed of `Reranker.predict` against all CPU backends of sentence-transformers.

    python benchmarks/bench_reranking.py [--quick] [--model FOLDER] [--peer-python PYTHON]

A pair is a SciFact query with an abstract. If SBERT_SEARCH_DATA is not set, both texts are
docstrings of Python's standard library. Without --model, the cross-encoder is the encoder of
all-MiniLM-L6-v2 with an output layer of random weights. The scores of this model have no meaning,
but it is as fast as any cross-encoder of this shape. All programs score the same pairs in turns;
the peers and --peer-python are those of bench_embedding.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from common import Figure, Results, arguments
from cpu_backends import Backend, Program, add_peer_options, measure_all, open_backends
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder as LibraryCrossEncoder
from texts import documents, questions

from sbert_search import Reranker
from sbert_search.base.device import Precision
from sbert_search.models.encoder.weights import load_encoder
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.sequence_classifier import CrossEncoder
from sbert_search.text.tokens.tokenizer import TextTokenizer

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "auto", "int8")
TOP = 10  # documents compared between the two rankings


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--model", help="cross-encoder; default: MiniLM with random output weights")
    add_peer_options(parser)
    options = parser.parse_args()
    results = Results(options)
    n_queries, n_documents = (2, 24) if options.quick else (3, 100)
    source, queries = questions(n_queries)
    _, texts = documents(n_documents)
    pairs = [(query, text.full_text) for query in queries for text in texts]
    with tempfile.TemporaryDirectory() as scratch:
        folder = model_folder(options, Path(scratch))
        with open_backends(options, "cross-encoder", folder) as peers:
            measure(results, source, pairs, n_documents, folder, peers)


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
    results: Results,
    source: str,
    pairs: list[tuple[str, str]],
    n_documents: int,
    folder: Path,
    peers: dict[str, Backend],
) -> None:
    """Compare speed and scores on pairs of queries and documents, ordered by query."""
    ours = {name: Reranker(folder, device="cpu", precision=name) for name in PRECISIONS}
    results.add(f"{source}_auto_is_bf16", Figure(ours["auto"].opened.precision == "bf16", "bool"))
    outputs = measure_all(
        results,
        source,
        {name: Program.of(mine.predict) for name, mine in ours.items()},
        {name: Program(peer.rate, peer.outputs) for name, peer in peers.items()},
        pairs,
        "pairs/s",
    )
    reference = np.asarray(LibraryCrossEncoder(str(folder), device="cpu").predict(pairs))
    results.add(
        f"{source}_scores_deviate", Figure(float(reference.reshape(-1, n_documents).std()), "score")
    )
    for name, scores in outputs.items():
        add_differences(
            results, f"{source}_{name.replace(' ', '_')}", scores, reference, n_documents
        )


def add_differences(
    results: Results,
    name: str,
    got: NDArray[np.float32],
    reference: NDArray[np.float32],
    n_documents: int,
) -> None:
    """Add how far the scores ``got`` are from ``reference``, those of the library in fp32.

    ``reference`` has a score for each pair, (n_queries x n_documents,), and ``got`` for each pair
    or only for the first ones. The best documents of a query are compared only if all its documents
    have scores.
    """
    results.add(
        f"{name}_max_difference",
        Figure(float(np.abs(got - reference[: len(got)]).max()), "score"),
    )
    whole = len(got) // n_documents * n_documents
    if not whole:
        return
    same = [
        len(set(best(mine)) & set(best(theirs))) / TOP
        for mine, theirs in zip(
            got[:whole].reshape(-1, n_documents),
            reference[:whole].reshape(-1, n_documents),
            strict=True,
        )
    ]
    results.add(f"{name}_top_{TOP}_shared", Figure(float(np.mean(same)), "share"))


def best(scores: np.ndarray) -> list[int]:
    """Return the positions of the highest scores; ``scores`` is float (n_documents,)."""
    return [int(position) for position in np.argsort(-scores, kind="stable")[:TOP]]


if __name__ == "__main__":
    main()
