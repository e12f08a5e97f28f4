"""A process that answers blocks of hybrid queries with the package that PYTHONPATH names.

    python benchmarks/hybrid_child.py FOLDER INDEX

FOLDER has `queries.json` and `vectors.npy`. A line of stdin is `[first, last]`, and
the answer is a JSON object with the processor time and the ids of the hits. The package may be an
older one, so this script uses nothing else of it than `SearchEngine.search`.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from sbert_search.search.engine import SearchEngine


def main(folder: Path, index: Path) -> None:
    """Answer until stdin ends."""
    engine = SearchEngine(index)
    asked = json.loads((folder / "queries.json").read_text(encoding="utf-8"))
    vectors = np.load(folder / "vectors.npy")
    for line in sys.stdin:
        first, last = json.loads(line)
        start = time.process_time()
        hits = [
            engine.search(text, 10, vector=vector, mode="hybrid", syntax="plain")
            for text, vector in zip(asked[first:last], vectors[first:last], strict=True)
        ]
        cpu_ms = 1000 * (time.process_time() - start)
        ids = [[hit.doc_id for hit in found] for found in hits]
        print(json.dumps({"cpu_ms": cpu_ms, "hits": ids}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
