"""RELIABILITY.md says what the committed results say."""

import re

from tests.cli.process import ROOT
from tests.faults import RESULTS
from tests.reliability import PROMISES, REPORT, report


def test_the_report_is_that_of_the_committed_results() -> None:
    assert REPORT.read_text() == report(), "run python -m tests.reliability"


def test_every_result_about_data_is_reported() -> None:
    kinds = (
        "index_*",
        "training_*",
        "parser_*",
        "files_*",
        "filter*",
        "serving_*",
        "command_*",
        "upsert_*",
        "sync_*",
        "exchange_*",
        "cluster_*",
    )
    assert {file.stem for kind in kinds for file in RESULTS.glob(f"{kind}.json")} <= PROMISES.keys()


def test_pages_that_name_counts_have_those_of_the_results() -> None:
    promises = (ROOT / "docs/concepts/promises.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (.*) \|$", promises, re.MULTILINE)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"how often each promise was tested: (.*?)\. ", readme, re.DOTALL)
    number = re.compile(r"\d[\d,]*\d")
    named = number.findall("\n".join([*rows, sentence]))
    assert len(named) > 10
    assert set(named) <= set(number.findall(report()))
