"""Check that oneDNN's int8 products are right and fast on this CPU; round numbers to 8 bits."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from sbert_search.errors import ConfigError
from sbert_search.runtime.lru import typed_lru_cache

_FULL = 127  # the largest weight in 8 bits
# Without VNNI instructions, a CPU adds two products of an input level (0 to 255) and a weight in
# 16 bits and clips the sum. With weights up to 63, no sum is clipped: 2 x 255 x 63 < 2^15.
_NARROW = 63
_ROWS = 16  # number of rows of the products that are checked and timed
# int8 is refused if a product takes more than `_SLOWEST` times as long as in float32, plus
# `_OVERHEAD` seconds. If oneDNN has no fast kernel for the CPU, it uses a reference kernel, which
# takes about 1,000 times as long.
_SLOWEST, _OVERHEAD = 8.0, 1e-3
_FEWEST_RUNS, _RUNS = 3, 20
# On a CPU with AMX, oneDNN 3.12 does not use AMX for products whose result has at most this number
# of elements, and for some products of one row. Their last bits differ from those of AMX.
_SMALL_PRODUCT = 256


@typed_lru_cache(maxsize=256)
def most_weight(outputs: int, inputs: int) -> int:
    """Return the largest int8 weight with which products of this shape are right on this CPU.

    Returns:
        127; or 63 on a CPU without VNNI instructions.

    Raises:
        ConfigError: oneDNN is missing, or its product is wrong, or it takes many times as long as
            in float32.
    """
    if not torch._C._has_mkldnn:
        raise ConfigError("precision int8 needs a torch with oneDNN; use --precision fp32.")
    right = [most for most in (_FULL, _NARROW) if _is_right(outputs, inputs, most)]
    if not right:
        raise ConfigError(
            f"oneDNN's int8 product of {inputs:,} x {outputs:,} is wrong on this CPU; use "
            "--precision fp32."
        )
    states, weight = torch.ones(_ROWS, inputs), torch.ones(outputs, inputs)
    product = _product(outputs, inputs, right[0])
    in_fp32 = _fastest_seconds(lambda: F.linear(states, weight))
    limit = _SLOWEST * in_fp32 + _OVERHEAD
    seconds = _fastest_seconds(product, enough=limit)
    if seconds > limit:
        raise ConfigError(
            f"This CPU takes {seconds / in_fp32:,.0f} times as long for an int8 product of "
            f"{inputs:,} x {outputs:,} as in float32; use --precision fp32."
        )
    return right[0]


def fewest_rows(outputs: int) -> int:
    """Return the minimum number of rows of a product with this number of outputs.

    In a product of fewer rows, the last bits of a row can differ from those of the same row in a
    larger product.
    """
    return max(2, _SMALL_PRODUCT // outputs + 1)


def quantize(values: Tensor, levels: tuple[float, int]) -> Tensor:
    """Round numbers to levels, uint8 of the same shape; numbers beyond the levels are clipped.

    Args:
        values: Float32, contiguous.
        levels: Scale and zero point: level = round(value / scale) + zero_point.
    """
    scale, zero_point = levels
    if not hasattr(torch, "quantize_per_tensor"):  # torch announces that it will be removed
        return values.mul(1 / scale).round_().add_(zero_point).clamp_(0, 255).to(torch.uint8)
    _silence_deprecation()
    rounded = torch.quantize_per_tensor(values, scale, zero_point, torch.quint8)
    # The result shares the memory of `rounded`; `rounded.int_repr()` would make a slow copy.
    return torch.empty(0, dtype=torch.uint8).set_(
        rounded.untyped_storage(), 0, rounded.shape, rounded.stride()
    )


@typed_lru_cache(maxsize=1)
def _silence_deprecation() -> None:
    """Trigger torch's warning about quantized tensors, which comes only once, and hide it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.quint8)


def _is_right(outputs: int, inputs: int, most: int) -> bool:
    """Whether a product of the largest levels and weights equals the exact result."""
    exact = torch.full((_ROWS, outputs), 255.0 * most * inputs)
    return torch.allclose(_product(outputs, inputs, most)(), exact, rtol=1e-5)


def _product(outputs: int, inputs: int, most: int) -> Callable[[], Tensor]:
    """Return a function that multiplies the largest levels by the largest weights."""
    levels = torch.full((_ROWS, inputs), 255, dtype=torch.uint8)
    weight = torch.full((outputs, inputs), most, dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    scales, zeros = torch.ones(outputs), torch.zeros(outputs, dtype=torch.int32)

    def multiply() -> Tensor:
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, 0, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return product

    return multiply


def _fastest_seconds(work: Callable[[], object], enough: float = 0.0) -> float:
    """Return the time of the fastest of 3 to 20 runs.

    There are several runs because most of them may be interrupted on a busy machine.

    Args:
        work: Function to time.
        enough: Number of seconds. After 3 or more runs, no further run is made if the fastest run
            took at most this time.
    """
    fastest = math.inf
    for number in range(_RUNS):
        start = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - start)
        if number >= _FEWEST_RUNS - 1 and fastest <= enough:
            break
    return fastest
