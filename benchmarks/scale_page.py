"""The two parts of docs/scale.md, each of which has one script that writes it.

`bench_large` writes the part above the heading `COSTS`, and `scale_costs` writes the rest.
"""

from __future__ import annotations

from pathlib import Path

COSTS = "## A billion documents"


def write_sizes(page: Path, text: str) -> None:
    """Replace the part above the heading."""
    page.write_text(text + _parts(page)[1], encoding="utf-8")


def write_costs(page: Path, text: str) -> None:
    """Replace the part from the heading on."""
    page.write_text(_parts(page)[0].rstrip("\n") + f"\n\n{text}", encoding="utf-8")


def _parts(page: Path) -> tuple[str, str]:
    if not page.exists():
        return "", ""
    above, heading, rest = page.read_text(encoding="utf-8").partition(f"\n{COSTS}\n")
    return above, heading and f"\n{COSTS}\n{rest}"
