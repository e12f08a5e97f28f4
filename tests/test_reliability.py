"""RELIABILITY.md says what the committed results say."""

from tests.faults import RESULTS
from tests.reliability import PROMISES, REPORT, report


def test_the_report_is_that_of_the_committed_results() -> None:
    assert REPORT.read_text() == report(), "run python -m tests.reliability"


def test_every_result_is_reported() -> None:
    assert {file.stem for file in RESULTS.glob("*.json")} <= PROMISES.keys()
