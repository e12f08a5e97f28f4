"""The wings and their pages are those that `tests/without_wing.py` deletes."""

from __future__ import annotations

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
