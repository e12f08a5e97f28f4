"""A disk on which any step can fail: for proving that a state is old or new, whatever happens."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from sbert_search.runtime.files import Disk

Fault = Literal["enospc", "eio", "kill", "short"]
FAULTS: tuple[Fault, ...] = ("enospc", "eio", "kill")


class Killed(BaseException):
    """The process ends here: nothing after this step reaches the disk, clean-up included."""


class FaultDisk(Disk):
    """A disk whose n-th step (from 1) fails; steps before and after it work.

    "kill" stops everything from that step on, after half of the bytes if it is a write. "short"
    makes a write take half of its bytes, which is no error.
    """

    def __init__(self, fail_at: int, fault: Fault) -> None:
        self.fail_at, self.fault, self.steps = fail_at, fault, 0

    @property
    def reached(self) -> bool:
        """Whether the step that fails came up."""
        return self.steps >= self.fail_at


def _failing(name: str) -> Callable[..., Any]:
    real = getattr(Disk, name)

    def step(self: FaultDisk, *arguments: Any) -> Any:
        self.steps += 1
        if self.steps < self.fail_at or (self.steps > self.fail_at and self.fault != "kill"):
            return real(self, *arguments)
        if name == "write" and self.steps == self.fail_at and self.fault in ("kill", "short"):
            half = arguments[1][: max(1, len(arguments[1]) // 2)]
            written = real(self, arguments[0], half)
            if self.fault == "short":
                return written
        if self.fault == "short":
            return real(self, *arguments)
        if self.fault == "kill":
            raise Killed(f"{name} {arguments}")
        code = errno.ENOSPC if self.fault == "enospc" else errno.EIO
        raise OSError(code, os.strerror(code), *(a for a in arguments[:1] if isinstance(a, Path)))

    return step


for _name in [name for name in vars(Disk) if not name.startswith("_")]:
    setattr(FaultDisk, _name, _failing(_name))
