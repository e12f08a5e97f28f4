"""A small corpus and an index of it, made once by the command line itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.lines import write_world
from tests.cli.process import sbert_search

ROWS = [
    {"_id": "vaccines", "title": "Vaccines", "text": "They train immune cells.", "year": 2020},
    {"_id": "mill", "text": "The mill stands by the river. Water turns its wheel.", "year": 1999},
    {"_id": "bread", "title": "Bread", "text": "Flour and yeast make dough. Eat it.", "year": 2010},
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture(scope="session")
def _built(corpus: Path) -> Path:
    path = corpus.with_name("built.index")
    assert sbert_search("index", "build", corpus, "--out", path, "--model", "hashing").code == 0
    return path


@pytest.fixture
def index(_built: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    return Path(shutil.copytree(_built, tmp_path / "my.index"))


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that generated command lines name."""
    return write_world(tmp_path_factory.mktemp("world") / "template")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Make a file of lines: text as it is, records as JSON."""

    def make(name: str, *lines: object) -> Path:
        text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in text))
        return path

    return make


@pytest.fixture(scope="session")
def corpus_of_batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen batches of 1,024 rows, 16 rows of them bad, enough to be stopped in between."""
    path = tmp_path_factory.mktemp("batches") / "batches.jsonl"
    with path.open("w") as file:
        for n in range(16 * 1024):
            text = " ".join(f"word{(n * k) % 997}" for k in range(100)) if n % 1024 else ""
            file.write(json.dumps({"_id": str(n), "text": text, "n": n}) + "\n")
    return path
