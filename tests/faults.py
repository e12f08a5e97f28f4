"""Faults for whatever writes through `base/files.py`, and where full runs keep figures.

`every_step` runs a piece of work again and again, failing its first I/O step, then its second, and
so on until a run ends without reaching the step: the method of SQLite's I/O error tests
(sqlite.org/testing.html, section 3.2).
"""

from __future__ import annotations

import errno
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from sbert_search.base import files
from sbert_search.base.files import Disk
from sbert_search.base.folders import Entry
from sbert_search.base.machine import Code, code, machine

FULL = os.environ.get("FAULT_SCALE", "ci") == "full"
RESULTS = Path(__file__).parent / "results"

Fault = Literal["kill", "enospc", "eio", "short"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
GROWING = {"open_new", "open_append", "write", "make_folder", "link"}  # what a full disk refuses


class Killed(BaseException):
    """The process ends here: nothing after this step reaches the disk, clean-up included."""


class FaultDisk(Disk):
    """A disk whose n-th step (from 1) goes wrong.

    Args:
        fail_at: Which step.
        fault: ``kill``: nothing happens from this step on, which is half done if it is a write.
            ``enospc``: from this step on nothing grows. ``eio``: this step alone fails. ``short``:
            a write takes half of its bytes, which is no error, and from then on nothing grows.
    """

    def __init__(self, fail_at: int, fault: Fault) -> None:
        self.fail_at, self.fault, self.steps = fail_at, fault, 0
        self.full = False

    @property
    def reached(self) -> bool:
        """Whether the step that goes wrong came up."""
        return self.steps >= self.fail_at


def _failing(name: str) -> Callable[..., Any]:
    real = getattr(Disk, name)

    def step(self: FaultDisk, *arguments: Any) -> Any:
        self.steps += 1
        now = self.steps == self.fail_at
        if self.fault == "kill" and self.reached:
            if now and name == "write":
                _half(real, self, *arguments)
            raise Killed(f"{name} {arguments}")
        if now and self.fault == "eio":
            raise _error(errno.EIO, arguments)
        if now and self.fault == "short" and name == "write":
            self.full = True
            return _half(real, self, *arguments)
        self.full |= now and self.fault == "enospc"
        if self.full and name in GROWING:
            raise _error(errno.ENOSPC, arguments)
        return real(self, *arguments)

    return step


def _half(write: Callable[..., int], disk: Disk, fd: int, data: memoryview) -> int:
    return write(disk, fd, data[: max(1, len(data) // 2)])


def _error(number: int, arguments: tuple[Any, ...]) -> OSError:
    return OSError(
        number, os.strerror(number), *(str(a) for a in arguments[:1] if isinstance(a, Path | Entry))
    )


for _name in [name for name in vars(Disk) if not name.startswith("_")]:
    setattr(FaultDisk, _name, _failing(_name))


def every_step(
    fault: Fault,
    prepare: Callable[[], object],
    work: Callable[[], object],
    stride: int = 1,
) -> Iterator[BaseException | None]:
    """Fail each step of some work in turn, yielding what each failing run raised.

    Args:
        fault: What goes wrong.
        prepare: Makes the state that the work starts from; runs on a sound disk.
        work: What is tried.
        stride: Steps from one that fails to the next that does.
    """
    for fail_at in range(1, 10_000, stride):
        prepare()
        disk = FaultDisk(fail_at, fault)
        raised: BaseException | None = None
        with files.use_disk(disk):
            try:
                work()
            except (Killed, Exception) as error:
                raised = error
        if not disk.reached:
            assert raised is None
            return
        yield raised


@functools.cache
def _code() -> Code:
    """Read the commit once: the first result kept changes the checkout."""
    return code()


def keep_result(name: str, figures: Mapping[str, Any]) -> None:
    """Write the figures of a full-scale run to ``tests/results``; does nothing at CI scale."""
    if not FULL:
        return
    command = "FAULT_SCALE=full python -m pytest " + " ".join(sys.argv[1:])
    result = {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "figures": figures,
        "machine": machine(),
        "code": _code(),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
