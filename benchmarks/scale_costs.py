"""Write the section of docs/scale.md that tells what an index of a billion documents costs.

    python benchmarks/scale_costs.py [--page docs/scale.md]

Nothing is measured here. Our speeds are those of the CPU that embeds the most documents a second
among the results of `bench_embedding` in benchmarks/results/, our sizes those of the newest result
of `bench_large`. Speeds of GPUs, prices and rates of
failures are published figures, with their source. Everything else is an assumption, and the page
names it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from cluster_simulation import Cluster, finishing_times
from scale_page import COSTS, write_costs

ROOT = Path(__file__).resolve().parents[1]
DIM = 384
DOCUMENTS = 1_000_000_000
SHARD_DOCUMENTS = 1_000_000
HOURS = 24  # in which the documents are to be embedded
TRIALS, SEED = 200, 0
MONTH_H = 730


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """Published figures and assumptions; `docs/scale.md` gives the sources.

    Attributes:
        tokens: Mean number of tokens of a SciFact abstract; all-MiniLM-L6-v2 reads at most 256.
        bytes: Mean size of a SciFact abstract with its title.
        passage_tokens: Mean number of tokens of an MS MARCO passage.
        commit_hours: Interval of commits of a build whose blocks of rows take longer.
        a100_passages_s: Passages per second of e5-small-v2 on one A100.
        l4_dollars: Price of a billion embeddings of gte-modernbert-base on an L4.
        cpu_price: Dollars per hour for 2 vCPUs.
        a100_price: Dollars per hour for one A100.
        l4_price: Dollars per hour for one L4.
        search_price: Dollars per hour for a machine of `search_memory_gb`.
        search_memory_gb: Memory of that machine.
        gpu_failure_hours: Hours of a GPU between two failures.
    """

    tokens: float = 240.0
    bytes: float = 1501.0
    passage_tokens: float = 62.0
    commit_hours: float = 15 / 3600
    a100_passages_s: float = 50_127.0
    l4_dollars: float = 409.0
    cpu_price: float = 0.067
    a100_price: float = 2.5
    l4_price: float = 0.8
    search_price: float = 0.536
    search_memory_gb: float = 32.0
    gpu_failure_hours: float = 54 * 24 * 16_384 / 419


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumed:
    """Figures without a source, which the user may replace by his own."""

    disk_price: float = 0.08  # dollars per GB and month
    network_gb_s: float = 1.25  # of each machine: 10 Gbit/s
    restart_hours: float = 0.1  # until another machine goes on after a failure
    failure_hours: float = 1000.0  # of a CPU machine between two failures
    reclaimed_hours: float = 24.0  # until a machine at a reduced price is taken back
    slow_share: float = 0.05  # of the machines
    slow_factor: float = 2.0  # time of a slow machine, divided by that of the others
    memory_share: float = 0.8  # of a search machine's memory, for the files of the index


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Our figures, from benchmarks/results."""

    fp32_s: float  # abstracts per second
    bf16_s: float
    cores: int
    stored_bytes: float  # per document
    faiss_bytes: float
    index_s: float  # to write a document and to build its part of the FAISS index
    search_ms: float  # per document, on one machine
    files: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Way:
    """A kind of machine that embeds the documents."""

    name: str
    documents_s: float
    price: float  # dollars per hour

    @property
    def machine_hours(self) -> float:
        """Hours of one machine for all documents."""
        return DOCUMENTS / self.documents_s / 3600

    @property
    def dollars(self) -> float:
        """Price of all documents."""
        return self.machine_hours * self.price

    @property
    def machines(self) -> int:
        """Machines that embed all documents in `HOURS`."""
        return math.ceil(self.machine_hours / HOURS)


GIVEN, ASSUMED = Given(), Assumed()


def main() -> None:
    """Write the section."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "scale.md")
    write_costs(parser.parse_args().page, section(measured(ROOT / "benchmarks" / "results")))


def measured(folder: Path) -> Measured:
    """Read our figures from the result files."""
    embedding, large = fastest(folder), newest(folder, "bench_large")
    speeds, sizes = (json.loads(file.read_text(encoding="utf-8")) for file in (embedding, large))
    value = {name: figure["value"] for name, figure in sizes["figures"].items()}
    rows = value["rows"]
    return Measured(
        fp32_s=speeds["figures"]["scifact_fp32"]["value"],
        bf16_s=speeds["figures"]["scifact_bf16"]["value"],
        cores=speeds["machine"]["cores"],
        stored_bytes=value["write_stored_bytes"] / rows,
        faiss_bytes=value["tune_index_bytes"] / rows,
        index_s=(value["write_s"] + value["tune_build_s"]) / rows,
        search_ms=value["search_p50_ms"] / rows,
        files=(embedding.name, large.name),
    )


def fastest(folder: Path) -> Path:
    """Return the result of the CPU that embeds the most documents a second."""
    files = folder.glob("bench_embedding_[!cfq]*.json")  # not on CUDA, of families, or quick

    def rate(file: Path) -> float:
        figures = json.loads(file.read_text(encoding="utf-8"))["figures"]
        return float(figures.get("scifact_auto", {"value": 0})["value"])  # of memory alone: none

    return max(files, key=rate)


def newest(folder: Path, bench: str) -> Path:
    """Return the newest result file by the date in its name; a full run goes before a quick one."""
    return max(
        folder.glob(f"{bench}_*.json"),
        key=lambda file: (file.stem[-10:], "_quick_" not in file.stem, file.name),
    )


def ways(ours: Measured) -> list[Way]:
    """Return the kinds of machines that are compared."""
    cpu = f"CPU, {ours.cores} cores"
    a100 = GIVEN.a100_passages_s * GIVEN.passage_tokens / GIVEN.tokens
    l4 = DOCUMENTS / (GIVEN.l4_dollars / GIVEN.l4_price * 3600)
    return [
        Way(f"{cpu}, fp32 (measured)", ours.fp32_s, GIVEN.cpu_price),
        Way(f"{cpu}, bf16 (measured)", ours.bf16_s, GIVEN.cpu_price),
        Way("A100, e5-small-v2 by IgniteMS (published)", a100, GIVEN.a100_price),
        Way("L4, gte-modernbert-base by Infinity (published)", l4, GIVEN.l4_price),
    ]


def cluster(way: Way) -> Cluster:
    """Return the machines that embed all documents with this kind of machine."""
    return Cluster(
        machines=way.machines,
        shards=DOCUMENTS // SHARD_DOCUMENTS,
        shard_hours=SHARD_DOCUMENTS / way.documents_s / 3600,
        commit_hours=GIVEN.commit_hours,
        restart_hours=ASSUMED.restart_hours,
    )


def scenarios(base: Cluster) -> dict[str, Cluster]:
    """Return the clusters that are simulated, by what is wrong with them."""
    slow = replace(base, slow_share=ASSUMED.slow_share, slow_factor=ASSUMED.slow_factor)
    both = replace(slow, failure_hours=ASSUMED.failure_hours)
    small = replace(both, shards=4 * base.shards, shard_hours=base.shard_hours / 4)
    one_each = replace(
        both,
        shards=base.machines,
        shard_hours=base.shard_hours * base.shards / base.machines,
    )
    usual, often = f"{ASSUMED.failure_hours:,.0f} h", f"{ASSUMED.reclaimed_hours:,.0f} h"
    return {
        "equal machines, no failure": base,
        f"{ASSUMED.slow_share:.0%} of the machines take {ASSUMED.slow_factor:g} times as long": (
            slow
        ),
        f"each machine fails every {usual} on average": replace(
            base, failure_hours=ASSUMED.failure_hours
        ),
        "slow machines and failures": both,
        f"the same, with shards of {SHARD_DOCUMENTS // 4:,}": small,
        "the same, with one large shard for each machine": one_each,
        f"slow machines, and each is taken back after {often} on average": replace(
            slow, failure_hours=ASSUMED.reclaimed_hours
        ),
        "the same, if a shard began anew after a failure": replace(
            slow,
            failure_hours=ASSUMED.reclaimed_hours,
            commit_hours=base.shard_hours * ASSUMED.slow_factor,
        ),
    }


def section(ours: Measured) -> str:
    """Return the text of the section."""
    lines = [COSTS, "", *_premises(ours), "", *_embedding(ours), "", *_index(ours), ""]
    return "\n".join([*lines, *_failures(ours), ""])


def _premises(ours: Measured) -> Iterator[str]:
    yield from (
        f"This section is computed by `benchmarks/scale_costs.py` for {DOCUMENTS:,} documents of",
        f"{GIVEN.tokens:.0f} tokens and {GIVEN.bytes:,.0f} bytes, the means of SciFact's abstracts "
        "(all-MiniLM-L6-v2 reads",
        "at most 256 tokens). Nothing of this size was run. Our speeds and sizes are those of",
        f"`benchmarks/results/{ours.files[0]}` and",
        f"`benchmarks/results/{ours.files[1]}`. Time and size are taken as",
        "proportional to the numbers of documents and tokens. Time is also taken as inversely",
        "proportional to the number of machines.",
    )


def _embedding(ours: Measured) -> Iterator[str]:
    yield f"| embedding | documents/s | machine-hours | dollars | machines for {HOURS} h |"
    yield "|---|---:|---:|---:|---:|"
    for way in ways(ours):
        yield (
            f"| {way.name} | {way.documents_s:,.0f} | {way.machine_hours:,.0f} | "
            f"{way.dollars:,.0f} | {way.machines:,} |"
        )
    yield from (
        "",
        "Each published speed is that of another model and another engine, so its row tells what "
        "such a GPU",
        "can do, not what this package does on it. Sources, read on 2026-11-23:",
        "",
        f"- Prices per hour: {GIVEN.cpu_price} dollars for 2 vCPUs (intel-spr x2), "
        f"{GIVEN.a100_price} for an A100, {GIVEN.l4_price} for an L4, all on",
        "  AWS: [Hugging Face Inference Endpoints, "
        "Pricing](https://huggingface.co/docs/inference-endpoints/support/pricing),",
        "  `hf-endpoints-documentation` at commit 05c783d. A core of the measured machine counts "
        "as a vCPU.",
        f"- A100: {GIVEN.a100_passages_s:,.0f} MS MARCO passages per second with e5-small-v2 (12 "
        "layers of width 384) in fp16:",
        "  [README of IgniteMS](https://github.com/Artain-AI/ignite-ms). A passage is counted as "
        f"{GIVEN.passage_tokens:.0f} tokens, which",
        "  is an assumption.",
        f"- L4: {GIVEN.l4_dollars:.0f} dollars for a billion texts at {GIVEN.l4_price} dollars per "
        "hour: [1 Billion",
        "  Classifications](https://huggingface.co/blog/billion-classifications), 2025-02-13. Its "
        "texts are other ones; their",
        "  length is not taken into account.",
    )


def _index(ours: Measured) -> Iterator[str]:
    hours = ours.index_s * DOCUMENTS / 3600
    stored, faiss = (each * DOCUMENTS / 1e9 for each in (ours.stored_bytes, ours.faiss_bytes))
    in_memory = faiss + 16 * DOCUMENTS / 1e9
    machines = math.ceil(in_memory / (GIVEN.search_memory_gb * ASSUMED.memory_share))
    dollars_month = machines * GIVEN.search_price * MONTH_H
    text = GIVEN.bytes * DOCUMENTS / 1e9
    copying_s = stored / (machines * ASSUMED.network_gb_s)
    yield from (
        "| index | | |",
        "|---|---:|---|",
        f"| writing, merging and building FAISS files | {hours:,.1f} machine-hours | "
        f"{hours * GIVEN.cpu_price:,.2f} dollars; measured on one thread |",
        f"| text to read | {text:,.0f} GB | once, over the network |",
        f"| disk | {stored + faiss:,.0f} GB | {(stored + faiss) * ASSUMED.disk_price:,.0f} dollars "
        "a month; texts are not included |",
        f"| disk with `--dtype float16` | {stored + faiss - 2 * DIM * DOCUMENTS / 1e9:,.0f} GB | "
        "vectors take half of the bytes |",
        f"| memory of the search machines | {in_memory:,.0f} GB | {machines} machines of "
        f"{GIVEN.search_memory_gb:.0f} GB, {dollars_month:,.0f} dollars a month |",
        f"| copying the index to them | {copying_s / 60:,.1f} min | "
        f"{ASSUMED.network_gb_s:g} GB/s for each machine |",
        f"| median latency on each of them | {ours.search_ms * DOCUMENTS / machines:,.0f} ms | "
        f"{DOCUMENTS // machines:,} documents on each, one thread |",
        "",
        f"Assumed: disks at {ASSUMED.disk_price} dollars per GB and month; a network of "
        f"{ASSUMED.network_gb_s:g} GB/s for each machine;",
        f"{ASSUMED.memory_share:.0%} of the memory of a search machine for FAISS files and row "
        "numbers (16 bytes per document).",
        f"The price of a machine with {GIVEN.search_memory_gb:.0f} GB "
        f"({GIVEN.search_price} dollars per hour, intel-spr x16) is of the same list.",
        "Each embedding machine reads text at its number of documents/s times "
        f"{GIVEN.bytes / 1000:.1f} kB: {ours.bf16_s * GIVEN.bytes / 1e6:.2f} MB/s on the",
        f"CPU in bf16, {ways(ours)[2].documents_s * GIVEN.bytes / 1e6:.0f} MB/s on the A100. "
        f"It writes {4 * DIM:,} bytes of vector for a document.",
    )


def _failures(ours: Measured) -> Iterator[str]:
    way = ways(ours)[1]
    base = cluster(way)
    lost_h = GIVEN.commit_hours / 2 + ASSUMED.restart_hours
    failures = way.machine_hours / ASSUMED.failure_hours
    shard_gb = ours.stored_bytes * SHARD_DOCUMENTS / 1e9
    yield from (
        "### What failures cost",
        "",
        f"The documents are {base.shards:,} shards of {SHARD_DOCUMENTS:,}. A machine that is free "
        "takes the next shard. A",
        "build commits after each block of rows, and about every "
        f"{GIVEN.commit_hours * 3600:.0f} seconds if blocks take longer. After a failure, another "
        "machine goes on from the last commit. A dead",
        f"machine therefore costs half of this interval on average, and the "
        f"{ASSUMED.restart_hours * 60:.0f} minutes (assumed) until another one",
        f"goes on: {lost_h:.3f} machine-hours, {lost_h * way.price:.4f} dollars. No row is lost, "
        "and none is in the index twice.",
        f"A failure every {ASSUMED.failure_hours:,.0f} hours of a CPU machine (assumed) gives "
        f"{failures:.1f} failures in {way.machine_hours:,.0f} machine-hours: they",
        f"cost {failures * lost_h:.2f} machine-hours. For GPUs, a rate was published: "
        "[419 unexpected interruptions",
        "in 54 days of 16,384 H100](https://arxiv.org/abs/2407.21783), one in "
        f"{GIVEN.gpu_failure_hours:,.0f} hours of a GPU.",
        "A search machine that dies is replaced by one that copies its shards: "
        f"{shard_gb:.2f} GB, {shard_gb / ASSUMED.network_gb_s:.1f} s for each shard.",
        "",
        f"The table has the hours until the last shard is embedded by {base.machines:,} machines "
        f"in bf16 ({TRIALS} simulated runs,",
        f"seed {SEED}; `benchmarks/cluster_simulation.py`). Without faults the hours are known: "
        f"ceil({base.shards:,} / {base.machines:,}) =",
        f"{math.ceil(base.shards / base.machines)} rounds of {base.shard_hours:.2f} h. Rates of "
        "faults are assumed.",
        "",
        "| machines | mean, h | 50 % | 90 % | 99 % |",
        "|---|---:|---:|---:|---:|",
    )
    for name, each in scenarios(base).items():
        times = finishing_times(each, trials=TRIALS, seed=SEED)
        cells = (np.mean(times), *np.quantile(times, [0.5, 0.9, 0.99]))
        yield f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"
    yield from (
        "",
        "Many small shards make the time short: machines that end early do the work of the slow "
        "ones.",
    )


if __name__ == "__main__":
    main()
