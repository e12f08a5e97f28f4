"""Embedding speed of our encoder against SentenceTransformer.encode, same texts and weights.

    python benchmarks/bench_embedding.py [--quick] [--model FOLDER] [--peer-python PYTHON]

The peer runs in a separate process, because our setting of glibc's allocator would make it faster
too. The peer uses its default batch size, 32. Its speed with its fastest batch size is a separate
figure. `matmul_share` compares our operations a second with those of a large matrix product.
Operations on padding do not count. The product is computed by torch.mm or by oneDNN, whichever is
faster. For CUDA devices use bench_embedding_cuda.

--peer-python names a Python with sentence-transformers[openvino]. Our speed is then also compared
with that of the OpenVINO backend.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch
from common import Figure, Results, arguments, compare, rate, repeats_of
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from texts import data_folder, documents, sentences

from sbert_search import Embedder
from sbert_search.corpus.labelled.pairs import read_pairs
from sbert_search.embedding.protocol import Vectors
from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.cost import flops_per_token
from sbert_search.encoder.weights import load_encoder
from sbert_search.metrics.correlation import spearman
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.runtime.device import MatmulRate, Precision, matmul_rate

PEER_BATCHES = (8, 16, 32, 64, 128)  # batch sizes tried to find the fastest
LIBRARY_SCRIPT = """
import json, sys, time
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu", backend=sys.argv[2])
print("ready", flush=True)
for line in sys.stdin:
    texts, size = json.loads(line)
    start = time.perf_counter()
    model.encode(texts, batch_size=size)
    print("seconds", time.perf_counter() - start, flush=True)
"""
CPU = torch.device("cpu")


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--model", help="folder or name; default: the installed all-MiniLM-L6-v2")
    parser.add_argument(
        "--peer-python", metavar="PYTHON", help="Python that runs the OpenVINO backend"
    )
    options = parser.parse_args()
    results = Results(options)
    folder = resolve_model(options.model).path
    rates = {dtype: matmul_rate(CPU, dtype) for dtype in (torch.float32, torch.bfloat16)}
    for dtype, found in rates.items():
        name = f"matmul_{str(dtype)[6:]}_by_{found.by}"
        results.add(name, Figure(found.flops / 1e9, "GFLOP/s"))
    n_sentences, n_documents = (300, 50) if options.quick else (6000, 1000)
    source, abstracts = documents(n_documents)
    sets = dict([sentences(n_sentences)]) | {source: [text.full_text for text in abstracts]}
    with Library(sys.executable, folder, "torch") as peer:
        for source, texts in sets.items():
            measure(results, source, texts, folder, peer, rates)
    if data_folder() is not None:
        measure_sts(results, folder, quick=options.quick)
    if options.peer_python:
        with Library(options.peer_python, folder, "openvino") as other:
            for source, texts in sets.items():
                compare_with_openvino(results, source, texts, folder, other)
    results.write()


def measure(
    results: Results,
    source: str,
    texts: list[str],
    folder: Path,
    peer: Library,
    rates: dict[torch.dtype, MatmulRate],
) -> None:
    """Compare our encoder with the peer on one list of texts, in each of our precisions."""
    repeats = repeats_of(results.options)
    count = len(texts)
    reference = SentenceTransformer(str(folder), device="cpu").encode(texts)
    config = load_encoder(folder).config
    precisions: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
    for name, dtype in precisions.items():
        ours = Embedder(folder, device="cpu", engine="native", precision=name)
        figure = compare(
            partial(rate, count, partial(ours.encode, texts)),
            partial(peer.rate, texts),
            unit="texts/s",
            repeats=repeats,
        )
        results.add(f"{source}_{name}", figure)
        results.add(f"{source}_{name}_min_cosine", min_cosine(ours.encode(texts), reference))
        done = figure.value / count * operations(config, ours.tokenize(texts).lengths)
        results.add(f"{source}_{name}_matmul_share", Figure(done / rates[dtype].flops, "share"))
    best = max((peer.rate(texts, size), size) for size in PEER_BATCHES)
    results.add(f"{source}_peer_best_batch_{best[1]}", Figure(best[0], "texts/s"))


def measure_sts(results: Results, folder: Path, *, quick: bool) -> None:
    """Add the Spearman correlation that each precision reaches on STSb's test pairs, times 100."""
    data = data_folder()
    assert data is not None
    pairs = list(read_pairs(data / "stsb" / "test.jsonl.gz"))[: 300 if quick else None]
    gold = [pair.score for pair in pairs]
    for name in ("fp32", "bf16"):
        ours = Embedder(folder, device="cpu", precision=name)
        first, second = (
            ours.encode(texts, normalize_embeddings=True)
            for texts in ([pair.text1 for pair in pairs], [pair.text2 for pair in pairs])
        )
        rho = spearman((first * second).sum(axis=1), np.array(gold, dtype=np.float64))
        results.add(f"stsb_test_{name}_spearman", Figure(100 * rho, "x 100"))


class Library:
    """A process that runs sentence-transformers with any backend and waits for texts."""

    def __init__(self, python: str, folder: Path, backend: str) -> None:
        command = [python, "-c", LIBRARY_SCRIPT, str(folder), backend]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer("ready")

    def rate(self, texts: list[str], batch_size: int = 32) -> float:
        """Return the texts a second of one call; 32 is the library's default batch size."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps([texts, batch_size]) + "\n")
        self._child.stdin.flush()
        return len(texts) / float(self._answer("seconds"))

    def _answer(self, word: str) -> str:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
        raise SystemExit(
            f"The process of sentence-transformers ended with exit code {self._child.wait()}."
        )

    def __enter__(self) -> Self:
        """Return the process."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process by closing its input."""
        self._child.communicate()


def compare_with_openvino(
    results: Results, source: str, texts: list[str], folder: Path, other: Library
) -> None:
    """Compare our encoder in its default precision with the OpenVINO backend."""
    ours = Embedder(folder, device="cpu")
    figure = compare(
        partial(rate, len(texts), partial(ours.encode, texts)),
        partial(other.rate, texts),
        unit="texts/s",
        repeats=repeats_of(results.options),
    )
    results.add(f"{source}_{ours.identity.precision}_against_openvino", figure)


def min_cosine(got: Vectors, reference: Vectors) -> Figure:
    """Return the smallest cosine between unit vectors of the same texts, float32 (n, dim)."""
    return Figure(float(np.einsum("ij,ij->i", got, reference).min()), "cosine")


def operations(config: EncoderConfig, lengths: NDArray[np.int32]) -> float:
    """Return the floating-point operations of a forward pass over texts without padding."""
    return float(sum(int(n) * flops_per_token(config, int(n)) for n in lengths))


if __name__ == "__main__":
    main()
