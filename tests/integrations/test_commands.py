"""`eval mteb` as a command: what it refuses."""

from __future__ import annotations

import pytest

from tests.cli.process import sbert_search


@pytest.mark.parametrize("option", [("--mode", "hybrid"), ("--rerank-depth", "5")])
def test_options_of_a_search_are_refused_for_an_encoder(option: tuple[str, str]) -> None:
    done = sbert_search("eval", "mteb", "task", "--encoder", *option)
    assert (done.code, done.out) == (2, "")
    assert f"{option[0]} has no effect with --encoder; leave it out." in done.err
