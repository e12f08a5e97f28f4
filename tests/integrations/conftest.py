"""Fixtures of the suites of frameworks, whose `pytest.ini` lies in this folder."""

from tests.conftest import _heard_notes, _own_cache, real_data

__all__ = ["_heard_notes", "_own_cache", "real_data"]
