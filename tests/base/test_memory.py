import platform
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sbert_search.base import memory
from sbert_search.base.memory import FreedMemory
from sbert_search.errors import ConfigError
from tests.limits import memory_limited

FAULTS = """
import resource, sys
import numpy as np
from sbert_search.base.memory import let_freed_memory_stay

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


@pytest.mark.thorough
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
from sbert_search.base.memory import FreedMemory, anonymous_bytes

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


EARLIER = """
import numpy as np
from sbert_search.base.memory import FreedMemory, anonymous_bytes

FreedMemory()
before, held, kept = anonymous_bytes(), [], []
for _ in range(200):
    held.append(np.ones(1 << 20, np.uint8))
    kept.append(bytes(2000))  # outlives the training, so the free blocks do not join
del held
stays = anonymous_bytes()
FreedMemory()
print(stays > before + (200 << 20), anonymous_bytes() < before + (20 << 20))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_free_memory_of_an_earlier_training_is_given_back_before_the_next() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLIER], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


@pytest.mark.parametrize(("system", "n_bytes"), [("darwin", 7_000), ("freebsd", 7_000 * 1024)])
def test_without_proc_the_peak_counts(
    system: str, n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=7_000))
    assert memory.anonymous_bytes() == n_bytes


def test_without_glibc_memory_is_left_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(memory, "anonymous_bytes", iter(range(1, 1 << 40, 1 << 30)).__next__)
    freed = memory.FreedMemory()
    assert [freed.after_step() for _ in range(8)] == [False] * 8
    with memory_limited(1 << 30):
        pass


def test_a_budget_that_is_used_up_is_refused_with_the_memory_that_would_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "anonymous_bytes", lambda: 300 << 20)
    assert memory.unused() is None
    with memory_limited(1 << 20):
        assert memory.unused() == 0
    with memory_limited(1 << 30):
        assert memory.unused() == 724 << 20
        memory.require(724 << 20, "A search")
    with memory_limited(512 << 20), pytest.raises(ConfigError) as refused:
        memory.require(400 << 20, "A search")
    assert str(refused.value) == (
        "A search takes about 400 MiB, but 212 MiB of the limit of set_memory_limit are left; "
        "allow 700 MiB or more."
    )


def test_free_memory_is_kept_for_some_steps_unless_it_doubles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = 100

    class Libc:
        def mallopt(self, *_: int) -> None: ...

        def malloc_trim(self, _: int) -> None: ...

    monkeypatch.setattr(memory, "_glibc", Libc)
    monkeypatch.setattr(memory, "anonymous_bytes", lambda: held)
    freed = FreedMemory()
    assert not any(freed.after_step() for _ in range(6))
    held = 160
    assert freed.after_step()
    assert [freed.after_step() for _ in range(33)] == [False] * 31 + [True, False]
    held = 201
    assert freed.after_step()


def test_a_glibc_with_an_upper_limit_keeps_smaller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[int]()

    class Libc:
        def mallopt(self, name: int, value: int) -> int:
            if name == memory._MMAP_THRESHOLD and value > 32 << 20:
                return 0
            kept.append(name)
            return 1

        def malloc_trim(self, _: int) -> None: ...

    monkeypatch.setattr(memory, "_glibc", Libc)
    FreedMemory()
    assert kept == [memory._MMAP_THRESHOLD, memory._TRIM_THRESHOLD]
