"""Embedding speed of our encoder against all CPU backends of sentence-transformers.

    python benchmarks/bench_embedding.py [--quick] [--model FOLDER] [--peer-python PYTHON]
    python benchmarks/bench_embedding.py --family SHAPE|NAME=FOLDER ... [--long N]

All programs encode the same texts with the same weights, in turns: our encoder in fp32, bf16,
int8 and the precision that auto measures; and the library with torch in fp32 and bf16, ONNX Runtime
in fp32 and int8, and OpenVINO in fp32, bf16 and int8, calibrated. Each peer has a process of its
own, because our setting of glibc's allocator would make it faster too, and uses its default batch
size, 32. The speed of torch fp32 with its fastest batch size is a separate figure. `matmul_share`
compares our operations a second with those of a large matrix product. Operations on padding do not
count. The product is computed by torch.mm or by oneDNN, whichever is faster. For CUDA devices use
bench_embedding_cuda.

ONNX Runtime and OpenVINO need the extra `bench-peers` in an environment of their own, whose Python
--peer-python names: `optimum` does not work with the newest transformers. A backend that cannot be
opened is left out, with a line that says why.

With --family, we are compared with the library's torch backend in fp32 alone, by processor time,
so that a busy machine disturbs little: on sentences, passages, and texts of 2,048 and 8,192 tokens
if the model reads so many. SHAPE is one of `shapes.SHAPES`, with random weights. `_goal` has the
ratio beside the one of `GOALS` that it should reach. The large product is timed likewise. Beside
fp32, our bf16 is compared with the library if the CPU computes it faster, our int8 with our fp32,
and the vectors of both with those in fp32. `_peak_memory` is that of a process which encodes the
texts once in fp32, above the memory of weights and imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from common import Figure, Results, arguments, compare, processor_rate, repeats_of
from cpu_backends import (
    REFERENCE,
    Backend,
    Program,
    add_cosines,
    add_peer_options,
    measure_all,
    open_backends,
)
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from shapes import write_shape
from texts import data_folder, documents, sentences

from sbert_search import Embedder
from sbert_search.base.device import MatmulRate, Precision, matmul_rate
from sbert_search.embed.protocol import Vectors
from sbert_search.errors import ModelError
from sbert_search.evaluate.metrics.correlation import spearman
from sbert_search.models.encoder.config import EncoderConfig, flops_per_token
from sbert_search.models.encoder.weights import load_encoder
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.text.labelled.pairs import read_pairs

PEER_BATCHES = (8, 16, 32, 64, 128)  # batch sizes tried to find the fastest
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "auto", "int8")
FAST: tuple[Precision, ...] = ("bf16", "int8")
CPU = torch.device("cpu")
LONG = (2048, 8192)  # tokens of long texts
# Ratios to reach on sentences, passages and long texts.
GOALS = {
    "mpnet": (1.3, 1.15),
    "xlm-r": (1.3, 1.15),
    "modernbert": (1.2, 1.2, 1.5, 2.0),
}


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--model", help="folder or name; default: the installed all-MiniLM-L6-v2")
    parser.add_argument("--family", nargs="+", metavar="SHAPE|NAME=FOLDER", help="fp32, bf16, int8")
    parser.add_argument("--only-memory", action="store_true", help="of each --family")
    parser.add_argument("--long", type=int, default=LONG[-1], help="longest text of --family")
    add_peer_options(parser)
    options = parser.parse_args()
    results = Results(options)
    if options.family:
        options.peers = REFERENCE
        return measure_families(results, options.family, options.long)
    folder = resolve_model(options.model).path
    rates = {dtype: matmul_rate(CPU, dtype) for dtype in (torch.float32, torch.bfloat16)}
    for dtype, found in rates.items():
        name = f"matmul_{str(dtype)[6:]}_by_{found.by}"
        results.add(name, Figure(found.flops / 1e9, "GFLOP/s"))
    n_sentences, n_documents = (300, 50) if options.quick else (6000, 1000)
    source, abstracts = documents(n_documents)
    sets = dict([sentences(n_sentences)]) | {source: [text.full_text for text in abstracts]}
    with open_backends(options, "bi-encoder", folder) as peers:
        for source, texts in sets.items():
            measure(results, source, texts, folder, peers, rates)
    if data_folder() is not None:
        measure_sts(results, folder, quick=options.quick)


def measure(
    results: Results,
    source: str,
    texts: list[str],
    folder: Path,
    peers: dict[str, Backend],
    rates: dict[torch.dtype, MatmulRate],
) -> None:
    """Compare our encoder in each precision with the peers on one list of texts."""
    config = load_encoder(folder).config
    ours = {name: Embedder(folder, device="cpu", precision=name) for name in PRECISIONS}
    results.add(f"{source}_auto_is_bf16", Figure(ours["auto"].opened.precision == "bf16", "bool"))
    outputs = measure_all(
        results,
        source,
        {name: Program.of(mine.encode) for name, mine in ours.items()},
        {name: Program(peer.rate, peer.outputs) for name, peer in peers.items()},
        texts,
        "texts/s",
    )
    reference = SentenceTransformer(str(folder), device="cpu").encode(texts)
    for name, vectors in outputs.items():
        add_cosines(results, f"{source}_{name.replace(' ', '_')}", vectors, reference)
    lengths = ours["fp32"].tokenize(texts).lengths
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        if (figure := results.figures.get(f"{source}_{name}")) is not None:
            used = lengths[: len(outputs[name])]
            share = figure.value * operations(config, used) / len(used) / rates[dtype].flops
            results.add(f"{source}_{name}_matmul_share", Figure(share, "share"))
    if REFERENCE in peers:
        best = max((peers[REFERENCE].rate(texts, size), size) for size in PEER_BATCHES)
        results.add(f"{source}_peer_best_batch_{best[1]}", Figure(best[0], "texts/s"))


def measure_families(results: Results, families: Sequence[str], longest: int) -> None:
    """Compare fp32 with the library on each model, by processor time."""
    quick = results.options.quick
    square = torch.randn(2048, 2048)
    rate = max(processor_rate(2 * 2048**3, lambda: square @ square) for _ in range(5))
    results.add("matmul_float32", Figure(rate / 1e9, "GFLOP/s of processor time"))
    half = square[:512, :512].bfloat16()  # small, since some CPUs take seconds for it
    half_rate = max(processor_rate(2 * 512**3, lambda: half @ half) for _ in range(5))
    results.add("matmul_bfloat16", Figure(half_rate / 1e9, "GFLOP/s of processor time"))
    name_of_sentences, lines = sentences(100 if quick else 2000)
    source, abstracts = documents(8 if quick else 200)
    sets = {name_of_sentences: lines, source: [text.full_text for text in abstracts]}
    with TemporaryDirectory() as scratch:
        for family in families:
            name, _, given = family.partition("=")
            folder = Path(given) if given else write_shape(name, Path(scratch))
            ours = Embedder(folder, device="cpu", precision="fp32")
            reads = [n for n in LONG if n <= min(ours.max_len, longest)]
            words = " ".join(text.full_text for text in abstracts).split()
            more = {f"{n}_tokens": [" ".join(islice(cycle(words), n))] for n in reads}
            if not results.options.only_memory:
                with open_backends(results.options, "bi-encoder", folder) as peers:
                    measure_family(results, name, ours, peers[REFERENCE], sets | more, rate)
                    faster = FAST if half_rate > rate else ("int8",)  # bf16 would take minutes
                    measure_precisions(results, name, ours, peers[REFERENCE], sets, faster)
            for source, texts in (sets | more).items():
                mine, theirs = (peak_memory(kind, folder, texts) for kind in ("ours", "library"))
                memory = Figure(mine, "MiB above weights", theirs, mine / theirs)
                results.add(f"{name}_{source}_peak_memory", memory)


def measure_family(
    results: Results,
    name: str,
    ours: Embedder,
    peer: Backend,
    sets: dict[str, list[str]],
    rate: float,
) -> None:
    """Compare the texts per second of processor time on some sets of texts, and the vectors."""
    goals = next((GOALS[kind] for kind in GOALS if kind in name), ())
    config = load_encoder(Path(ours.identity.name)).config
    for number, (source, texts) in enumerate(sets.items()):
        once = source == f"{LONG[-1]}_tokens"  # takes minutes

        figure = compare(
            partial(processor_rate, len(texts), partial(ours.encode, texts)),
            partial(peer.processor_rate, texts),
            unit="texts/s of processor time",
            repeats=1 if once else repeats_of(results.options),
            warm_up=not once,
        )
        results.add(f"{name}_{source}", figure)
        if number < len(goals) and figure.ratio is not None:
            results.add(f"{name}_{source}_goal", Figure(figure.ratio, "ratio", goals[number]))
        lengths = ours.tokenize(texts).lengths
        share = figure.value * operations(config, lengths) / len(texts) / rate
        results.add(f"{name}_{source}_matmul_share", Figure(share, "share"))
        few = texts[:16]
        far = np.abs(ours.encode(few) - peer.outputs(few)).max()
        results.add(f"{name}_{source}_largest_difference", Figure(float(far), ""))


def measure_precisions(
    results: Results,
    name: str,
    ours: Embedder,
    peer: Backend,
    sets: dict[str, list[str]],
    precisions: Sequence[Precision],
) -> None:
    """Compare bf16 with the library in fp32, int8 with our fp32, and their vectors with fp32's."""
    for precision in precisions:
        try:
            other = Embedder(ours.identity.name, device="cpu", precision=precision)
        except ModelError as error:
            print(f"{name} was not measured in {precision}: {error}", flush=True)
            continue
        for source, texts in sets.items():
            exact = partial(processor_rate, len(texts), partial(ours.encode, texts))
            figure = compare(
                partial(processor_rate, len(texts), partial(other.encode, texts)),
                exact if precision == "int8" else partial(peer.processor_rate, texts),
                unit="texts/s of processor time",
                repeats=repeats_of(results.options),
            )
            results.add(f"{name}_{source}_{precision}", figure)
            vectors = other.encode(texts), ours.encode(texts)
            add_cosines(results, f"{name}_{source}_{precision}", *vectors)


def peak_memory(kind: str, folder: Path, texts: list[str]) -> float:
    """Return the MiB that encoding takes in a process of its own, in fp32."""
    child = Path(__file__).with_name("embedding_memory_child.py")
    done = subprocess.run(
        [sys.executable, str(child), kind, str(folder), "fp32"],
        input=json.dumps(texts),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1])["mib"])


def measure_sts(results: Results, folder: Path, *, quick: bool) -> None:
    """Add the Spearman correlation that each precision reaches on STSb's test pairs, times 100."""
    data = data_folder()
    assert data is not None
    pairs = list(read_pairs(data / "stsb" / "test.jsonl.gz"))[: 300 if quick else None]
    gold = [pair.score for pair in pairs]
    for name in PRECISIONS:
        ours = Embedder(folder, device="cpu", precision=name)
        first, second = (
            ours.encode(texts, normalize_embeddings=True)
            for texts in ([pair.text1 for pair in pairs], [pair.text2 for pair in pairs])
        )
        rho = spearman((first * second).sum(axis=1), np.array(gold, dtype=np.float64))
        results.add(f"stsb_test_{name}_spearman", Figure(100 * rho, "x 100"))


def min_cosine(got: Vectors, reference: Vectors) -> Figure:
    """Return the smallest cosine between unit vectors of the same texts, float32 (n, dim)."""
    return Figure(float(np.einsum("ij,ij->i", got, reference).min()), "cosine")


def operations(config: EncoderConfig, lengths: NDArray[np.int32]) -> float:
    """Return the floating-point operations of a forward pass over texts without padding."""
    return float(sum(int(n) * flops_per_token(config, int(n)) for n in lengths))


if __name__ == "__main__":
    main()
