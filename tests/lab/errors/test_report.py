import json
import re
from pathlib import Path

import pytest

from sbert_search.errors import ConfigError
from sbert_search.lab.errors.report import draw, require_other_folder, write_errors
from tests.lab.errors.test_record import REPORT


def test_files_of_a_report(tmp_path: Path) -> None:
    written = write_errors([REPORT], tmp_path / "new" / "out")
    assert [path.name for path in written] == [
        f"errors-mini.{ending}" for ending in ("json", "svg", "html")
    ]
    assert json.loads(written[0].read_text())["worst"][0]["item"] == "q<1>"


def test_the_drawing_places_mean_and_interval() -> None:
    svg = draw(REPORT)
    assert "words in the query: 2 to 5 (3)" in svg
    # The axis goes from 0.1 to 0.5, from 330 to 700 pixels: 0.25 lies at 330 + 370 * 0.375.
    assert re.search(r'<circle cx="468.8"', svg)
    assert "0.2500, 0.1000 to 0.4000" in svg


def test_the_folder_of_the_run_and_a_file_are_refused(tmp_path: Path) -> None:
    record = tmp_path / "mini.json"
    record.write_text("{}")
    for run in (tmp_path, record):
        with pytest.raises(ConfigError, match="another folder"):
            require_other_folder(run, tmp_path)
    with pytest.raises(ConfigError, match="is a file"):
        require_other_folder(tmp_path, record)
    require_other_folder(record, tmp_path / "other")
