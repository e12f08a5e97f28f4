"""Reads damaged inputs under limits of memory and time, and says on stdout how it went.

``python -m tests.fuzz.child COUNT SEED FOLDER PARSER...`` prints one JSON object for each parser.
The process runs under a limit of address space, so an input that asks for too much memory ends in
an error; one that crashes native code ends the process with a signal.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import time
import warnings
from pathlib import Path

from tests.fuzz.parsers import PARSERS, Parser

ADDRESS_SPACE = 6 << 30  # libraries and their threads reserve most of it
LONGEST_S = 5


def main() -> None:
    """Try each parser in turn; the first thing that must not happen ends it all."""
    count, seed, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    warnings.simplefilter("ignore")
    for name in sys.argv[4:]:
        report = damage(name, PARSERS[name], folder, count, seed)
        sys.stdout.write(json.dumps(report) + "\n")


def damage(name: str, parser: Parser, folder: Path, count: int, seed: str) -> dict[str, object]:
    """Read many damaged versions of one input."""
    parser.prepare(folder)
    sound = (folder / parser.file).read_bytes()
    parser.read(folder)
    refused, longest_s = 0, 0.0
    for number in range(count):
        rng = random.Random(f"{name}/{seed}/{number}")
        data = parser.mutate(sound, rng)
        if number % 1000 == 0:
            parser.prepare(folder)  # what an accepted input may have changed
        write(folder / parser.file, data)
        begun = time.monotonic()
        signal.alarm(LONGEST_S)
        try:
            parser.read(folder)
        except parser.refuses:
            refused += 1
        except BaseException:
            sys.stderr.write(f"{name}: input {number} of seed {seed}: {data[:2000]!r}\n")
            raise
        signal.alarm(0)
        longest_s = max(longest_s, time.monotonic() - begun)
    return {
        "parser": name,
        "inputs": count,
        "refused": refused,
        "longest_s": round(longest_s, 2),
        "rss_mib": round(peak_mib()),
    }


def peak_mib() -> float:
    """The most memory that this program had at once; ``ru_maxrss`` holds its parent's too."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS counts bytes
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 1024


def write(path: Path, data: bytes) -> None:
    """Write under a new inode: what is mapped of the old one stays as it is."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


if __name__ == "__main__":
    main()
