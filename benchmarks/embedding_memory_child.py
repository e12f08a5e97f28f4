"""A process that encodes texts once and prints its peak of memory above that of the open model.

    python benchmarks/embedding_memory_child.py ours|library MODEL PRECISION < texts.json

Before the peak is counted, a short text is encoded, so that weights and imports are in memory. The
peak is that of resident memory, which Linux counts (VmHWM). The output is a JSON object with `mib`.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")


def resident_mib(name: str) -> float:
    """Return VmRSS, the memory in use, or VmHWM, its peak since the last reset."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Open the model, encode, and print the peak."""
    kind, model, precision = sys.argv[1:]
    encode: Callable[[list[str]], Any]
    if kind == "ours":
        from sbert_search import Embedder

        encode = Embedder(model, device="cpu", precision=precision).encode  # type: ignore[arg-type]
    else:
        from sentence_transformers import SentenceTransformer

        encode = SentenceTransformer(model, device="cpu").encode
    texts = json.load(sys.stdin)
    encode(["a text"])
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident_mib("VmRSS")
    encode(texts)
    print(json.dumps({"mib": resident_mib("VmHWM") - before}))


if __name__ == "__main__":
    main()
