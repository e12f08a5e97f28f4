"""Compare what two commits do, bit for bit, on one machine.

    python benchmarks/compare_commits.py BASE [HEAD] [--data DATA] [--quick] [--parts PART ...]

Both commits are checked out into temporary folders. `probe.py` of HEAD runs in each, on one thread
and in fp32, and each difference of its values is printed. The exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from common import checked_out
from probe import PARTS

SHOWN = 8  # differences that are printed of each group, such as the rankings of one mode
WIDTH = 300  # characters of a value that are printed
ABSENT = "(absent)"


def probed(tree: Path, script: Path, work: Path, options: Sequence[str]) -> dict[str, object]:
    """Run the probe in a tree, in a process of its own with one thread, and read what it wrote."""
    work.mkdir()
    out = work.with_suffix(".json")
    one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")}
    own = {key: value for key, value in os.environ.items() if not key.startswith("SBERT_SEARCH_")}
    setting = own | one_thread | {"PYTHONPATH": str(tree), "COLUMNS": "100"}
    setting |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}
    command = [sys.executable, str(script), "--tree", str(tree), "--out", str(out), *options]
    subprocess.run(command, cwd=work, env=setting, check=True)
    facts: dict[str, object] = json.loads(out.read_text(encoding="utf-8"))
    return facts


def differences(base: Mapping[str, object], head: Mapping[str, object]) -> list[str]:
    """The names whose values differ, in the order of the probe."""
    names = dict.fromkeys([*base, *head])
    return [name for name in names if base.get(name, ABSENT) != head.get(name, ABSENT)]


def report(base: Mapping[str, object], head: Mapping[str, object]) -> Iterator[str]:
    """The lines that tell the differences, some of each group."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in differences(base, head):
        groups[name.rpartition("/")[0]].append(name)
    for group, names in groups.items():
        yield f"{group or names[0]}: {len(names)} differ"
        for name in names[:SHOWN]:
            yield f"  {name}"
            yield from (
                f"    {which} {str(facts.get(name, ABSENT))[:WIDTH]}"
                for which, facts in (("base", base), ("head", head))
            )
        if len(names) > SHOWN:
            yield f"  and {len(names) - SHOWN} more"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", help="commit to compare with")
    parser.add_argument("head", nargs="?", default="HEAD", help="commit to judge; default: HEAD")
    parser.add_argument("--data", type=Path, help="folder with scifact, cranfield and stsb")
    parser.add_argument("--quick", action="store_true", help="200 documents, 3 steps")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, help="folder for the values of both commits")
    options = parser.parse_args()
    passed = ["--quick"] * options.quick + ["--parts", *options.parts]
    passed += ["--data", str(options.data.resolve())] if options.data else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with (
            checked_out(options.base, folder / "base") as base,
            checked_out(options.head, folder / "head") as head,
        ):
            script = head / "benchmarks" / "probe.py"
            before = probed(base, script, folder / "work-base", passed)
            after = probed(head, script, folder / "work-head", passed)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        for name, facts in (("base", before), ("head", after)):
            text = json.dumps(facts, indent=1) + "\n"
            (options.out / f"{name}.json").write_text(text, encoding="utf-8")
    print("\n".join(report(before, after)))
    count = len(differences(before, after))
    print(f"{count} of {len({**before, **after})} values differ.")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
