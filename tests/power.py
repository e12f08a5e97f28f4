"""What a disk may hold after the power went: a recorded run, cut and replayed.

Source of the model: Pillai et al. 2014, All file systems are not created equal, section 3. A change
of a folder (a name made, moved or removed) is certain once the folder was fsynced; until then
each may be on the disk or not, whatever became of the others. The bytes of a file are certain once
it was fsynced; until then all, half or none of them may be there.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sbert_search.base.files import Disk
from sbert_search.base.folders import AnyFolder, Place

MAX_SUBSETS = 128  # of uncertain changes at one point; more are drawn at random

State = dict[Path, bytes]


@dataclass(eq=False)
class File:
    """Bytes written, and how many of them are certain."""

    data: bytearray = field(default_factory=bytearray)
    certain: int = 0

    def lengths(self) -> tuple[int, int, int]:
        """How long it may be when the power comes back: all there, half of the rest, none."""
        return len(self.data), (len(self.data) + self.certain) // 2, self.certain


@dataclass(frozen=True)
class Change:
    """A name that appears with a file, or disappears; a rename is both at once."""

    folder: Path
    made: tuple[Path, File] | None
    gone: Path | None


class RecordingDisk(Disk):
    """A disk that keeps what the loss of power could leave after each of its steps.

    Args:
        root: Where the recorded work writes; what is there already is certain.
        rng: Draws among too many sets of changes.

    Attributes:
        states: What could be left at some time.
        last: What could be left after the last step.
    """

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.rng = rng
        there = [path for path in root.rglob("*") if path.is_file()]
        self.certain = {p: File(bytearray(p.read_bytes()), p.stat().st_size) for p in there}
        self.names = dict(self.certain)
        self.uncertain: list[Change] = []
        self.open: dict[int, File] = {}
        self.states: dict[frozenset[tuple[Path, File, int]], State] = {}
        self.last: set[frozenset[tuple[Path, File, int]]] = set()
        self._look()

    def open_new(self, place: Place) -> int:
        fd, path = super().open_new(place), path_of(place)
        self.open[fd] = File()
        self._change(Change(path.parent, (path, self.open[fd]), None))
        return fd

    def write(self, fd: int, data: memoryview) -> int:
        done = super().write(fd, data)
        self.open[fd].data += data[:done]
        self._look()
        return done

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        self.open[fd].certain = len(self.open[fd].data)
        self._look()

    def fsync_folder(self, place: AnyFolder) -> None:
        super().fsync_folder(place)
        path = path_of(place)
        for change in self.uncertain:
            if change.folder == path:
                _apply(self.certain, change)
        self.uncertain = [change for change in self.uncertain if change.folder != path]
        self._look()

    def replace(self, source: Place, target: Place) -> None:
        super().replace(source, target)
        old, new = path_of(source), path_of(target)
        self._change(Change(new.parent, (new, self.names[old]), old))

    def unlink(self, place: Place) -> None:
        super().unlink(place)
        path = path_of(place)
        self._change(Change(path.parent, None, path))

    def _change(self, change: Change) -> None:
        _apply(self.names, change)
        self.uncertain.append(change)
        self._look()

    def _look(self) -> None:
        """Keep every set of files that would be there if the power went now."""
        self.last = set()
        for changes in _subsets(self.uncertain, self.rng):
            names = dict(self.certain)
            for change in changes:
                _apply(names, change)
            for left in range(3):
                key = frozenset((p, file, file.lengths()[left]) for p, file in names.items())
                self.last.add(key)
                if key not in self.states:
                    self.states[key] = {p: bytes(file.data[:size]) for p, file, size in key}


def path_of(place: AnyFolder) -> Path:
    """Where something was when its folder was opened."""
    return place if isinstance(place, Path) else place.path


def restore(state: State, root: Path, target: Path) -> None:
    """Write what is left of ``root`` below another folder, over whatever is there."""
    for path in target.rglob("*"):
        if path.is_file():
            path.unlink()
    for path, data in state.items():
        (target / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        (target / path.relative_to(root)).write_bytes(data)


def _subsets(changes: Sequence[Change], rng: random.Random) -> Iterator[Sequence[Change]]:
    if 2 ** len(changes) <= MAX_SUBSETS:
        for size in range(len(changes) + 1):
            yield from itertools.combinations(changes, size)
        return
    yield ()
    yield changes
    for _ in range(MAX_SUBSETS - 2):
        yield [change for change in changes if rng.random() < 0.5]


def _apply(names: dict[Path, File], change: Change) -> None:
    if change.gone:
        names.pop(change.gone, None)
    if change.made:
        names[change.made[0]] = change.made[1]
