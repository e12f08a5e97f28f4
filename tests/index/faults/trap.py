"""Something that happens to an index folder while a command works on it, at a chosen step.

A step is any access below an opened folder or any call of a `Disk` method, so what happens can come
between any two of them, in one process and the same way each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sbert_search.base import files
from sbert_search.base.files import Disk
from sbert_search.base.folders import Folder


class Trap(Disk):
    """A disk that counts steps, and does something once, before the n-th of them (from 1).

    Attributes:
        steps: So far.
        sprung: Whether it has happened.
    """

    def __init__(self, at_step: int, happening: Callable[[], object]) -> None:
        self._at_step, self._happening = at_step, happening
        self.steps, self.sprung = 0, False

    def step(self) -> None:
        """Count one step."""
        self.steps += 1
        if self.steps == self._at_step:
            self.sprung = True
            self._happening()


def _counting(name: str) -> Callable[..., Any]:
    real = getattr(Disk, name)

    def counted(self: Trap, *arguments: Any) -> Any:
        self.step()
        return real(self, *arguments)

    return counted


for _name in [name for name in vars(Disk) if not name.startswith("_")]:
    setattr(Trap, _name, _counting(_name))


@contextlib.contextmanager
def set_trap(trap: Trap) -> Iterator[None]:
    """Send every access through a trap."""
    real = Folder.parent_of

    @contextlib.contextmanager
    def parent_of(folder: Folder, name: str) -> Iterator[tuple[int, str]]:
        trap.step()
        with real(folder, name) as at:
            yield at

    with pytest.MonkeyPatch.context() as patch, files.use_disk(trap):
        patch.setattr(Folder, "parent_of", parent_of)
        yield
