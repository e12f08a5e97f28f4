"""Long texts as passages: their settings, and what becomes of them in updates."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.building.settings import ReadSettings
from sbert_search.index.index import Index
from tests.cli.process import sbert_search
from tests.models.tiny import tiny_static
from tests.parity.folders import bare, edit
from tests.search.corpus import write_jsonl

LONG = "# Mill\n\nOne two three. Four five six. Seven eight nine.\n\n# Wind\n\nTen eleven twelve."
CUT = [
    "# Mill\n\nOne two three. ",
    "Four five six. Seven eight nine.\n\n",
    "# Wind\n\nTen eleven twelve.",
]
SPLIT = BuildSettings(on_truncate="chunk", chunk_tokens=6)


def passages(index: Index, doc_id: str) -> list[str]:
    """The passages of a document in the index, in order."""
    (doc,) = index.state.lookup([doc_id])
    found = index.state.fetch(index.state.rows_of(np.array([doc])))
    assert [passage.chunk for passage in found] == list(range(len(found)))
    return [p.document.full_text[p.char_start : p.char_end] for p in found]


def build(folder: Path, *texts: str, **settings: Any) -> Index:
    source = write_jsonl(
        folder / "docs.jsonl", [{"_id": str(n), "text": text} for n, text in enumerate(texts)]
    )
    return Index.build(source, out=folder / "i", model=HashingEmbedder(max_len=16), **settings)


def test_a_text_longer_than_the_stated_size_is_split_though_the_model_could_read_it(
    tmp_path: Path,
) -> None:
    index = build(tmp_path, LONG, "One two three four five six", settings=SPLIT)
    assert passages(index, "0") == CUT
    assert passages(index, "1") == ["One two three four five six"]


def test_updates_split_as_the_build_did(tmp_path: Path) -> None:
    index = build(tmp_path, "short", settings=SPLIT)
    model = HashingEmbedder(max_len=16)
    index.add([{"_id": "new", "text": LONG}], model=model)
    assert passages(index, "new") == CUT
    index.upsert([{"_id": "new", "text": LONG + " " + LONG}], model=model)
    assert "".join(passages(index, "new")) == LONG + " " + LONG
    assert index.state.n_rows == 1 + len(passages(index, "new")) > 4
    index.upsert([{"_id": "new", "text": LONG}], model=model, chunk_tokens=16)
    assert passages(index, "new") == [LONG]
    index.delete(["new"])
    assert (index.state.n_rows, index.state.n_docs) == (1, 1)
    index.compact()
    assert index.check().problems == ()


def test_an_overlap_is_stored_and_used_again(tmp_path: Path) -> None:
    text = " ".join(f"w{n}" for n in range(30))
    index = build(tmp_path, text, on_truncate="chunk", chunk_tokens=8, chunk_overlap=2)
    index.add([{"_id": "again", "text": text}], model=HashingEmbedder(max_len=16))
    parts = passages(index, "0")
    assert [part.split()[-2:] for part in parts[:-1]] == [part.split()[:2] for part in parts[1:]]
    assert passages(index, "again") == parts
    info = index.info()
    assert (info.on_truncate, info.chunk_tokens, info.chunk_overlap) == ("chunk", 8, 2)


def test_a_new_index_splits_by_default_and_cuts_on_request(tmp_path: Path) -> None:
    text = " ".join(f"w{n}" for n in range(20))
    assert len(passages(build(tmp_path, text), "0")) == 2
    (tmp_path / "cut").mkdir()
    assert passages(build(tmp_path / "cut", text, on_truncate="warn"), "0") == [text]
    source = write_jsonl(tmp_path / "t.jsonl", [{"_id": "0", "text": "a b " * 600}])
    out = tmp_path / "t.parquet"
    done = sbert_search("embed", source, "--model", "hashing", "--out", out, "--json")
    assert done.records[0]["passages"] == 1  # `embed` writes a row for each document


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk_tokens": 1}, "chunk_tokens is 1; it must be at least 2"),
        ({"chunk_overlap": -1}, "chunk_overlap is -1; it must be at least 0"),
        ({"chunk_tokens": 8, "chunk_overlap": 5}, "chunk_overlap is 5; use at most 4, half of"),
        ({"chunk_tokens": "8"}, "chunk_tokens"),
        ({"chunk_borders": "word"}, "did you mean 'words'"),
    ],
)
def test_sizes_are_checked_when_they_are_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReadSettings(**settings)


def test_a_size_above_the_model_s_limit_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chunk_tokens is 17, but hashing reads 16 tokens; use"):
        build(tmp_path, LONG, on_truncate="chunk", chunk_tokens=17)
    assert not (tmp_path / "i").exists()
    index = build(tmp_path, LONG)
    with pytest.raises(ConfigError, match="chunk_tokens is 17"):
        index.add([{"text": LONG}], model=HashingEmbedder(max_len=16), chunk_tokens=17)


def test_the_command_line_splits_and_says_so(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "docs.jsonl", [{"_id": "0", "text": LONG}])
    built = ("index", "build", source, "--model", "hashing", "--out", tmp_path / "i")
    refused = sbert_search(*built, "--chunk-overlap", 3, "--on-truncate", "warn")
    assert refused.code == 2
    assert "--chunk-overlap needs --on-truncate chunk." in refused.err
    assert sbert_search(*built, "--chunk-tokens", 6, "--chunk-overlap", 2).code == 0
    index = Index.open(tmp_path / "i")
    assert passages(index, "0")[0] == CUT[0]
    shown = sbert_search("index", "info", tmp_path / "i").out
    assert "split into passages of at most 6 tokens, 2 of them shared" in shown
    record = json.loads(sbert_search("index", "info", tmp_path / "i", "--json").out)
    assert (record["chunk_tokens"], record["chunk_overlap"]) == (6, 2)


def test_a_model_of_long_texts_reads_them_whole_and_the_cost_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = bare(tmp_path / "model", "modernbert", max_position_embeddings=8192)
    edit(model, "tokenizer_config.json", model_max_length=8192)
    rows = [{"_id": "long", "text": "The cat sat on the mat, and then a dog ran far away. " * 150}]
    index = Index.build(rows, out=tmp_path / "whole", model=str(model), precision="fp32")
    # Operations of a token: 2 blocks of 4,352; 64 for each token that a layer of width 16 sees,
    # all in the first layer and 129 in the second. (8,704 + 64 x 8,321) / (8,704 + 64 x 641).
    told = "reads 8,192 tokens, so a passage has up to 8,192, and one vector; per token, these "
    told += "take 10.9 times the work of passages of 512 tokens. --chunk-tokens 512 (chunk_tokens="
    assert told in capsys.readouterr().err
    assert index.info().passages == 1
    (passage,) = index.state.fetch(np.array([0]))
    assert 1024 < passage.n_tokens <= 8192
    assert passage.lost_tokens == 0
    options = {"model": str(model), "precision": "fp32", "chunk_tokens": 512}
    short = Index.build(rows, out=tmp_path / "short", **options)  # type: ignore[arg-type]
    assert "8,192" not in capsys.readouterr().err
    assert short.info().passages > 2


def test_a_model_without_a_limit_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_static(tmp_path / "table")
    index = Index.build([{"text": "many words " * 2000}], out=tmp_path / "i", model=str(model))
    assert "table reads texts of any length, so each has one vector." in capsys.readouterr().err
    assert index.info().passages == 1
    shown = sbert_search("index", "info", tmp_path / "i").out
    assert re.search(r"^reads +texts of any length\nlong texts +not split$", shown, re.MULTILINE)
