"""The whole way, by the commands that a person types: raw text to hits."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from sbert_search.cli.main import run
from sbert_search.embed.embedder import Embedder
from sbert_search.text.docstrings import stdlib_documents

pytestmark = pytest.mark.usefixtures("one_thread")

N_DOCUMENTS = 50
TINY = ("model.layers=2", "model.hidden_size=32", "model.heads=2", "model.intermediate_size=64")


def command(*arguments: object) -> None:
    assert run([*map(str, arguments), "--quiet"]) == 0


def settings(*overrides: str) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def told(captured: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in captured.readouterr().out.splitlines()]


def test_from_raw_text_to_hits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = list(islice(stdlib_documents(), N_DOCUMENTS))
    corpus = write(
        tmp_path / "corpus.jsonl", [{"_id": d.doc_id, "text": d.text} for d in documents]
    )
    pairs = [{"query": d.text.split(".")[0], "passage": d.text} for d in documents]

    command("tokenizer", "train", corpus, "--vocab-size", 600, "--out", tmp_path / "tokens")

    text = settings(f"data.train={corpus}", f"tokenizer={tmp_path / 'tokens'}", "budget.steps=4")
    shape = settings(*TINY, "batching.size=8", "segments.max_len=64", "data.held_out=0.1")
    command("pretrain", "bert", *text, *shape, "--out", tmp_path / "encoder", "--device", "cpu")

    encoder = tmp_path / "encoder" / "ckpt-00000004" / "model"
    given = settings(f"model={encoder}", f"data.train={write(tmp_path / 'pairs.jsonl', pairs)}")
    quick = settings("budget.steps=4", "batching.size=8", "optim.lr=1e-3", "max_len=48")
    command("train", "bi-encoder", "query-passage", *given, *quick, "--out", tmp_path / "run")

    model, texts = tmp_path / "run" / "model", [document.text for document in documents]
    ours = Embedder(model, precision="fp32").encode(texts)
    library = SentenceTransformer(str(model), device="cpu", local_files_only=True)
    np.testing.assert_allclose(ours, library.encode(texts), atol=2e-6)
    assert not np.allclose(ours, Embedder(encoder, precision="fp32").encode(texts), atol=1e-3)

    index, wanted = tmp_path / "docs.index", documents[7]
    command("index", "build", corpus, "--model", model, "--out", index)
    capsys.readouterr()
    command("search", index, wanted.text, "-k", 3, "--json")
    hits = told(capsys)
    assert [hit["rank"] for hit in hits] == [1, 2, 3]
    assert hits[0]["doc_id"] == wanted.doc_id
    assert hits[0]["stages"]["dense"]["score"] > 0.95
