"""The demo: real text of this machine, an index in the folder named, answers that fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.process import sbert_search


@pytest.mark.thorough
def test_a_second_run_uses_the_index_of_the_first(tmp_path: Path) -> None:
    arguments = ["demo", "--dir", tmp_path / "demo", "--model", "hashing"]
    first = sbert_search(*arguments)
    assert first.code == 0, first.err
    assert first.out.index("500 documents in") < first.out.index("threading.Barrier")
    assert first.out.index("threading.Barrier") < first.out.index("1,000 more documents in")
    (index,) = (tmp_path / "demo").glob("*.index")
    manifest = (index / "MANIFEST.json").read_bytes()
    second = sbert_search(*arguments)
    assert f"{index}: " in second.out
    assert "from an earlier run" in second.out
    assert (index / "MANIFEST.json").read_bytes() == manifest
    (corpus,) = (tmp_path / "demo").glob("*.jsonl")
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    assert len(rows) == 1500
    assert "1,500 documents, from an earlier run" in second.out
    assert {"_id", "title", "text", "module", "kind"} <= set(rows[0])
    for wanted in ("--where \"kind = 'class'\"", "threading.Barrier", "Next:"):
        assert wanted in second.out
