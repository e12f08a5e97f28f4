"""Check that oneDNN's int8 products are right and fast on this CPU; round numbers to 8 bits."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from sbert_search.base.cache import typed_lru_cache
from sbert_search.errors import ConfigError

MAX_WEIGHT = 127
"""The largest weight in 8 bits.

On a CPU that clips sums of pairs (see `check_int8_product`), it is also the largest sum of the
weights of a pair before rounding. Rounding adds at most 1 to this sum, and 255 x 128 is below 2^15.
"""

# Pairs of weights that no CPU clips.
_PAIRS = ((MAX_WEIGHT, 1), (1, MAX_WEIGHT), (64, 64))
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
def check_int8_product(outputs: int, inputs: int) -> bool:
    """Refuse a product that is wrong or far too slow; return whether it clips sums of pairs.

    A CPU without VNNI instructions multiplies an input level (0 to 255) by a weight, adds the
    product of the next input and weight in 16 bits, and clips the sum. Weights 0 and 1 are such a
    pair, and 2 and 3. No sum is clipped if the weights of the same sign in a pair add up to at most
    128 in absolute value.
    """
    if not torch._C._has_mkldnn:
        raise ConfigError("precision int8 needs a torch with oneDNN; use --precision fp32.")
    clips = not _is_right(outputs, inputs, (MAX_WEIGHT, MAX_WEIGHT))
    if clips and not all(_is_right(outputs, inputs, pair) for pair in _PAIRS):
        raise ConfigError(
            f"oneDNN's int8 product of {inputs:,} x {outputs:,} is wrong on this CPU; use "
            "--precision fp32."
        )
    states, weight = torch.ones(_ROWS, inputs), torch.ones(outputs, inputs)
    product = _product(outputs, inputs, _PAIRS[0])
    in_fp32 = _fastest_seconds(lambda: F.linear(states, weight))
    limit = _SLOWEST * in_fp32 + _OVERHEAD
    seconds = _fastest_seconds(product, enough=limit)
    if seconds > limit:
        raise ConfigError(
            f"This CPU takes {seconds / in_fp32:,.0f} times as long for an int8 product of "
            f"{inputs:,} x {outputs:,} as in float32; use --precision fp32."
        )
    return clips


def fewest_rows(outputs: int) -> int:
    """Return the minimum number of rows of a product with this number of outputs.

    With fewer, the last bits of a row can differ from those of the same row in a larger product.
    """
    return max(2, _SMALL_PRODUCT // outputs + 1)


def quantize(values: Tensor, levels: tuple[float, int]) -> Tensor:
    """Round contiguous float32 to uint8: round(value / scale) + zero_point, from 0 to 255."""
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


def _is_right(outputs: int, inputs: int, pair: tuple[int, int]) -> bool:
    """Whether products of the largest levels and a repeated pair of weights are exact."""
    product = _product(outputs, inputs, pair)()
    exact = 255.0 * _weights(outputs, inputs, pair).sum(dim=1, dtype=torch.float64)
    return torch.allclose(product.double(), exact.expand(_ROWS, outputs), rtol=1e-5)


def _weights(outputs: int, inputs: int, pair: tuple[int, int]) -> Tensor:
    """Return int8 weights (outputs, inputs) of a repeated pair, negated in every second row."""
    weight = torch.tensor(pair, dtype=torch.int8).repeat(outputs, (inputs + 1) // 2)[:, :inputs]
    weight[1::2].neg_()
    return weight.contiguous()


def _product(outputs: int, inputs: int, pair: tuple[int, int]) -> Callable[[], Tensor]:
    """Return a function that multiplies the largest levels by a repeated pair of weights."""
    levels = torch.full((_ROWS, inputs), 255, dtype=torch.uint8)
    weight = _weights(outputs, inputs, pair)
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    scales, zeros = torch.ones(outputs), torch.zeros(outputs, dtype=torch.int32)

    def multiply() -> Tensor:
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, 0, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return product

    return multiply


def _fastest_seconds(work: Callable[[], object], enough: float = 0.0) -> float:
    """Return the time of the fastest of 3 to 20 runs; ``enough`` seconds end them after the 3rd."""
    # There are several runs because most of them may be interrupted on a busy machine.
    fastest = math.inf
    for number in range(_RUNS):
        start = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - start)
        if number >= _FEWEST_RUNS - 1 and fastest <= enough:
            break
    return fastest
