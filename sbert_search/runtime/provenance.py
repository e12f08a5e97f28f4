"""Describe what produced a result: the machine, the code and the versions of the libraries."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import NotRequired, TypedDict

from sbert_search.runtime.processor.cores import usable_cores
from sbert_search.runtime.processor.cpu import cpu
from sbert_search.version import __version__

LIBRARIES = (
    "numpy",
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "faiss-cpu",
    "faiss-gpu",
    "pyarrow",
    "ir-measures",
    "scipy",
)


class Machine(TypedDict):
    """The description of a machine.

    ``threads`` is the number of torch's threads, and ``devices`` are the names of its CUDA devices.
    Both are absent if torch is not imported; ``devices`` is also absent if there is no CUDA device.
    """

    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    threads: NotRequired[int]
    devices: NotRequired[list[str]]


class Code(TypedDict):
    """The version of the package and, in a git checkout, the commit."""

    version: str
    commit: str | None


class MadeWith(Code):
    """The code, machine, libraries and command that made a result."""

    machine: Machine
    libraries: dict[str, str]
    command: str


def made_with() -> MadeWith:
    """Return version and commit, machine, libraries and the running command, to store as JSON."""
    return {**code(), "machine": machine(), "libraries": library_versions(), "command": command()}


def machine() -> Machine:
    """Describe the processor, the memory, the system and torch's CUDA devices."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    described: Machine = {
        "cpu": cpu().title,
        "cores": usable_cores(),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    torch = sys.modules.get("torch")  # None: torch was not imported, so no device was used
    if torch is not None:
        described["threads"] = torch.get_num_threads()
        if n_devices := torch.cuda.device_count():
            described["devices"] = [torch.cuda.get_device_name(n) for n in range(n_devices)]
    return described


def code() -> Code:
    """Return the package's version and, in a git checkout, the commit.

    The commit is followed by ``-dirty`` if a tracked file was changed.
    """
    root = Path(__file__).parents[2]
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    if commit and _git(root, "status", "--porcelain", "--untracked-files=no"):
        commit += "-dirty"
    return {"version": __version__, "commit": commit}


def command() -> str:
    """Return the running command without absolute paths, which would reveal the machine's folders.

    An absolute path after an option is shown as the option's name in capitals, any other absolute
    path as its last component, and the script as its folder's name and its own name.
    """
    script = Path(sys.argv[0])
    shown = (_without_path(before, word) for before, word in pairwise(sys.argv))
    name = f"{script.parent.name}/{script.name}" if script.is_absolute() else str(script)
    return " ".join(["python", name, *shown])


def library_versions(names: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Return the versions of those libraries in ``names`` that are installed, by name."""
    versions = {name: _installed(name) for name in names}
    return {name: number for name, number in versions.items() if number is not None}


def _without_path(before: str, word: str) -> str:
    option, equals, value = word.partition("=")
    if equals and Path(value).is_absolute():
        return f"{option}={_without_path(option, value)}"  # also for NAME=PATH without "--"
    if not Path(word).is_absolute():
        return word
    return before.lstrip("-").replace("-", "_").upper() if before[:2] == "--" else Path(word).name


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
