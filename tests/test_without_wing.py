"""The wings and their pages are those that `tests/without_wing.py` deletes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from sbert_search import wings
from sbert_search.errors import ConfigError
from sbert_search.index.building.settings import ReadSettings
from sbert_search.wings import installed
from tests.without_wing import PAGES, ROOT, without_pages


def test_every_wing_has_its_pages_in_the_table() -> None:
    assert installed().keys() <= PAGES.keys()
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for wing in installed():
        for page in PAGES[wing]:
            assert (ROOT / "docs" / page).is_file()
            assert f" {page}\n" in navigation


def test_pages_leave_the_navigation_and_sections_with_their_last_page() -> None:
    before = "nav:\n  - A: a.md\n  - B:\n      - b/index.md\n      - C: b/c.md\n  - D: d/a.md\n"
    assert without_pages(before, ["b/c.md"]) == before.replace("      - C: b/c.md\n", "")
    after = "nav:\n  - A: a.md\n  - D: d/a.md\n"
    assert without_pages(before, ["b/index.md", "b/c.md"]) == after
    assert without_pages(after, ["a.md"]) == "nav:\n  - D: d/a.md\n"


def test_no_test_of_the_rest_imports_a_wing() -> None:
    """Where the wing is absent, pytest could not import such a test, and would stop."""
    tests = ROOT / "tests"
    imported = re.compile(
        rf"(?:from|import) (?:sbert_search|tests)\.({'|'.join(PAGES)})\b", re.MULTILINE
    )
    for path in sorted(tests.rglob("*.py")):
        if path.relative_to(tests).parts[0] not in PAGES:
            assert not imported.findall(path.read_text(encoding="utf-8")), path


def test_what_an_absent_wing_would_add_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (wings.part("answerer") is not None) == ("heads" in installed())
    monkeypatch.setattr(wings, "installed", dict)
    assert wings.part("answerer") is None
    with pytest.raises(ConfigError, match=r"^--answer is not possible: .* has no answerer\.$"):
        wings.required_part("answerer", "--answer")
    with pytest.raises(ConfigError, match="no predicted columns"):
        _ = ReadSettings(classify={"kind": "folder"}).predicted
    assert ReadSettings().predicted.hashes == {}


@pytest.mark.thorough
def test_commands_search_and_serve_without_any_wing() -> None:
    """The core's options and commands, in a copy of the files without the wings."""
    tests = (
        "tests/cli/test_search.py",
        "tests/cli/test_examples.py",
        "tests/serve/test_workers.py",
        "tests/test_docstrings.py",
        "tests/test_without_wing.py",
    )
    command = [sys.executable, "-m", "tests.without_wing", "all", "--", "-n0", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
