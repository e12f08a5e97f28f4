"""The example of LangChain retrieves and cites, and the page of the documentation runs."""

from __future__ import annotations

from pathlib import Path

from sbert_search.index.index import Index
from tests.integrations.example import printed_by, run_page


def test_the_example_cites_what_it_found(tmp_path: Path) -> None:
    printed = printed_by("langchain", tmp_path)
    assert "[tides] The pull of the moon" in printed
    assert "[dunes]" not in printed
    assert printed.rstrip().endswith("Why does the ocean go up and down?")


def test_the_page_of_the_documentation_runs(tmp_path: Path) -> None:
    run_page("langchain", tmp_path)
    assert len(Index.open(tmp_path / "notes.index")) == 1
