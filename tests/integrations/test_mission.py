"""The mission's rows of frameworks; see `tests/test_mission.py`."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from tests.cli.process import sbert_search as run


@pytest.mark.parametrize(
    ("framework", "package", "name"),
    [
        ("langchain", "langchain_core", "SbertSearchVectorStore"),
        ("haystack", "haystack", "SbertSearchDocumentStore"),
        ("llamaindex", "llama_index", "SbertSearchVectorStore"),
    ],
)
def test_a_framework_gets_its_classes_or_the_name_of_the_extra(
    framework: str, package: str, name: str
) -> None:
    module = f"sbert_search.integrations.{framework}"
    if importlib.util.find_spec(package) is None:
        with pytest.raises(ImportError, match=framework):
            getattr(importlib.import_module(module), name)
    else:
        assert callable(getattr(importlib.import_module(module), name))


def test_mteb_is_a_command_or_names_its_extra() -> None:
    if importlib.util.find_spec("mteb") is not None:
        pytest.skip("tests/integrations/mteb runs it")
    done = run("eval", "mteb", "STSBenchmark", "--model", "hashing")
    assert done.code != 0
    assert "pip install -e '.[mteb]'" in done.err
