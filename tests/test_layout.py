"""Every module of the package has a test file of its name, or a line in `tests/README.md`."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "sbert_search"
LARGEST_FOLDER = 20  # modules, with __init__.py: a folder with more is read as two

_LINE = re.compile(r"^\| `([\w/]+\.py)` \| (.+) \|$", re.MULTILINE)
_FILE = re.compile(r"`([\w/]+\.py)`")


def listed(text: str) -> dict[str, list[str]]:
    """Read the table of modules and their test files."""
    return {module: _FILE.findall(files) for module, files in _LINE.findall(text)}


def faults(modules: Iterable[str], tests: set[str], lines: dict[str, list[str]]) -> list[str]:
    """Name modules without a test file or a line, and lines that are superfluous or wrong."""
    own = {module: str(Path(module).with_name(f"test_{Path(module).name}")) for module in modules}
    untested = [module for module, test in own.items() if test not in tests]
    named = [(module, test) for module, files in lines.items() for test in files]
    return [
        *(f"{module}: no test file, no line" for module in untested if not lines.get(module)),
        *(f"{module}: the line is superfluous" for module in lines if module not in untested),
        *(f"{module}: no file {test}" for module, test in named if test not in tests),
    ]


def has_logic(path: Path) -> bool:
    """Whether a module defines a function; others hold only types and constants."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)


def test_every_module_is_tested_by_a_file_of_its_name_or_by_listed_files() -> None:
    modules = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if has_logic(path)
    ]
    tests = {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    lines = listed((TESTS / "README.md").read_text())
    assert not faults([m for m in modules if not m.endswith("__init__.py")], tests, lines)


def test_faults_of_the_table_are_named() -> None:
    tests = {"a/test_b.py"}
    lines = listed("| `a/b.py` | `a/test_b.py` |\n| `a/d.py` | `a/test_e.py`, `a/test_b.py` |\n")
    assert faults(["a/b.py", "a/c.py", "a/d.py"], tests, lines) == [
        "a/c.py: no test file, no line",
        "a/b.py: the line is superfluous",
        "a/d.py: no file a/test_e.py",
    ]


def test_no_folder_of_the_package_holds_more_modules_than_a_reader_can_survey() -> None:
    sizes = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    assert {folder: size for folder, size in sizes.items() if size > LARGEST_FOLDER} == {}
