"""Choose a device and a precision, copy to and from devices, and measure their speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sbert_search.base.cache import typed_lru_cache
from sbert_search.base.memory import anonymous_bytes
from sbert_search.base.options import Precision as Precision
from sbert_search.base.options import device_names
from sbert_search.errors import ConfigError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(name: str = "auto") -> torch.device:
    """Return the device of a name; "auto" chooses CUDA, then MPS, then the CPU."""
    if len(device_names(name)) > 1:
        raise ConfigError(f"{name!r} names several devices; name one.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cpu" and torch.backends.mps.is_available():
            name = "mps"
    device = torch.device(name)
    present = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }
    if (device.index or 0) >= present.get(device.type, 0):
        raise ConfigError(f"There is no device {name!r} here; use auto or cpu.")
    return device


def resolve_precision(precision: Precision, device: torch.device) -> torch.dtype:
    """Choose the dtype of matrix products; "auto": bf16 on CUDA devices that have it, else fp32."""
    if precision == "auto":
        if device.type != "cuda":
            return torch.float32
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bf16 else torch.float32
    if precision not in DTYPES:
        raise ConfigError(f"precision is {precision!r}; use auto, {', '.join(DTYPES)}.")
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError("precision fp16 is slow and inexact on a CPU; use bf16 or fp32.")
    return DTYPES[precision]


def computes_on_cpu(devices: str, precision: str) -> bool:
    """Whether all devices are the CPU, and the CPU computes this precision with fast kernels."""
    found = map(resolve_device, device_names(devices))
    if any(device.type != "cpu" for device in found):
        return False
    if precision in ("fp32", "int8"):
        return True
    return precision in DTYPES and has_onednn(DTYPES[precision])


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """Return a context in which torch computes matrix products in ``dtype``; fp32 turns it off."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def to_device(tree: object, device: torch.device) -> Any:
    """Return nested dicts, lists and tuples with all their tensors on a device.

    An object of another type is moved by its method ``to``, or returned unchanged if it has none.
    """
    if isinstance(tree, Tensor):
        return tree.to(device, non_blocking=True)
    if isinstance(tree, dict):
        return {name: to_device(item, device) for name, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        moved = (to_device(item, device) for item in tree)
        return type(tree)(*moved) if hasattr(tree, "_fields") else type(tree)(moved)
    return tree.to(device) if hasattr(tree, "to") else tree


@contextmanager
def plain_memory_errors() -> Iterator[None]:
    """Turn torch's out-of-memory error into MemoryError, so that callers need not import torch."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error


def send(values: NDArray[Any], device: torch.device | str) -> Tensor:
    """Copy an array to a device; the copy to CUDA uses pinned memory and is asynchronous."""
    tensor = torch.from_numpy(values)
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def fetch(tensor: Tensor) -> Callable[[], NDArray[np.float32]]:
    """Start copying a float32 tensor to the host; the returned function waits for the copy.

    On CUDA this function waits for nothing, so the caller can start the next batch meanwhile.
    """
    if tensor.device.type != "cuda":
        values = tensor.cpu().numpy()
        return lambda: values
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    copied = torch.cuda.current_stream(tensor.device).record_event()

    def wait() -> NDArray[np.float32]:
        copied.synchronize()
        return host.numpy()

    return wait


def has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN can multiply matrices of this dtype on this CPU, with prepacked weights."""
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return dtype in (torch.float32, torch.bfloat16) and torch._C._has_mkldnn


class MatmulRate(NamedTuple):
    """Measured FLOP/s of a large matrix product with the faster kernel, torch_mm or onednn."""

    flops: float
    by: str


@typed_lru_cache(maxsize=8)
def matmul_rate(device: torch.device, dtype: torch.dtype, size: int | None = None) -> MatmulRate:
    """Measure the product of two square matrices, the fastest of six runs, for about a second.

    On a CPU, oneDNN's product with a prepacked factor is measured as well, and the faster one
    counts. ``size`` is the number of rows; None: 8192 on CUDA, 1024 elsewhere.
    """
    size = size or (8192 if device.type == "cuda" else 1024)
    factor = torch.ones(size, size, device=device, dtype=dtype)
    products: dict[str, Callable[[], Tensor]] = {"torch_mm": lambda: torch.mm(factor, factor)}
    if device.type == "cpu" and has_onednn(dtype):
        mkldnn = torch.ops.mkldnn
        packed = mkldnn._reorder_linear_weight(factor)
        products["onednn"] = lambda: mkldnn._linear_pointwise(factor, packed, None, "none", [], "")
    rates = ((2.0 * size**3 / _best_seconds(work, device), by) for by, work in products.items())
    return MatmulRate(*max(rates))


def _best_seconds(work: Callable[[], Tensor], device: torch.device) -> float:
    best = float("inf")
    for _ in range(6):  # the first run is slow: it warms up
        _synchronize(device)
        start = time.perf_counter()
        work()
        _synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best


def memory_bytes(device: torch.device) -> int:
    """Return the peak memory allocated on a CUDA device, or else the memory of this process now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return anonymous_bytes()


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
