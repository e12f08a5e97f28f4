"""What may happen to an index folder: it is moved, replaced, linked or emptied by somebody."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SUB_FOLDERS = ("seg", "del", "ann", "lex")


@dataclass
class Yard:
    """Folders side by side.

    Attributes:
        live: The index that commands are given.
        foreign: An index of somebody else, which nothing may change.
        private: Files of somebody else, which nothing may change.
        backup: A copy of ``live`` from before, which nothing may change.
        spare: Where what is taken away goes.
        real: Where the index is that was ``live`` at first; None once it was removed.
        others: Indexes that took its place, and what each is a copy of.
    """

    root: Path

    def __post_init__(self) -> None:
        self.live, self.foreign = self.root / "live", self.root / "foreign"
        self.private, self.backup = self.root / "private", self.root / "backup"
        self.spare = self.root / "spare"
        self.real: Path | None = self.live
        self.others: dict[Path, Path] = {}
        self.undo: Callable[[], object] = lambda: None
        self.rolled_back = False  # whether the backup's state was brought back into the index

    def away(self, name: str) -> Path:
        """Move something out of the index, if it is there."""
        self.spare.mkdir(exist_ok=True)
        target = self.spare / name.replace("/", "-")
        with contextlib.suppress(FileNotFoundError):
            (self.live / name).rename(target)
        return target

    def untouchable(self) -> dict[str, str]:
        """Hash everything that nothing may change."""
        return {
            str(path.relative_to(self.root)): digest(path)
            for folder in (self.foreign, self.private, self.backup)
            for path in sorted(folder.rglob("*"))
        }


def digest(path: Path) -> str:
    """Hash a file; a folder is its kind."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"


Happening = Callable[[Yard], None]


def moved(yard: Yard) -> None:
    yard.spare.mkdir(exist_ok=True)
    yard.real = yard.spare / "live"
    yard.live.rename(yard.real)


def removed(yard: Yard) -> None:
    shutil.rmtree(yard.live)
    yard.real = None


def restored_from_backup(yard: Yard) -> None:
    moved(yard)
    shutil.copytree(yard.backup, yard.live)
    yard.others[yard.live] = yard.backup


def replaced_by_another_index(yard: Yard) -> None:
    moved(yard)
    shutil.copytree(yard.foreign, yard.live)
    yard.others[yard.live] = yard.foreign


def linked_to_a_copy(yard: Yard) -> None:
    moved(yard)
    shutil.copytree(yard.backup, yard.root / "copy")
    yard.live.symlink_to(yard.root / "copy")
    yard.others[yard.root / "copy"] = yard.backup


def swapped_twice(yard: Yard) -> None:
    restored_from_backup(yard)
    yard.live.rename(yard.root / "copy")
    yard.others = {yard.root / "copy": yard.backup}
    assert yard.real is not None
    yard.real.rename(yard.live)
    yard.real = yard.live


def _put_back(yard: Yard, name: str, kept: Path) -> Callable[[], None]:
    """Take what was planted away again, and move what was there back."""

    def undo() -> None:
        if yard.real is None or not kept.exists():
            return
        there = yard.real / name
        if there.is_symlink() or not there.is_dir():
            there.unlink(missing_ok=True)
        else:
            shutil.rmtree(there)
        kept.rename(there)

    return undo


def _sub_folder(name: str, kind: str) -> Happening:
    def happen(yard: Yard) -> None:
        kept = yard.away(name)
        if kind == "linked":
            (yard.live / name).symlink_to(yard.foreign / name)
        elif kind == "replaced":
            shutil.copytree(yard.foreign / name, yard.live / name)
        elif kind == "emptied":
            (yard.live / name).mkdir()
        yard.undo = _put_back(yard, name, kept)

    return happen


def _lock(kind: str) -> Happening:
    def happen(yard: Yard) -> None:
        lock = yard.live / "LOCK"
        lock.unlink(missing_ok=True)
        if kind == "linked":
            lock.symlink_to(yard.private / "note")
        elif kind == "hard_linked":
            os.link(yard.private / "note", lock)
        elif kind == "replaced":
            lock.write_bytes(b"")
        elif kind == "a_folder":
            lock.mkdir()

        def undo() -> None:
            if lock.is_dir():
                lock.rmdir()
            else:
                lock.unlink(missing_ok=True)

        yard.undo = undo

    return happen


def _manifest(kind: str) -> Happening:
    def happen(yard: Yard) -> None:
        manifest = yard.live / "MANIFEST.json"
        before = manifest.read_bytes() if manifest.exists() else None
        planted = b""
        manifest.unlink(missing_ok=True)
        if kind == "linked":
            manifest.symlink_to(yard.foreign / "MANIFEST.json")
        elif kind == "cut":
            planted = (before or b"")[:40]
            manifest.write_bytes(planted)

        def undo() -> None:
            ours = manifest.is_file() and not manifest.is_symlink()
            if before is not None and not (ours and manifest.read_bytes() != planted):
                manifest.unlink(missing_ok=True)
                manifest.write_bytes(before)

        yard.undo = undo

    return happen


def manifest_restored(yard: Yard) -> None:
    """Bring an older state back, and in the end what was removed of it before that."""
    (yard.live / "MANIFEST.json").unlink(missing_ok=True)
    shutil.copy(yard.backup / "MANIFEST.json", yard.live / "MANIFEST.json")
    yard.rolled_back = True

    def undo() -> None:
        for file in yard.backup.glob("*/*"):
            place = yard.live / file.relative_to(yard.backup)
            if not place.exists():
                shutil.copy(file, place)

    yard.undo = undo


def _planted(names: tuple[str, ...], kind: str) -> Happening:
    """Put links or folders where the next files of a commit go."""

    def happen(yard: Yard) -> None:
        made = []
        for name in names:
            place = yard.live / name
            if os.path.lexists(place):
                continue
            if kind == "links":
                place.symlink_to(yard.private / "note")
            elif kind == "hard_links":
                os.link(yard.private / "note", place)
            else:
                place.mkdir()
            made.append(place)

        def undo() -> None:
            for place in made:
                if place.is_dir() and not place.is_symlink():
                    place.rmdir()

        yard.undo = undo

    return happen


def a_file_linked(yard: Yard) -> None:
    """Let a file of the state be a link to one of somebody else, under the same name."""
    name = min(p.relative_to(yard.foreign).as_posix() for p in yard.foreign.glob("seg/*.vec.npy"))
    kept = yard.away(name)
    (yard.live / name).symlink_to(yard.foreign / name)
    yard.undo = _put_back(yard, name, kept)


NEXT = tuple(
    f"{name}"
    for number in range(4, 60)
    for name in (
        f"seg/{number:06d}.docs.arrow",
        f"del/{number:06d}.npy",
        f"lex/{number:06d}.pairs.npy",
    )
)

HAPPENINGS: dict[str, Happening] = {
    "moved": moved,
    "removed": removed,
    "restored_from_backup": restored_from_backup,
    "replaced_by_another_index": replaced_by_another_index,
    "linked_to_a_copy": linked_to_a_copy,
    "swapped_twice": swapped_twice,
    **{
        f"{name}_{kind}": _sub_folder(name, kind)
        for name in SUB_FOLDERS
        for kind in ("linked", "replaced", "emptied", "gone")
    },
    **{
        f"lock_{kind}": _lock(kind)
        for kind in ("gone", "linked", "hard_linked", "replaced", "a_folder")
    },
    **{f"manifest_{kind}": _manifest(kind) for kind in ("gone", "linked", "cut")},
    **{
        f"{kind}_planted": _planted((*NEXT, "MANIFEST.json.tmp"), kind)
        for kind in ("links", "hard_links", "folders")
    },
    "a_file_linked": a_file_linked,
    "manifest_restored": manifest_restored,
}
