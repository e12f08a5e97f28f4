from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.errors import ConfigError
from sbert_search.evaluation.report import _folders, refuse_overwriting
from sbert_search.evaluation.tasks import EvalTask


def test_reports_need_a_folder_without_their_inputs(tmp_path: Path) -> None:
    task = EvalTask(name="one", kind="sts", path=Path("one.jsonl"), split="test")
    source = tmp_path / "one.json"
    source.write_text("{}")
    with pytest.raises(ConfigError, match=r"one\.json is a file; name a folder for the reports"):
        refuse_overwriting([task], source, [])
    with pytest.raises(ConfigError, match=r"one\.json"):
        refuse_overwriting([task], tmp_path, [source])
    refuse_overwriting([task], tmp_path / "new", [source])


def test_two_systems_get_two_folders(tmp_path: Path) -> None:
    assert list(_folders(tmp_path, {"a b": [], "c": []})) == [tmp_path / "a-b", tmp_path / "c"]
    with pytest.raises(ConfigError, match=r"Two systems would be written to .*; rename 'a-b'"):
        _folders(tmp_path, {"a b": [], "a-b": []})
