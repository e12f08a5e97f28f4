"""Index rows that are in memory, keep them up to date, and search by example.

Run it: python examples/rows_in_memory.py
"""

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sbert_search import Index, SearchEngine

LIBRARY = Path(sysconfig.get_path("stdlib"))


def modules(first: str, last: str) -> Iterator[dict[str, object]]:
    """Yield the docstring of each module of Python's library whose name is in a range."""
    for path in sorted(LIBRARY.glob("[a-z]*.py")):
        if first <= path.stem <= last:
            doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            if doc:
                yield {"id": path.stem, "text": doc[:400], "kilobytes": path.stat().st_size // 1024}


index = Index.build(modules("a", "m"), model="hashing")  # without `out`: in a temporary folder
print("a to m:", len(index), "documents")
print("g to t:", index.upsert(modules("g", "t")).counts)
engine = SearchEngine(index)
for hit in engine.search("read and write compressed files", 3, mode="hybrid"):
    print("search ", hit.doc_id, f"{hit.score:.2f}")
for hit in engine.similar("gzip", 3, where="kilobytes < 100"):
    print("similar", hit.doc_id, f"{hit.score:.2f}")
print("deleted", index.delete("gzip"), "gzip" in index)

own = Index.build([{"id": "x"}, {"id": "y"}], vectors=np.eye(2))  # vectors that one has: no model
print("nearest", SearchEngine(own).search(np.array([0.1, 0.9]), 1)[0].doc_id)
