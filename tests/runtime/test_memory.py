import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from sbert_search.runtime.memory import let_freed_memory_stay

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        held = [np.ones(6 << 20, np.uint8) for _ in range(6)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
if sys.argv[1] == "stay":
    let_freed_memory_stay()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    """36 MiB four times over are 36,864 pages of 4 KiB."""
    counts = {}
    for kind in ("leave", "stay"):
        done = subprocess.run(
            [sys.executable, "-c", FAULTS, kind], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        counts[kind] = int(done.stdout)
    assert counts["stay"] < 100 < counts["leave"]


PIECES = """
import numpy as np
from sbert_search.runtime.memory import FreedMemory, anonymous_bytes

freed = FreedMemory()
usual = [freed.after_step() for _ in range(6)]
before, held, kept = anonymous_bytes(), [], []
for _ in range(200 + 2 * (before >> 20)):
    held.append(np.ones(1 << 20, np.uint8))
    kept.append(bytes(2000))  # outlives the step, so the free blocks do not join
del held
stays = anonymous_bytes()
given = freed.after_step()
print(any(usual), given, stays > 2 * before, anonymous_bytes() < 1.5 * before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_pieces_of_free_memory_are_given_back_when_they_have_added_up() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PIECES], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["False", "True", "True", "True"], done.stderr
