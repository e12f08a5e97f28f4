"""The examples in the docstrings of public names give what they show."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module

import pytest

import sbert_search

NAMES: list[str] = import_module("sbert_search").__all__
FINDER = doctest.DocTestFinder(recurse=False)


def examples_of(name: str) -> list[doctest.DocTest]:
    known = {other: getattr(sbert_search, other) for other in NAMES}
    item = known[name]
    members = vars(item).items() if inspect.isclass(item) else ()
    functions = [(part, member) for part, member in members if callable(member) and part[0] != "_"]
    found = [FINDER.find(each, f"{name}.{part}", globs=known) for part, each in functions]
    own = FINDER.find(item, name, globs=known) if inspect.isroutine(item) or members else []
    return [test for tests in (own, *found) for test in tests if test.examples]


@pytest.mark.parametrize("name", NAMES)
def test_examples_give_what_they_show(name: str) -> None:
    for test in examples_of(name):
        said: list[str] = []
        result = doctest.DocTestRunner().run(test, out=said.append)
        assert result.failed == 0, "".join(said)


def test_the_main_names_have_examples() -> None:
    main = ("Boost", "Fusion", "Index", "IndexSpec", "SearchEngine", "SearchOptions")
    assert all(examples_of(name) for name in main)
