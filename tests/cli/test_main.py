"""The command line as a whole: what it loads, what it says of wrong usage, how it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sbert_search import __version__
from tests.cli.process import environment, sbert_search

HEAVY = {"torch", "transformers", "sentence_transformers", "tokenizers", "faiss", "onnxruntime"}

LIST_MODULES = "import sys; print('\\n'.join(m.partition('.')[0] for m in sys.modules))"


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{LIST_MODULES}"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    return set(done.stdout.splitlines())


@pytest.mark.parametrize(
    "code",
    ["import sbert_search", "from sbert_search.cli.main import run; run(['--help'])"],
)
def test_import_and_help_load_nothing_heavy(code: str) -> None:
    assert not modules_after(code) & (HEAVY | {"pyarrow", "numpy", "sqlglot", "rich"})


def test_help_names_every_exit_code() -> None:
    done = sbert_search("--help")
    assert done.code == 0
    for code in ("0 done", "1 failed", "2 wrong usage", "3 finished", "130 interrupted"):
        assert code in " ".join(done.out.split())


def test_version() -> None:
    assert sbert_search("--version").out == f"sbert-search, version {__version__}\n"


def test_unknown_command_is_wrong_usage() -> None:
    done = sbert_search("serach")
    assert done.code == 2
    assert "No such command 'serach'" in done.err
    assert done.out == ""
