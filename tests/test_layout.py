"""No folder of the package is too large."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "sbert_search"
LARGEST_FOLDER = 20  # modules, with __init__.py: a folder with more is read as two


def test_no_folder_of_the_package_holds_more_modules_than_a_reader_can_survey() -> None:
    sizes = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    assert {folder: size for folder, size in sizes.items() if size > LARGEST_FOLDER} == {}
