"""Embedding speed on a CUDA device in bf16, against SentenceTransformer.encode in bf16.

    python benchmarks/bench_embedding_cuda.py [--quick] [--device cuda:0] [--out F.json]

The models are all-MiniLM-L6-v2, and BERT-base with random weights, both with up to 512 tokens. This
package and sentence-transformers encode short texts, first in large batches and then one by one.
For a single text our encoder replays a CUDA graph. With --vocabulary, all weights are random, so
that only the files of a tokenizer are needed.

Texts of 512 tokens are encoded by this package only. Three figures are measured with them: the
encoder's FLOP/s as a share of those of a matrix product of 8192 x 8192, the speed with and without
tokenising, and the peak memory.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from bench_embedding import min_cosine, operations
from common import Figure, Results, arguments, compare, rate, repeats_of
from sentence_transformers import SentenceTransformer
from texts import documents, sentences

from sbert_search import Embedder
from sbert_search.base.device import matmul_rate, memory_bytes, resolve_device
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.config import preset
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.weights import load_encoder
from sbert_search.models.heads import Normalize
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.text.tokens.tokenizer import TextTokenizer

TOKENS = 512
CPU_TEXTS = 4
SHAPES = ("minilm-l6", "bert-base")


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument(
        "--device", default="cuda:0", help="use cpu only to check that the script runs"
    )
    parser.add_argument(
        "--vocabulary", type=Path, help="folder of a tokenizer; all weights are then random"
    )
    options = parser.parse_args()
    results, device = Results(options), resolve_device(options.device)
    flops = matmul_rate(device, torch.bfloat16).flops
    results.add("matmul_bfloat16", Figure(flops / 1e12, "TFLOP/s"))
    with tempfile.TemporaryDirectory() as scratch:
        for shape in SHAPES if device.type != "cpu" else SHAPES[:1]:
            folder = save_model(shape, Path(scratch) / shape, options)
            measure(results, shape, folder, device, flops)


def save_model(shape: str, folder: Path, options: argparse.Namespace) -> Path:
    """Save a bi-encoder of up to 512 tokens; only MiniLM may have trained weights."""
    torch.manual_seed(options.seed)
    base = options.vocabulary or resolve_model(None).path
    trained = shape == "minilm-l6" and options.vocabulary is None
    encoder = load_encoder(base) if trained else Encoder(preset(shape))
    tokenizer = TextTokenizer.from_folder(base, TOKENS)
    BiEncoder(encoder, tokenizer, head=[Normalize()]).save(folder)
    return folder


def measure(results: Results, shape: str, folder: Path, device: torch.device, flops: float) -> None:
    """Measure one encoder shape."""
    _, short = sentences(count_of(device, results, quick=2_000, full=20_000))
    ours = Embedder(folder, device=str(device), precision="bf16", batch_tokens="auto")
    compare_with_peer(results, shape, short, folder, ours)
    exact = Embedder(folder, device=str(device), precision="fp32").encode(short[:500])
    results.add(f"{shape}_min_cosine", min_cosine(ours.encode(short[:500]), exact))
    measure_alone(results, shape, folder, ours, flops)


def count_of(device: torch.device, results: Results, *, quick: int, full: int) -> int:
    """Return the number of texts to encode; on a CPU, a few, to check that the script runs."""
    if device.type == "cpu":
        return CPU_TEXTS
    return quick if results.options.quick else full


def compare_with_peer(
    results: Results, shape: str, texts: list[str], folder: Path, ours: Embedder
) -> None:
    """Compare our speed with the peer's, in large batches and one text at a time."""
    half = {"dtype": torch.bfloat16}
    peer = SentenceTransformer(str(folder), device=ours.opened.device, model_kwargs=half)
    many = partial(ours.encode, texts), partial(peer.encode, texts)
    alone = texts[:200]
    few = [partial(one_at_a_time, model.encode, alone) for model in (ours, peer)]
    for name, (mine, theirs), given in (("sentences", many, texts), ("queries", few, alone)):
        figure = compare(
            partial(rate, len(given), mine),
            partial(rate, len(given), theirs),
            unit="texts/s",
            repeats=repeats_of(results.options),
        )
        results.add(f"{shape}_{name}", figure)


def one_at_a_time(encode: Callable[[str], object], texts: list[str]) -> None:
    """Embed each text in a call of its own."""
    for text in texts:
        encode(text)


def measure_alone(results: Results, shape: str, folder: Path, ours: Embedder, flops: float) -> None:
    """Measure our encoder with texts of 512 tokens; ``flops`` are those of a large matrix product.

    The figures are the speed with and without tokenising, the encoder's FLOP/s as a share of
    ``flops``, and the peak memory.
    """
    device = torch.device(ours.opened.device)
    gc.collect()  # frees the peer's model and our fp32 model, which would count in the peak memory
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    long_texts = texts_of_512_tokens(ours, count_of(device, results, quick=500, full=10_000))
    tokens = ours.tokenize(long_texts)
    figure = compare(
        partial(rate, len(tokens), partial(ours.encode, long_texts)),
        partial(rate, len(tokens), partial(ours.encode_tokens, tokens)),
        unit="texts/s",
        repeats=repeats_of(results.options),
    )
    results.add(f"{shape}_512_end_to_end_over_encoder_alone", figure)
    work = operations(load_encoder(folder).config, tokens.lengths)
    done = (figure.peer or 0.0) / len(tokens) * work
    results.add(f"{shape}_512_matmul_share", Figure(done / flops, "share"))
    results.add(f"{shape}_peak_memory", Figure(memory_bytes(device) / 2**20, "MiB"))


def texts_of_512_tokens(embedder: Embedder, count: int) -> list[str]:
    """Make texts that have the model's maximum length after truncation.

    Each text joins eight consecutive documents. Only joined texts that the tokenizer truncates are
    used. They are repeated until there are ``count`` texts.
    """
    _, found = documents(5_000)
    several = [
        " ".join(document.full_text for document in found[start : start + 8])
        for start in range(0, len(found) - 8)
    ]
    full = [
        text for text, lost in zip(several, embedder.tokenize(several).lost, strict=True) if lost
    ]
    return [full[number % len(full)] for number in range(count)]


if __name__ == "__main__":
    main()
