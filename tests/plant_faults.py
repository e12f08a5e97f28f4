"""Tells which of the planted faults the tests find.

``python -m tests.plant_faults [NAME ...] [--tests PATH ...]`` copies the tree to a temporary
folder, plants the faults of `planted_faults.toml` there one at a time, and runs the tests: first
those of the folder that is named as the faulty one, and all others only if these pass.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "sbert_search"
_LEFT_OUT = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", ".venv", "dist", "site")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault; its fields are those of an entry of `planted_faults.toml`."""

    name: str
    room: str
    old: str
    new: str
    why: str

    def planted(self, root: Path) -> tuple[Path, str]:
        """Return the file of the tree that has ``old``, and its text with ``new`` instead."""
        pattern = re.compile(r"\s+".join(map(re.escape, self.old.split())))
        sources = {path: path.read_text() for path in sorted((root / PACKAGE).rglob("*.py"))}
        found = [path for path, text in sources.items() for _ in pattern.finditer(text)]
        if len(found) != 1:
            raise ValueError(f"{self.name}: {len(found)} places have {self.old!r}, not 1: {found}")
        return found[0], pattern.sub(lambda _: self.new, sources[found[0]])


def read_faults() -> list[Fault]:
    """Read all faults."""
    table = tomllib.loads((ROOT / "tests" / "planted_faults.toml").read_text())
    return [Fault(**entry) for entry in table["fault"]]


def first_failure(root: Path, tests: Sequence[str]) -> str | None:
    """Run the tests up to the first that fails; return its name, or None if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if run.returncode == 0:
        return None
    if match := _FAILED.search(run.stdout):
        return match[1]
    raise RuntimeError(f"pytest ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr}")


def nearest_tests(root: Path, path: Path) -> str:
    """Return the deepest folder of tests for a file of the package, such as ``tests/index``."""
    folder = Path("tests") / path.relative_to(root / PACKAGE).parent
    while not (root / folder).is_dir():
        folder = folder.parent
    return str(folder)


def main() -> None:
    """Plant the named faults, or all of them, and print which are found."""
    faults = {fault.name: fault for fault in read_faults()}
    parser = argparse.ArgumentParser(prog="python -m tests.plant_faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to plant; all by default")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="all by default")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - faults.keys()):
        parser.error(f"no fault has the name {unknown[0]}; the names are {', '.join(faults)}")
    chosen, n_found = [faults[name] for name in options.names or faults], 0
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "tree"
        shutil.copytree(ROOT, root, ignore=_LEFT_OUT, symlinks=True)
        if failure := first_failure(root, options.tests):
            parser.exit(1, f"{failure} fails without a fault; mend it first.\n")
        for fault in chosen:
            path, text = fault.planted(root)
            sound = path.read_text()
            path.write_text(text)
            near = [] if options.tests else [nearest_tests(root, path)]
            failure = (near and first_failure(root, near)) or first_failure(root, options.tests)
            path.write_text(sound)
            n_found += failure is not None
            _say(f"{fault.name}: {f'found by {failure}' if failure else 'missed'}")
    _say(f"{n_found} of {len(chosen)} found")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
