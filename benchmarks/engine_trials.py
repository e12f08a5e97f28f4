"""Trials of `bench_engines`: what an engine does when it is killed and when something changes.

In the trials of changes, documents get another text, another process adds a document, and the model
gets other weights.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from engine_figures import TASKS, Bench, Values, run_task
from engines import STUB
from safetensors.numpy import load_file, save_file

SMALL = 20  # documents in the trials of changes
N_BEFORE = 10  # documents in an index before a stream of writes


def try_kill_at_half(bench: Bench) -> None:
    """Kill indexing after half of the documents; count the documents that the index kept."""
    kept, opens = {}, {}
    for name in bench.names:
        folder = bench.folder / f"half-{name}"
        done = subprocess.run([sys.executable, TASKS, "killed", name, folder, bench.docs])
        require(done.returncode == -9, f"{name} was not killed")
        (count,) = run_task("counts", name, folder).result["counts"]
        kept[name], opens[name] = float(count or 0), float(count is not None)
    bench.add("killed_at_half_opens", opens, "")
    bench.add("killed_at_half_kept", kept, "documents")


def try_kills_of_a_stream(bench: Bench, kills: int) -> None:
    """Kill processes that write small batches; count the documents that are lost.

    A document is acknowledged if the process printed that its batch was written. The number of
    documents lost is the number acknowledged less the number in the index afterwards. If an index
    does not open, all its acknowledged documents are lost.
    """
    draw = random.Random(bench.options.seed)
    delays = [draw.uniform(0.05, 1.0) for _ in range(kills)]
    sums: dict[str, Values] = {"opened": {}, "acknowledged": {}, "lost": {}}
    rates: Values = {}
    start = bench.write("start", bench.rows[:N_BEFORE])
    for name in bench.names:
        folders, acknowledged, after_first = [], [], 0
        for number, delay in enumerate(delays):
            folder = bench.folder / f"stream-{name}-{number}"
            run_task("create", name, folder, STUB, start)
            first, last = killed_stream(name, folder, bench.docs, delay)
            acknowledged.append(last)
            after_first += last - first
            folders.append(folder)
        counts = run_task("counts", name, *folders).result["counts"]
        held = [max(0, (count or 0) - N_BEFORE) for count in counts]
        lost = [max(0, a - h) for a, h in zip(acknowledged, held, strict=True)]
        sums["opened"][name] = sum(count is not None for count in counts)
        sums["acknowledged"][name] = sum(acknowledged)
        sums["lost"][name] = sum(lost)
        rates[name] = after_first / sum(delays)
    bench.add("stream_kills", dict.fromkeys(bench.names, kills), "")
    for measure, values in sums.items():
        bench.add(f"stream_{measure}", values, "" if measure == "opened" else "documents")
    bench.add("stream_rate", rates, "documents/s")


def killed_stream(name: str, folder: Path, docs: Path, delay: float) -> tuple[int, int]:
    """Kill a process that writes small batches, ``delay`` seconds after its first batch.

    Returns:
        The number of documents that were acknowledged after the first and after the last batch.
    """
    command = [sys.executable, TASKS, "stream", name, str(folder), str(docs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        require(bool(first), f"{name} wrote nothing")
        time.sleep(delay)
        writer.kill()
        complete = [line for line in (first, *writer.stdout) if line.endswith("\n")]
    return int(first), int(complete[-1])


def try_changes(bench: Bench) -> None:
    """Change documents, then add a document in another process, then change the model."""
    rows = bench.rows[:SMALL]
    changed = [{**row, "text": f"Changed text number {i}."} for i, row in enumerate(rows[:10])]
    added = {"_id": "new", "title": "", "text": "The zebra crossing of Quito.", "bucket": 0}
    docs, old, new = (
        bench.write(*f) for f in (("small", rows), ("old", rows[:10]), ("change", changed))
    )
    one = bench.write("one", [added])
    table: dict[str, Values] = {}

    def record(measure: str, name: str, value: float) -> None:
        table.setdefault(measure, {})[name] = float(value)

    for name in bench.names:
        model, folder = bench.folder / "model", bench.folder / f"small-{name}"
        shutil.copytree(bench.model, model)
        run_task("create", name, folder, model, docs)
        run_task("upsert", name, folder, model, new)
        after = run_task("stale", name, folder, model, old).result
        record("stale_documents", name, len(after["stale"]))
        record("surplus_rows", name, after["count"] - len(rows))
        seen = run_task("follow", name, folder, model, one).result
        for measure in ("written", "at_once", "refreshed"):  # explained at `engine_tasks.follow`
            record(f"other_process_{measure}", name, seen[measure])
        hits = run_task("cold", name, folder, model, added["text"]).result["hits"]
        record("other_process_seen_by_a_third", name, added["_id"] in hits)
        change_weights(model)
        answer = run_task("swapped", name, folder, model, added["text"]).result
        print(f"{name}, other weights: {answer['refused'] or 'answered'}")
        record("refuses_other_weights", name, answer["refused"] is not None)
        shutil.rmtree(model)
    for measure, values in table.items():
        bench.add(measure, values, "")


def change_weights(model: Path) -> None:
    """Shuffle one matrix of a model, as if it had been trained anew into the same folder."""
    file = model / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in sorted(tensors) if name.endswith("query.weight"))
    tensors[name] = np.random.default_rng(0).permutation(tensors[name])
    save_file(tensors, file, metadata={"format": "pt"})


def require(condition: bool, message: str) -> None:
    """End the benchmark with a message if a trial did not happen as planned."""
    if not condition:
        raise SystemExit(f"{message}.")
