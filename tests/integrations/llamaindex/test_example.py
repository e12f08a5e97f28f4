"""The example of LlamaIndex retrieves and cites."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.example import printed_by


def test_the_example_cites_what_it_found(tmp_path: Path) -> None:
    printed = printed_by("llamaindex", tmp_path)
    assert "[tides] The pull of the moon" in printed
    assert "[dunes]" not in printed
    assert printed.rstrip().endswith("Why does the ocean go up and down?")
