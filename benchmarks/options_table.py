"""Write the table in docs/guides/search-options.md that tells what the options of a search cost.

    python benchmarks/options_table.py

The figures are those of the newest result file of `bench_options` in benchmarks/results/.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guides" / "search-options.md"
HEAD = "| search | with the option, ms | without, ms | ratio | range of the ratio |"


def table() -> list[str]:
    """Return the lines of the table."""
    record = json.loads(newest().read_text(encoding="utf-8"))
    lines = [HEAD, "|---|---:|---:|---:|---|"]
    for name, figure in record["figures"].items():
        repeats = record["repeats"][name]
        ratios = [ours / peer for ours, peer in zip(*repeats.values(), strict=True)]
        lines.append(
            f"| {name} | {figure['value']:.2f} | {figure['peer']:.2f} | {figure['ratio']:.2f} | "
            f"{min(ratios):.2f} to {max(ratios):.2f} |"
        )
    return lines


def newest() -> Path:
    """Return the newest result file by the date in its name; a full run goes before a quick one."""
    files = (ROOT / "benchmarks/results").glob("bench_options_*.json")
    return max(files, key=lambda file: (file.stem[-10:], "_quick_" not in file.stem))


if __name__ == "__main__":
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index(HEAD)
    last = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    lines[first:last] = table()
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
