"""Embedding speed: the native engine against SentenceTransformer.encode, same texts and weights.

    python benchmarks/bench_embedding.py [--quick] [--model FOLDER] [--out F.json]

The peer runs at its default batch size, 32; the batch size at which it is fastest here is printed
beside. The share of the machine's matrix-product rate counts real tokens only, no padding.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import Figure, Results, arguments, compare, rate, repeats_of
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from texts import documents, sentences

from sbert_search import Embedder
from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.cost import flops_per_token
from sbert_search.encoder.weights import load_encoder
from sbert_search.models.resolve import resolve_model
from sbert_search.runtime.device import matmul_rate

PEER_BATCHES = (8, 16, 32, 64, 128)
CPU = torch.device("cpu")


def main() -> None:
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--model", help="folder or name; default: the installed all-MiniLM-L6-v2")
    options = parser.parse_args()
    results = Results(options)
    folder = resolve_model(options.model).path
    peer = SentenceTransformer(str(folder), device="cpu")
    rates = {dtype: matmul_rate(CPU, dtype) for dtype in (torch.float32, torch.bfloat16)}
    for dtype, flops in rates.items():
        results.add(f"matmul_{str(dtype)[6:]}", Figure(flops / 1e9, "GFLOP/s"))
    n_sentences, n_documents = (300, 50) if options.quick else (6000, 1000)
    source, texts = sentences(n_sentences)
    measure(results, source, texts, folder, peer, rates)
    source, long_texts = documents(n_documents)
    measure(results, source, [text.full_text for text in long_texts], folder, peer, rates)
    results.write()


def measure(
    results: Results,
    source: str,
    texts: list[str],
    folder: Path,
    peer: SentenceTransformer,
    rates: dict[torch.dtype, float],
) -> None:
    """Add the figures of one list of texts."""
    repeats = repeats_of(results.options)
    count = len(texts)
    reference = peer.encode(texts)
    config = load_encoder(folder).config
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        ours = Embedder(folder, device="cpu", engine="native", precision=name)
        figure = compare(
            partial(rate, count, partial(ours.encode, texts)),
            partial(rate, count, partial(peer.encode, texts)),
            unit="texts/s",
            repeats=repeats,
        )
        results.add(f"{source}_{name}", figure)
        cosines = np.einsum("ij,ij->i", ours.encode(texts), reference)
        results.add(f"{source}_{name}_min_cosine", Figure(float(cosines.min()), "cosine"))
        done = figure.value / count * operations(config, ours.tokenize(texts).lengths)
        results.add(f"{source}_{name}_matmul_share", Figure(done / rates[dtype], "share"))
    best = max(
        (rate(count, partial(peer.encode, texts, batch_size=size)), size) for size in PEER_BATCHES
    )
    results.add(f"{source}_peer_best_batch_{best[1]}", Figure(best[0], "texts/s"))


def operations(config: EncoderConfig, lengths: NDArray[np.int32]) -> float:
    """Floating-point operations of one forward pass over texts of these lengths, unpadded."""
    return float(sum(int(n) * flops_per_token(config, int(n)) for n in lengths))


if __name__ == "__main__":
    main()
