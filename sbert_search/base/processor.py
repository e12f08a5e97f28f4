"""The processor: its name, instruction sets, settings, and its cores and threads."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sbert_search.base.cache import typed_lru_cache

_CORES = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Count the processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def physical_cores() -> int:
    """Count the usable cores; several of one physical core (hyper-threads) count once, if known."""
    try:
        names = [f"cpu{number}/topology/thread_siblings_list" for number in os.sched_getaffinity(0)]
        return len({(_CORES / name).read_text(encoding="ascii") for name in names})
    except (AttributeError, OSError):
        return usable_cores()


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
    requested = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(requested) if requested.isdecimal() else 0


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
