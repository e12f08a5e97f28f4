from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sbert_search.errors import ConfigError
from sbert_search.lab.map.record import CorpusMap
from sbert_search.lab.map.saving import require_folder, summary, to_table, write_map


def test_files_are_written_and_replaced(drawn: CorpusMap, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "map"
    assert write_map(drawn, folder) == [folder / "map.html", folder / "map.json"]
    (folder / "map.html").write_text("old")
    written = write_map(drawn, folder, parquet=True)
    assert sorted(folder.iterdir()) == sorted(written)
    assert (folder / "map.html").read_text().startswith("<!doctype html>")
    assert json.loads((folder / "map.json").read_text()) == summary(drawn)
    assert pq.read_table(folder / "map.parquet").equals(to_table(drawn))


def test_a_file_and_the_index_are_refused(drawn: CorpusMap, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^out: .*file is a file"):
        require_folder(tmp_path / "file" / "map", Path(drawn.index), "--out")
    with pytest.raises(ConfigError, match=r"lies in .*my\.index"):
        write_map(drawn, Path(drawn.index))


def test_a_name_that_is_not_utf8_is_escaped(drawn: CorpusMap, tmp_path: Path) -> None:
    odd = replace(drawn, index=os.fsdecode(b"caf\xe9.index"), titles=["\udce9t", *drawn.titles[1:]])
    page, lines = write_map(odd, tmp_path / "m")
    assert "Map of caf\\udce9.index" in page.read_text("utf-8")
    assert json.loads(lines.read_text("utf-8")) == summary(odd)
