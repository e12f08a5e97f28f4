"""`index export` and `index import` as commands: what they print, and what they refuse."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbert_search.cli.main import run
from sbert_search.index.index import Index
from tests.cli.options.test_config_file import index, shown_rows
from tests.exchange.samples import rows

__all__ = ["index"]  # a fixture


def test_an_export_is_imported_with_the_options_of_a_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Index.build(rows(20), out="a", model="hashing:32")
    assert run(["index", "export", "a", "--to", "parquet", "--out", "x.parquet", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["passages"], report["files"]) == (20, ["x.parquet"])
    ast.parse(report["query"])
    line = ["index", "export", "a", "--to", "parquet", "--out", "y.parquet", "--columns", "year, "]
    assert run(line) == 0
    assert "year" in pq.read_schema("y.parquet").names
    capsys.readouterr()
    options = ["--spec", "HNSW8", "--metric", "dot", "--dtype", "float16", "--language", "german"]
    line = ["index", "import", "x.parquet", "--out", "b", "--metadata-fields", "year,price"]
    assert run([*line, *options, "--column-type", "year=float", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 20
    stored = Index.open("b").state.manifest
    settings, lexical = stored.settings, stored.lexical
    assert (settings.metric, settings.dtype, settings.spec.factory) == ("dot", "float16", "HNSW8")
    assert lexical is not None
    assert lexical.language == "german"
    assert Index.open("b").state.columns == {"year": "float64", "price": "float64"}


def test_a_bad_row_is_skipped_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = pa.table({"_id": ["a", "b"], "vector": [[1.0, 2.0], [0.0, 0.0]]})
    pq.write_table(table, "x.parquet")
    assert run(["index", "import", "x.parquet", "--out", "i"]) == 1
    assert "the vector is all zeros" in capsys.readouterr().err
    assert run(["index", "import", "x.parquet", "--out", "i", "--on-error", "skip"]) == 3
    assert "1 documents in i, compared by cosine;" in capsys.readouterr().out


def test_a_missing_package_is_named_with_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "lancedb", None)
    Path("l/t.lance").mkdir(parents=True)
    assert run(["index", "import", "l", "--out", "i"]) == 2
    assert "lancedb is not installed: python -m pip install lancedb" in capsys.readouterr().err
    Path("l/u.lance").mkdir()
    assert run(["index", "import", "l", "--out", "i"]) == 1
    assert "name the table with --table; there are: 't', 'u'" in capsys.readouterr().err


def test_keys_and_passwords_are_not_shown(
    index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SBERT_SEARCH_API_KEY", "secret")
    url = "http://me:secret@host:1"
    line = ["index", "export", index, "--to", "qdrant", "--url", url, "--json"]
    assert run(["--show-config", *line]) == 0
    shown = shown_rows(capsys)
    assert shown["url"] == ("http://host:1", "command line")
    assert shown["api-key"] == ("***", "environment, SBERT_SEARCH_API_KEY")
