"""Tells whether the rest works without a wing.

``python -m tests.without_wing WING...|all [-- PYTEST ARGS]`` copies the tracked files to a
temporary folder, deletes there the wings, their tests and their pages, and runs the default tests.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES: Mapping[str, Sequence[str]] = {  # of `docs`, which only describe the wing
    "cluster": ("api/cluster.md", "cluster.md"),
    "exchange": ("api/exchange.md", "guides/exchange.md"),
    "heads": ("guides/task-heads.md",),
    "integrations": (
        "integrations/haystack.md",
        "integrations/index.md",
        "integrations/langchain.md",
        "integrations/llamaindex.md",
        "integrations/mteb.md",
    ),
    "lab": ("analysis.md", "api/analysis.md", "api/maps.md", "guides/map.md"),
}


def copy_tracked(target: Path) -> None:
    """Copy the tracked files, as they are in the working tree, to a folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in listed.split("\0"):
        if name and os.path.lexists(ROOT / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def remove_wing(root: Path, wing: str) -> None:
    """Delete a wing's code, tests and pages, and what `mkdocs.yml` says of the pages."""
    for folder in (root / "sbert_search" / wing, root / "tests" / wing):
        if folder.exists():
            shutil.rmtree(folder)
    for page in PAGES[wing]:
        (root / "docs" / page).unlink()
    settings = root / "mkdocs.yml"
    settings.write_text(without_pages(settings.read_text(encoding="utf-8"), PAGES[wing]))


def without_pages(text: str, pages: Iterable[str]) -> str:
    """Return the text of `mkdocs.yml` without pages, and without sections that had only them."""
    ends = tuple(f" {page}\n" for page in pages)
    text = "".join(line for line in text.splitlines(keepends=True) if not line.endswith(ends))
    return re.sub(r"^( *)- [^\n]*:\n(?!\1 )", "", text, flags=re.MULTILINE)


def main() -> int:
    """Run the tests without the named wings; return the exit code of pytest."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog="python -m tests.without_wing", description=__doc__)
    parser.add_argument("wings", nargs="+", choices=[*PAGES, "all"], metavar="WING")
    options = parser.parse_args(words[:cut])
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "tree"
        copy_tracked(root)
        for wing in PAGES if "all" in options.wings else dict.fromkeys(options.wings):
            remove_wing(root, wing)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        return subprocess.run([*command, *words[cut + 1 :]], cwd=root, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
