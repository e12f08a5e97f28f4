"""RELIABILITY.md says what the committed results say."""

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
