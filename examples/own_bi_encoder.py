"""Fine-tune a bi-encoder on pairs of texts and measure what it gains on other pairs.

The pairs are names of functions in Python's library and the docstrings of these functions.
Run it: python examples/own_bi_encoder.py
"""

import re
import tempfile

from sbert_search import fine_tune, stdlib_documents
from sbert_search.evaluate import compare, evaluate

documents = [doc for doc in stdlib_documents() if doc.metadata["kind"] == "function"][::4]
pairs = [
    {"query": " ".join(re.findall(r"[A-Za-z]+", doc.doc_id)).lower(), "passage": doc.text[:300]}
    for doc in documents
]
with tempfile.TemporaryDirectory() as folder:
    out = f"{folder}/run"
    tuned = fine_tune(pairs, out, lr=5e-5, settings=["mining.negatives=0", "max_len=64"])
    print(f"nDCG@10 {tuned}")
    # The same in steps, for any two models and any search: here by meaning and words.
    held_out = f"{out}/pairs/held-out.jsonl"
    print(compare(evaluate(None, held_out), evaluate(str(tuned.model), held_out)))
