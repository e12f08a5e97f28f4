"""Any JSON objects and any bytes never bring out anything but a CorpusError.

`tests/fuzz` damages sound inputs; here they are made up. `FAULT_SCALE=full` tries a hundred times
as many.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbert_search.errors import CorpusError
from tests.faults import FULL
from tests.fuzz.parsers import PARSERS

SCALE = 100 if FULL else 1
TEXT_FORMATS = ["jsonl", "csv", "tsv", "text", "zstd", "qrels", "run", "pairs", "queries"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fuzz")
    (made / "qrels").mkdir()
    return made


def read_bytes(folder: Path, name: str, data: bytes) -> None:
    parser = PARSERS[name]
    (folder / parser.file).write_bytes(data)
    with contextlib.suppress(CorpusError):
        parser.read(folder)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from(["_id", "text", "title", "n", "\ud800", "", "id"])


@pytest.mark.thorough
@settings(max_examples=150 * SCALE, deadline=None)
@given(st.lists(st.dictionaries(FIELDS, JSON_VALUES), min_size=1, max_size=5))
def test_any_json_objects(folder: Path, rows: list[dict[str, object]]) -> None:
    lines = [json.dumps(row).encode() for row in rows]
    read_bytes(folder, "jsonl", b"\n".join(lines))


@settings(max_examples=150 * SCALE, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(TEXT_FORMATS))
def test_any_bytes(folder: Path, data: bytes, name: str) -> None:
    read_bytes(folder, name, data)
