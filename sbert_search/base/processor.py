"""The processor: its name, instruction sets, settings, its cores, their limits, and threads."""

from __future__ import annotations

import contextlib
import math
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sbert_search.base.cache import typed_lru_cache

_CORES = Path("/sys/devices/system/cpu")
_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_THREADS = "OMP_NUM_THREADS"


def usable_cores() -> int:
    """Count the processor cores that this process may use and has the time for."""
    return within_quota(_allowed_cores())


def within_quota(cores: int) -> int:
    """Return how many of these cores a limit of processor time, such as a container's, fills."""
    quota = cpu_quota()
    return cores if quota is None else min(cores, max(1, math.ceil(quota)))


def cpu_quota() -> float | None:
    """Return the limit of processor time, such as a container's, in cores; None: no limit."""
    quotas = []
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # of version 2 and 1
        for texts in of_control_groups("cpu", *names):
            limit, period = " ".join(texts).split()
            if limit.isdecimal():  # "max" and -1 are no limit
                quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def of_control_groups(controller: str, *names: str) -> Iterator[list[str]]:
    """Yield the texts of files of each control group that limits this process and has them all."""
    for folder in _control_groups(controller):
        with contextlib.suppress(OSError):
            yield [(folder / name).read_text(encoding="ascii") for name in names]


def _control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the groups of this process, each with those above it.

    A container sees its own group as the root; the path in `_OWN_GROUPS` may be that of the host.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError):  # not Linux
        lines = _OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = _GROUPS / controller if controllers else _GROUPS
            own = root / path.strip("/")
            yield from (each for each in (own, *own.parents) if each.is_relative_to(root))


def _allowed_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def physical_cores() -> int:
    """Count the cores that this process may use, whatever its limit of time.

    Several of one physical core (hyper-threads) count once, if known.
    """
    try:
        names = [f"cpu{number}/topology/thread_siblings_list" for number in os.sched_getaffinity(0)]
        return len({(_CORES / name).read_text(encoding="ascii") for name in names})
    except (AttributeError, OSError):
        return _allowed_cores()


def thread_count() -> int:
    """Return OMP_NUM_THREADS if it is set, otherwise the number of usable cores."""
    return requested_threads() or usable_cores()


def torch_threads() -> int:
    """Return the number of threads that torch starts; torch is not imported.

    This is OMP_NUM_THREADS, by default the usable physical cores. On x86-64, torch is built with
    MKL, which limits it to these.
    """
    requested, limit = requested_threads() or physical_cores(), physical_cores()
    return min(requested, limit) if platform.machine() in ("x86_64", "AMD64") else requested


def requested_threads() -> int:
    """Return OMP_NUM_THREADS, or 0 if the variable is not set or is no number."""
    # A list has a number for each level of nesting.
    requested = os.environ.get(_THREADS, "").partition(",")[0].strip()
    return int(requested) if requested.isdecimal() else 0


_own_threads = ""  # OMP_NUM_THREADS if `limit_threads` has set it


def limit_threads(sharers: int = 1) -> None:
    """Let torch and FAISS, if they load later, start threads for a share of the usable cores only.

    They know no limit of processor time. A number of threads that the user has set stays.
    """
    global _own_threads
    if requested_threads() and os.environ[_THREADS] != _own_threads:
        return
    if sharers > 1 or usable_cores() < physical_cores():
        _own_threads = os.environ[_THREADS] = str(max(1, usable_cores() // sharers))


# Flags of /proc/cpuinfo that decide which kernels oneDNN and torch use.
SPEED_FLAGS = (
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve"),
)
# Environment variables that can keep torch or oneDNN from using instructions of the processor.
SWITCHES = (
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS"),
    *("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"),
    *("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"),
)
_FIELDS = ("model name", "cpu family", "model", "flags", "Features")


class Cpu(NamedTuple):
    """A processor."""

    name: str
    model: str = ""  # family and model; "" and () if the system does not tell
    flags: tuple[str, ...] = ()  # instruction sets, sorted

    @property
    def title(self) -> str:
        """Name and model, such as "AMD EPYC (family 25, model 17)"."""
        return f"{self.name} ({self.model})" if self.model else self.name

    @property
    def speed_flags(self) -> tuple[str, ...]:
        """The flags in `SPEED_FLAGS` that the processor has, in the order of `SPEED_FLAGS`."""
        return tuple(flag for flag in SPEED_FLAGS if flag in self.flags)


@typed_lru_cache(maxsize=1)
def cpu() -> Cpu:
    """Describe the first processor of this machine."""
    fields = _first_processor(Path("/proc/cpuinfo"))
    numbers = {"family": fields.get("cpu family"), "model": fields.get("model")}
    return Cpu(
        fields.get("model name") or platform.processor() or platform.machine(),
        ", ".join(f"{name} {number}" for name, number in numbers.items() if number),
        tuple(sorted((fields.get("flags") or fields.get("Features") or "").split())),
    )


def switches() -> dict[str, str]:
    """Return the environment variables of `SWITCHES` that are set."""
    return {name: os.environ[name] for name in SWITCHES if os.environ.get(name)}


def _first_processor(path: Path) -> Mapping[str, str]:
    fields: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, colon, value = line.partition(":")
                if not colon and fields:
                    break
                if name.strip() in _FIELDS:
                    fields[name.strip()] = value.strip()
    except OSError:
        pass  # not Linux
    return fields
