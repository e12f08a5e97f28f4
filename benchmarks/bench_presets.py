"""Parameters, operations and latency of every encoder preset; --docs writes docs/encoders.md.

python benchmarks/bench_presets.py [--quick] [--out F.json] [--docs docs/encoders.md]
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch
from common import Figure, Results, arguments, compare, repeats_of

from sbert_search.base.machine import code, machine
from sbert_search.models.encoder.config import (
    PRESETS,
    EncoderConfig,
    flops_per_token,
    parameter_count,
)
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.inference_layers import freeze
from sbert_search.models.encoder.packed import PackedTokens

LENGTH = 128  # tokens of a text
QUICK_FLOPS = 200e6  # a token; larger encoders are not measured in a quick run
HEADER = """# Encoders

The presets of `sbert_search.models.encoder.config` have the published numbers of layers and widths.
The numbers of parameters and operations come from formulas (`models/encoder/config.py`); tests
compare them with the modules and with published counts. "MFLOP a token" is the number of operations
of the forward pass for one token of a text of {length} tokens; a multiplication with its addition
counts as two. "ms a text" is the time of the forward pass for one text of {length} tokens: an
encoder for inference with random weights, float32, {threads} threads, median of {repeats}.
"GFLOP/s" is the number of operations divided by that time.

| preset | layers x hidden | parameters | MFLOP a token | ms a text | GFLOP/s |
|---|---|---:|---:|---:|---:|
"""
SHARING = """
Layers that share weights save parameters, but no operations: albert-base has {share:.0%} of the
parameters of bert-base and {ratio:.2f} times its speed ({low:.2f} to {high:.2f}, both measured
alternately). ELECTRA's generators have the widths of the models that google-research released: the
small generator is as wide as its discriminator. The paper describes one of a quarter of that width.

Machine: {machine}. Commit {commit}.
Made by `{command}`.
"""


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments("Parameters, operations and latency of the published encoder shapes.")
    parser.add_argument("--docs", type=Path, help="write the table to this Markdown file")
    options = parser.parse_args()
    repeats = repeats_of(options)
    torch.manual_seed(options.seed)
    results = Results(options)
    rows = []
    for name, config in PRESETS.items():
        latency = None
        if not options.quick or flops_per_token(config, LENGTH) < QUICK_FLOPS:
            latency = measure(config, repeats)
            results.add(f"{name} latency", Figure(latency * 1e3, "ms"))
        rows.append(row(name, config, latency))
    sharing = compare_sharing(repeats)
    results.add("albert-base speed, against bert-base", sharing)
    if options.docs:
        options.docs.write_text(document(rows, sharing, repeats), encoding="utf-8")


def measure(config: EncoderConfig, repeats: int) -> float:
    """Return the median seconds of a forward pass of one text, after a warm-up."""
    encoder, tokens = freeze(Encoder(config)), one_text(config)
    return statistics.median([seconds(encoder, tokens) for _ in range(repeats + 1)][1:])


def compare_sharing(repeats: int) -> Figure:
    """Compare the speed of albert-base, whose layers share their weights, with bert-base."""
    encoders = [freeze(Encoder(PRESETS[name])) for name in ("albert-base", "bert-base")]
    albert, bert = (
        lambda encoder=encoder: LENGTH / seconds(encoder, one_text(encoder.config))
        for encoder in encoders
    )
    return compare(albert, bert, unit="tokens/s", repeats=repeats)


def one_text(config: EncoderConfig) -> PackedTokens:
    """Draw a random text of `LENGTH` tokens."""
    return PackedTokens(torch.randint(config.vocab_size, (LENGTH,)), (LENGTH,))


def seconds(encoder: Encoder, tokens: PackedTokens) -> float:
    """Return the wall time of a forward pass."""
    with torch.inference_mode():
        start = time.perf_counter()
        encoder(tokens)
        return time.perf_counter() - start


def row(name: str, config: EncoderConfig, latency: float | None) -> str:
    """Write a row of the table."""
    flops = flops_per_token(config, LENGTH)
    speed = "" if latency is None else f"{flops * LENGTH / latency / 1e9:,.0f}"
    return (
        f"| {name} | {config.layers} x {config.hidden_size} | {parameter_count(config):,} "
        f"| {flops / 1e6:,.1f} | {'' if latency is None else f'{latency * 1e3:,.1f}'} | {speed} |\n"
    )


def document(rows: list[str], sharing: Figure, repeats: int) -> str:
    """Write the page of docs/encoders.md."""
    header = HEADER.format(length=LENGTH, threads=torch.get_num_threads(), repeats=repeats)
    low, high = sharing.ratio_range or (0.0, 0.0)
    footer = SHARING.format(
        share=parameter_count(PRESETS["albert-base"]) / parameter_count(PRESETS["bert-base"]),
        ratio=sharing.ratio,
        low=low,
        high=high,
        machine=", ".join(f"{key} {value}" for key, value in machine().items()),
        commit=code()["commit"],
        command="python benchmarks/bench_presets.py --docs docs/encoders.md",
    )
    return header + "".join(rows) + footer


if __name__ == "__main__":
    main()
