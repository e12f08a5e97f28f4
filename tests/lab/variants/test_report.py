import json
from dataclasses import replace
from pathlib import Path

from sbert_search.base.machine import made_with
from sbert_search.lab.variants.recipe import Reading
from sbert_search.lab.variants.report import (
    VariantsReport,
    draw_curves,
    draw_table,
    figure,
    figures_of,
    markdown,
    number,
    shown,
    table_of,
    write_variants,
)

READING = Reading(step=4, tokens=2000, processor_seconds=1.5, figures={"mlm": 5.0})
TABLE = figures_of(
    ["bert", "electra"],
    {"bert": {0: {"loss": 3.0}, 1: {"loss": 3.2}}, "electra": {0: {"rtd": 0.25}}},
)
REPORT = VariantsReport(
    recipe={"size": "mini", "tokens": 2000},
    seeds=2,
    tables={"tokens": TABLE, "seconds": {"bert": {}, "electra": {}}},
    training=TABLE,
    readings={"tokens": {"bert": {0: READING}}, "seconds": {}},
    curves={"bert": {0: [READING]}, "electra": {}},
    missing=("electra-1-pretrain",),
    cpus={"CPU A": 3, "CPU B": 1},
    made=made_with(),
)


def test_cells() -> None:
    assert shown(None) == "-"
    assert shown(figure({0: 0.5}, None)) == "0.5000"
    assert shown(figure({0: 0.5, 1: 0.5}, {0: 0.1, 1: 0.1})) == "0.5000 [0.5000, 0.5000] *"
    assert [number(value) for value in (0.12345, 1234.5)] == ["0.1235", "1,234"]
    columns, rows = table_of(TABLE)
    assert columns == ["figure", "bert", "electra"]
    assert [row[0] for row in rows] == ["loss", "rtd"]
    assert rows[1] == ["rtd", "-", "0.2500"]


def test_the_report_names_budgets_readings_and_what_is_missing() -> None:
    text = markdown(REPORT)
    assert "| bert | 2,000 | 1.5 |" in text
    assert "| rtd | - | 0.2500 |" in text
    assert "Not finished: electra-1-pretrain." in text
    assert "Mean over those finished of " in text
    assert "those finished" not in markdown(replace(REPORT, missing=()))


def test_drawings_have_a_dot_for_each_seed() -> None:
    assert draw_table(TABLE, "a title").count("<circle") == 3
    assert "electra" in draw_curves(REPORT)


def test_files(tmp_path: Path) -> None:
    written = write_variants(REPORT, tmp_path / "out")
    names = {"variants.json", "variants.md", "curves.svg", "tokens.svg", "seconds.svg"}
    assert {path.name for path in written} == names
    record = json.loads((tmp_path / "out" / "variants.json").read_text())
    assert record["tables"]["tokens"]["bert"]["loss"]["values"] == {"0": 3.0, "1": 3.2}
