"""Fixtures of the scripts of `eval/`."""

from tests.eval.conftest import at_the_root, data, model, script

__all__ = ["at_the_root", "data", "model", "script"]
