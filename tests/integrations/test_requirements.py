"""An adapter without its framework says which extra to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

FRAMEWORKS = {
    "haystack": "haystack",
    "langchain": "langchain_core",
    "llamaindex": "llama_index",
    "mteb": "mteb",
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_missing_framework_is_named_with_its_extra(name: str) -> None:
    package = FRAMEWORKS[name]
    script = (
        f"import sys\nsys.modules[{package!r}] = None\nimport sbert_search.integrations.{name}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(f"pip install -e '.[{name}]' in the clone of sbert-search")
    assert package in done.stderr


def test_the_package_imports_no_framework() -> None:
    script = (
        "import sys, sbert_search, sbert_search.search.engine, sbert_search.cli.main\n"
        f"print([n for n in sys.modules if n.split('.')[0] in {list(FRAMEWORKS.values())}])\n"
        "print([n for n in sys.modules if n.startswith('sbert_search.integrations.')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["[]", "[]"], done.stderr
