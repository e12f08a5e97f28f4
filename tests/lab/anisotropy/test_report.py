import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sbert_search.lab.anisotropy.analyze import (
    AnisotropyReport,
    analyze_anisotropy,
    shown_dimensions,
)
from tests.lab.anisotropy.test_analyze import TEXTS
from tests.models.tiny import tiny_bi_encoder


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> AnisotropyReport:
    folder = tmp_path_factory.mktemp("model")
    tiny_bi_encoder(folder / "tokens").save(folder / "bi")
    return analyze_anisotropy(folder / "bi", TEXTS)


def test_the_files_hold_every_figure(report: AnisotropyReport, tmp_path: Path) -> None:
    json_path, svg_path = report.write(tmp_path / "deep" / "out")
    record = json.loads(json_path.read_text())
    assert [layer["layer"] for layer in record["layers"]] == [0, 1, 2]
    assert record["layers"][1]["token_cosine"] == report.layers[1].token_cosine
    assert [each["remedy"] for each in record["sentences"]] == [
        *("none", "standardising", "all-but-the-top", "whitening")
    ]
    assert record["weights_sha256"] == report.weights_sha256
    root = ElementTree.fromstring(svg_path.read_text())
    texts = [element.text for element in root.iter() if element.text]
    assert "self-similarity of words" in texts
    assert "layer 2" in texts
    assert "whitening" in texts


def test_tables_have_a_row_for_each_layer_and_each_remedy(report: AnisotropyReport) -> None:
    columns, rows = report.layer_table()
    assert [row[0] for row in rows] == [0, 1, 2]
    assert all(len(row) == len(columns) for row in rows)
    columns, rows = report.remedy_table()
    assert all(len(row) == len(columns) for row in rows)
    assert rows[0][2] == report.sentences[0].cosine


def test_dimensions_are_shown_in_percent() -> None:
    assert shown_dimensions({7: 0.514, 2: 0.25, 1: 0.1}, 2) == "7: 51%, 2: 25%"
