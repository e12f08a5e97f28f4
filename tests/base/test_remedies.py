from __future__ import annotations

from collections.abc import Iterator

import pytest

from sbert_search.base.options import if_offered, offer_options


@pytest.fixture(autouse=True)
def _no_command_afterwards() -> Iterator[None]:
    yield
    offer_options(None)


def test_a_remedy_names_an_option_unless_the_command_lacks_it() -> None:
    assert if_offered("--skip", "Pass --skip.", "Fix it.") == "Pass --skip."
    offer_options({"--skip", "--out"})
    assert if_offered("--skip", "Pass --skip.", "Fix it.") == "Pass --skip."
    offer_options({"--out"})
    assert if_offered("--skip", "Pass --skip.", "Fix it.") == "Fix it."
    assert if_offered("--skip", "Pass --skip.") == ""
