"""mypy and pyright on a user's script: they accept it, know its types, and find its mistakes."""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest

import sbert_search
from sbert_search import Fusion, SearchOptions
from sbert_search.search.options import SearchKeywords
from sbert_search.wings import installed
from tests.cli.process import ROOT, environment

NAMES: list[str] = import_module("sbert_search").__all__
TESTS = Path(__file__).resolve().parents[1]
USERS = [TESTS / "typing/user.py"]
USERS += [TESTS / name / "user.py" for name, wing in installed().items() if wing.public]
MISTAKES = """
import sbert_search
from sbert_search import Embedder, Index, Reranker, SearchEngine, SearchOptions

engine = SearchEngine("my.index")
hits = engine.search("a question")
engine.search("a", k="3")
engine.search("a", mode="fuzzy")
engine.search("a", moed="dense")
hits[0].scor
Index.build("corpus.jsonl", out="my.index", metrik="cosine")
Index.build("corpus.jsonl", out=3)
Embedder("model", precision="fp12")
Reranker(7)
SearchOptions(k="3")
from sbert_search import Serch
"""
RIGHT = 6  # lines of it without a mistake, the first one blank
ARRAY = "ndarray[tuple[Any, ...], "  # how numpy writes an array whose number of axes is not typed
REVEALED = ("engine", "hits", *(f"sbert_search.{name}" for name in NAMES))


@pytest.fixture
def mistakes(tmp_path: Path) -> Path:
    path = tmp_path / "mistakes.py"
    path.write_text(MISTAKES + "".join(f"reveal_type({name})\n" for name in REVEALED))
    return path


def mypy(*paths: Path) -> str:
    """Run mypy with this project's cache, which the run over the whole project shares."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", *map(str, paths)]
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True
    ).stdout


def pyright(*paths: Path) -> list[dict[str, object]]:
    """Run pyright and return its diagnostics."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, *map(str, paths)], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    diagnostics: list[dict[str, object]] = json.loads(done.stdout)["generalDiagnostics"]
    return diagnostics


@pytest.mark.thorough
def test_mypy_accepts_the_user_and_finds_the_mistakes(mistakes: Path) -> None:
    shown = mypy(*USERS, mistakes)
    assert "user.py" not in shown
    wrong = {int(line) for line in re.findall(r"mistakes\.py:(\d+): error", shown)}
    last = MISTAKES.count("\n")
    assert wrong == set(range(RIGHT + 1, last + 1)), shown
    revealed = re.findall(r'Revealed type is "(.*)"', shown)
    assert len(revealed) == len(REVEALED)
    named = [kind.replace(ARRAY, "ndarray[") for kind in revealed]
    assert not [kind for kind in named if re.search(r"\bAny\b", kind)]


@pytest.mark.thorough
def test_pyright_accepts_the_user() -> None:
    assert pyright(*USERS) == []


@pytest.mark.thorough
def test_pyright_finds_the_mistakes(mistakes: Path) -> None:
    found = pyright(mistakes)
    wrong = {_line(one) for one in found if one["severity"] == "error"}
    assert wrong == set(range(RIGHT + 1, MISTAKES.count("\n") + 1)), found
    revealed = [str(one["message"]) for one in found if one["severity"] == "information"]
    assert len(revealed) == len(REVEALED)
    assert not [message for message in revealed if re.search(r"\b(Any|Unknown)\b", message)]


def test_every_public_name_is_in_a_script_and_known_to_checkers() -> None:
    root = Path(sbert_search.__file__).parent
    typed = {
        alias.name
        for path in (root / "__init__.py", *(root / wing / "__init__.py" for wing in installed()))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sbert_search")
        for alias in node.names
    }
    assert typed - {"*", "Command", "Wing", "__version__", "installed"} == set(NAMES)
    used = {
        node.id
        for user in USERS
        for node in ast.walk(ast.parse(user.read_text()))
        if isinstance(node, ast.Name)
    }
    assert set(NAMES) <= used


def test_no_public_signature_has_any() -> None:
    assert [text for text in _annotations() if re.search(r"\bAny\b", text)] == []


def test_the_package_says_any_seldom() -> None:
    sources = (io.BytesIO(path.read_bytes()) for path in (ROOT / "sbert_search").rglob("*.py"))
    names = (token.string for source in sources for token in tokenize.tokenize(source.readline))
    assert sum(name == "Any" for name in names) < 155


def test_the_keywords_of_a_search_are_its_options() -> None:
    ours, theirs = get_type_hints(SearchOptions), get_type_hints(SearchKeywords)
    assert ours | {"fusion": Fusion | None} == {"k": int} | theirs


def _annotations() -> Iterator[str]:
    """Yield ``name: annotation`` of everything public."""
    for name in NAMES:
        item = getattr(sbert_search, name)
        members = vars(item) if inspect.isclass(item) else {name: item}
        for part, member in members.items():
            if part.startswith("_") and part != "__init__":
                continue
            function = getattr(member, "__func__", getattr(member, "fget", member))
            for what, annotation in getattr(function, "__annotations__", {}).items():
                yield f"{name}.{part}, {what}: {annotation}"


def _line(diagnostic: dict[str, object]) -> int:
    where = diagnostic["range"]
    assert isinstance(where, dict)
    return int(where["start"]["line"]) + 1
