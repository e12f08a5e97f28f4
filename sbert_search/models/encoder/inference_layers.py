"""Faster linear layers for encoders that are used for inference only, also in int8 on a CPU.

On a CPU, the weights are converted once to oneDNN's blocked memory layout, and oneDNN computes bias
and activation in the same pass as the product. On CUDA, cuBLASLt computes product, bias and
activation in one pass. Weights in this layout can neither be trained nor saved.

The weights of a layer have one scale for each output channel. Its inputs have one scale and one
zero point, which a calibration fixes before the first text is encoded, so the states of a text do
not depend on the other texts of a batch. oneDNN computes the product, the bias, the activation and,
between the two feed-forward layers, the rounding of the output to 8 bits in one pass. Int8
does not change the other operations of the encoder: layer norms, attention, residuals and pooling.

If one channel had much larger inputs than the others, few of the 256 levels would be left for the
others. Each input channel is therefore divided by a factor, and its weights are multiplied by the
same factor.

Sources: Jacob et al. 2018, section 2 (arXiv:1712.05877); Xiao et al. 2023, SmoothQuant, section 4
(arXiv:2211.10438). docs/decisions.md: "int8 with scales fixed by a calibration".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.base.device import has_onednn
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Block, Encoder
from sbert_search.models.encoder.int8_kernels import (
    MAX_WEIGHT,
    check_int8_product,
    fewest_rows,
    quantize,
)

# oneDNN's name and variant of each activation in its fused linear layer.
FUSED = {"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}
_WIDE = 768  # fewest outputs of a layer that torch computes faster than oneDNN on AVX2
# On up to two threads, rows of products of at least so many rows have equal bits, whatever the
# other rows are. On more threads, more rows would be needed.
_FEWEST_ROWS, _MOST_THREADS = 16, 2


class PackedLinear(nn.Module):
    """A linear layer with an optional activation, with weights in oneDNN's memory layout."""

    def __init__(self, linear: nn.Linear, activation: str | None = None) -> None:
        super().__init__()
        weight = linear.weight.detach()
        on_avx2 = torch.backends.cpu.get_cpu_capability() == "AVX2"
        on_avx2 &= weight.dtype == torch.float32
        # Without AVX-512, torch's product (MKL's) is faster for wide inputs: docs/performance.md.
        self._plain = on_avx2 and activation is None and torch.get_num_threads() <= _MOST_THREADS
        self._plain &= weight.shape[1] >= weight.shape[0] >= _WIDE
        self._weight = weight if self._plain else torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = None if linear.bias is None else linear.bias.detach()
        # Without AVX-512, oneDNN's exact GELU takes longer than torch's, which has equal results.
        self._gelu_apart = activation == "gelu" and on_avx2
        fuses = activation and not self._gelu_apart
        self._fused, self._variant = FUSED[str(activation)] if fuses else ("none", "")

    def forward(self, states: Tensor) -> Tensor:
        """Transform (rows, inputs) to (rows, outputs), without gradients."""
        if self._plain:
            rows = len(states)
            if rows < _FEWEST_ROWS:
                states = F.pad(states, (0, 0, 0, _FEWEST_ROWS - rows))
            return F.linear(states, self._weight, self._bias)[:rows]
        outputs = torch.ops.mkldnn._linear_pointwise(
            states, self._weight, self._bias, self._fused, [], self._variant
        )
        if self._gelu_apart:
            torch.ops.aten.gelu_(outputs)
        return cast(Tensor, outputs)


class FusedLinear(nn.Module):
    """A linear layer and its activation in one pass of cuBLASLt, for half precision.

    cuBLASLt has only the tanh approximation of GELU. This layer uses the approximation also for
    models with the exact GELU, as torch's `TransformerEncoderLayer` does in its fast path. With
    all-MiniLM-L6-v2, the cosine between an embedding with the exact GELU and the same embedding
    with the approximation is 1 - 2e-6. Half precision changes an embedding more: its cosine with
    the embedding in fp32 is 1 - 1e-4.
    """

    def __init__(self, linear: nn.Linear, activation: str) -> None:
        super().__init__()
        self._linear, self._gelu = linear, activation != "relu"

    def forward(self, states: Tensor) -> Tensor:
        """Transform (rows, inputs) to (rows, outputs), without gradients."""
        weight, bias = self._linear.weight, self._linear.bias
        return torch._addmm_activation(bias, states, weight.t(), use_gelu=self._gelu)


def freeze(encoder: Encoder) -> Encoder:
    """Replace linear layers of an encoder by faster ones for its device and dtype, in place.

    The encoder is also set to evaluation mode, and its gradients are turned off. If there is no
    faster layer (mps, float32 on CUDA, types that oneDNN does not support on a CPU), nothing else
    is changed. An encoder with replaced layers can no longer be trained, moved or saved.
    """
    encoder.eval().requires_grad_(False)
    weight = encoder.embeddings.word.weight
    on_cuda = _has_cublaslt(weight)
    if not on_cuda and (weight.device.type != "cpu" or not has_onednn(weight.dtype)):
        return encoder
    encoder.frozen = True
    for block in cast(list[Block], encoder.blocks):
        if not on_cuda:
            pack(block, encoder.config)
        elif not encoder.config.gated:
            block.add_module("up", FusedLinear(block.up, encoder.config.activation))
            block.activation = nn.Identity()
    return encoder


def pack(block: Block, config: EncoderConfig) -> Block:
    """Convert the weights of one block on a CPU to oneDNN's layout, in place."""
    if config.gated:  # the gate comes between product and activation
        _pack(block, "up")
    else:
        block.add_module("up", PackedLinear(block.up, config.activation))
        block.activation = nn.Identity()
    _pack(block, "down")
    _pack(block.attention, "qkv")
    _pack(block.attention, "output")
    return block


def _pack(parent: nn.Module, name: str) -> None:
    parent.add_module(name, PackedLinear(cast(nn.Linear, getattr(parent, name))))


def _has_cublaslt(weight: Tensor) -> bool:
    return weight.is_cuda and weight.dtype != torch.float32


# Inputs within the calibrated range get the levels 1 to 254. A level of 0 or 255 then shows that a
# value was beyond the range. Reserving these two levels costs 1 % of the resolution.
_LOWEST, _HIGHEST = 1, 254
# The factor of a channel is input**_SMOOTHING / weight**(1 - _SMOOTHING). Here, input is the
# largest absolute input of the channel, and weight its largest absolute weight. Each of the two
# counts as at least _LEAST times its maximum over the channels.
_SMOOTHING, _LEAST = 0.6, 1e-4
_TINY = 1e-30  # keeps divisors above 0


class ChannelRange(NamedTuple):
    """The inputs of a linear layer in a calibration, by channel; each is float32 (in_features,)."""

    low: Tensor
    high: Tensor
    mean: Tensor


class Levels(NamedTuple):
    """A mapping of numbers to 8-bit levels: level = round(number / scale) + zero_point."""

    scale: float
    zero_point: int

    @classmethod
    def of_range(cls, low: float, high: float) -> Levels:
        """Choose scale and zero point so that the range, and 0, map to the levels 1 to 254."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / (_HIGHEST - _LOWEST) or 1.0
        return cls(scale, _LOWEST + round(-low / scale))


class RangeCounter:
    """Counts the input values of int8 layers, and how many of them exceed the calibrated range."""

    def __init__(self) -> None:
        # Values beyond the range were rounded to its limits.
        self.values = self.beyond = 0
        self._lock = threading.Lock()

    def count(self, levels: Tensor) -> None:
        """Count the rounded inputs of one product, uint8 of any shape."""
        beyond = 0
        if levels.numel() and (levels.amax() > _HIGHEST or levels.amin() < _LOWEST):
            array = levels.numpy()
            beyond = int(np.count_nonzero(array < _LOWEST) + np.count_nonzero(array > _HIGHEST))
        with self._lock:
            self.values += levels.numel()
            self.beyond += beyond

    @property
    def share(self) -> float:
        """Share of the input values that were beyond the calibrated range."""
        return self.beyond / max(self.values, 1)


class Int8Linear(nn.Module):
    """A linear layer with an optional activation, computed from 8-bit inputs and weights.

    ``linear`` is in float32 on the CPU. ``levels`` are given if the previous layer rounds its
    outputs to them; otherwise the inputs are floats, whose channels this layer divides by factors
    before it rounds them. ``output_levels``, if given, are those of the next layer; otherwise the
    outputs are of type ``dtype``, float32 or bfloat16.
    """

    def __init__(
        self,
        linear: nn.Linear,
        inputs: ChannelRange,
        counter: RangeCounter,
        *,
        activation: str | None = None,
        dtype: torch.dtype = torch.float32,
        levels: Levels | None = None,
        output_levels: Levels | None = None,
    ) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        self._counter = counter
        factors = torch.ones_like(inputs.low)
        if levels is None:
            factors = _smoothing_factors(weight, inputs)
        self._inverse = 1 / factors
        self._levels = levels or Levels.of_range(
            float((inputs.low / factors).min()), float((inputs.high / factors).max())
        )
        rounded, self._scales = _rounded_weight(weight * factors)
        self._zero_points = torch.zeros(len(weight), dtype=torch.int32)
        self._weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        bias = torch.zeros(len(weight)) if linear.bias is None else linear.bias.detach().float()
        # Rounding the weights shifts the mean of each output. The bias compensates for this.
        lost = weight - rounded * self._scales[:, None] * self._inverse
        self._bias = bias + lost @ inputs.mean
        self._fused, self._variant = FUSED[activation] if activation else ("none", "")
        self._output = output_levels or Levels(1.0, 0)
        self._dtype = dtype if output_levels is None else torch.uint8
        self._fewest_rows = fewest_rows(len(weight))

    def forward(self, states: Tensor) -> Tensor:
        """Transform (rows, inputs), floats or uint8 levels, to (rows, outputs)."""
        if states.dtype != torch.uint8:
            states = quantize(states.float() * self._inverse, self._levels)
        self._counter.count(states)
        rows = len(states)
        if rows < self._fewest_rows:
            states = F.pad(states, (0, 0, 0, self._fewest_rows - rows))
        outputs = torch.ops.onednn.qlinear_pointwise(
            states,
            *self._levels,
            self._weight,
            self._scales,
            self._zero_points,
            self._bias,
            *self._output,
            self._dtype,
            self._fused,
            [],
            self._variant,
        )
        return cast(Tensor, outputs)[:rows]


class _ExactLinear(PackedLinear):
    """A layer that is not computed in int8; it converts its inputs to the type of its weights."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, activation: str | None) -> None:
        super().__init__(linear.to(dtype), activation)
        self._dtype = dtype

    def forward(self, states: Tensor) -> Tensor:
        return super().forward(states.to(self._dtype))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Measurements of an encoder on some texts, which `freeze_int8` needs."""

    ranges: Mapping[str, ChannelRange]  # inputs of each layer, by its name in `linear_layers`
    exact: frozenset[str] = frozenset()  # layers too inexact in int8


def linear_layers(encoder: Encoder) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the layers that int8 replaces: a name such as 0.up, the parent and the attribute."""
    for number, module in enumerate(encoder.blocks):
        block = cast(Block, module)
        yield f"{number}.qkv", block.attention, "qkv"
        yield f"{number}.output", block.attention, "output"
        yield f"{number}.up", block, "up"
        yield f"{number}.down", block, "down"


def freeze_int8(
    encoder: Encoder, calibration: Calibration, exact: torch.dtype = torch.float32
) -> RangeCounter:
    """Replace the linear layers of an encoder in float32 on the CPU by int8 layers, in place.

    This cannot be undone: the encoder can no longer be trained, moved or saved. Embeddings, layer
    norms, residuals and relative positions stay in float32. ``exact``, float32 or bfloat16, is the
    type of attention without relative positions, and of the layers in ``calibration.exact``;
    without bfloat16 in oneDNN on this CPU, it is float32. The result counts the inputs of all int8
    layers. A CPU that computes int8 products wrongly or far too slowly is refused.
    """
    encoder.eval().requires_grad_(False)
    encoder.frozen = True
    if not has_onednn(exact):
        exact = torch.float32
    counter = RangeCounter()
    for number, block in enumerate(encoder.blocks):
        replace_layers(cast(Block, block), number, encoder.config, calibration, counter, exact)
    return counter


def joint_levels(inputs: ChannelRange) -> Levels:
    """Return levels for the inputs of a layer, the same for all channels, without factors."""
    return Levels.of_range(float(inputs.low.min()), float(inputs.high.max()))


def replace_layers(
    block: Block,
    number: int,
    config: EncoderConfig,
    calibration: Calibration,
    counter: RangeCounter,
    exact: torch.dtype,
) -> None:
    """Replace the linear layers of block ``number``, in place, as `freeze_int8` does."""
    ranges, kept = calibration.ranges, calibration.exact

    def replace(
        parent: nn.Module,
        part: str,
        *,
        activation: str | None = None,
        dtype: torch.dtype = torch.float32,
        exact: torch.dtype = exact,
        levels: Levels | None = None,
        output_levels: Levels | None = None,
    ) -> None:
        name, linear = f"{number}.{part}", cast(nn.Linear, getattr(parent, part))
        made = (
            _ExactLinear(linear, exact, activation)
            if name in kept
            else Int8Linear(
                linear,
                ranges[name],
                counter,
                activation=activation,
                dtype=dtype,
                levels=levels,
                output_levels=output_levels,
            )
        )
        parent.add_module(part, made)

    # Levels of the states between the feed-forward layers, if both are in int8 without a gate.
    between = None
    if not config.gated and not {f"{number}.up", f"{number}.down"} & kept:
        between = joint_levels(ranges[f"{number}.down"])
    # The terms of relative positions are float32, and so must be the queries and keys beside them.
    plain = config.has_plain_scores and config.key_bias
    attention = exact if plain else torch.float32
    replace(block.attention, "qkv", dtype=attention, exact=attention)
    replace(block.attention, "output")
    fused = None if config.gated else config.activation
    replace(block, "up", activation=fused, output_levels=between)
    replace(block, "down", levels=between)
    if not config.gated:
        block.activation = nn.Identity()


def _smoothing_factors(weight: Tensor, inputs: ChannelRange) -> Tensor:
    """Return the factor by which each input channel is divided, float32 (in_features,)."""
    channel = torch.maximum(inputs.low.abs(), inputs.high.abs())
    column = weight.abs().amax(dim=0)
    channel = channel.clamp(min=float(channel.max()) * _LEAST + _TINY)
    column = column.clamp(min=float(column.max()) * _LEAST + _TINY)
    return channel**_SMOOTHING / column ** (1 - _SMOOTHING)


def _rounded_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight to int8; return the rounded weight and the scale of each output channel."""
    largest = weight.abs().amax(dim=1)
    if check_int8_product(*weight.shape):
        largest = torch.maximum(_largest_sum(weight), _largest_sum(-weight))
    scales = largest.clamp(min=_TINY) / MAX_WEIGHT
    rounded = (weight / scales[:, None]).round().clamp(-MAX_WEIGHT, MAX_WEIGHT)
    return rounded.to(torch.int8), scales


def _largest_sum(weight: Tensor) -> Tensor:
    """Return the largest sum of the positive weights of a pair (0 and 1, 2 and 3) by output."""
    positive = F.pad(weight.clamp(min=0), (0, weight.shape[1] % 2))
    return positive.view(len(weight), -1, 2).sum(dim=2).amax(dim=1)
