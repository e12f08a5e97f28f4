"""Go the whole way from raw text to search results, each step by one command.

The model is tiny and trained for seconds, so that it shows the commands, not good results.
Run it: python examples/chain.py
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from sbert_search import stdlib_documents


def sbert_search(*arguments: object) -> None:
    """Run a command of sbert-search in this process's environment."""
    print("$ sbert-search", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "sbert_search", *map(str, arguments)], check=True)


def settings(*values: str) -> list[str]:
    """Return the options that set values of a recipe."""
    return [part for value in values for part in ("--set", value)]


with tempfile.TemporaryDirectory() as name:
    folder, documents = Path(name), list(stdlib_documents())[:800]
    corpus, pairs = folder / "corpus.jsonl", folder / "pairs.jsonl"
    rows = [{"_id": doc.doc_id, "title": doc.title, "text": doc.text} for doc in documents]
    corpus.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    rows = [{"query": doc.doc_id.replace(".", " "), "passage": doc.text} for doc in documents]
    pairs.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    sbert_search("tokenizer", "train", corpus, "--vocab-size", 3000, "--out", folder / "tokens")
    text = settings(f"data.train={corpus}", f"tokenizer={folder / 'tokens'}", "size=tiny")
    sbert_search("pretrain", "bert", *text, *settings("budget.steps=40"), "--out", folder / "mlm")
    given = settings(f"model={folder / 'mlm/model'}", f"data.train={pairs}", "mining.negatives=0")
    sbert_search("train", "bi-encoder", "query-passage", *given, "--out", folder / "bi")
    sbert_search("index", "build", corpus, "--model", folder / "bi/model", "--out", folder / "ix")
    sbert_search("search", folder / "ix", "read compressed files", "-k", 3, "--mode", "hybrid")
