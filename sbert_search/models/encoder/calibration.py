"""Measure the input ranges of an encoder's linear layers on some texts, for inference in int8."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.inference_layers import (
    Calibration,
    ChannelRange,
    Int8Linear,
    RangeCounter,
    joint_levels,
    linear_layers,
)
from sbert_search.models.encoder.packed import PackedTokens

# Largest allowed error of the outputs of a layer in int8, as a share of the standard deviation of
# the outputs. The error is measured on the last two batches of the calibration, which have the
# longest texts. A layer with a larger error is not computed in int8. The layers of all-MiniLM-L6-v2
# have errors of 0.009 to 0.086.
MOST_NOISE = 0.1


@torch.inference_mode()
def calibrate(
    encoder: Encoder,
    batches: Sequence[PackedTokens],
    advance: Callable[[int], None] = lambda n: None,
) -> Calibration:
    """Measure the input ranges of the linear layers, and find the layers too inexact in int8.

    Args:
        encoder: The encoder in float32 on the CPU, not frozen.
        batches: The texts of the calibration, sorted by length.
        advance: Called with 1 after each batch.

    Raises:
        ConfigError: As for `freeze_int8`.
    """
    watched: dict[str, _Watched] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, inputs: watched.setdefault(name, _Watched(inputs[0])).add(inputs[0])

    _run(encoder, batches, watch, advance)
    ranges = {name: seen.range for name, seen in watched.items()}
    noise: dict[str, _Noise] = {}

    def compare(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda layer, inputs: noise.setdefault(
            name, _Noise(name, cast(nn.Linear, layer), ranges[name])
        ).add(inputs[0])

    _run(encoder, batches[-2:], compare, lambda n: None)
    return Calibration(
        ranges, frozenset(name for name, seen in noise.items() if seen.share > MOST_NOISE)
    )


def _run(
    encoder: Encoder,
    batches: Sequence[PackedTokens],
    hook: Callable[[str], Callable[[nn.Module, tuple[Tensor, ...]], None]],
    advance: Callable[[int], None],
) -> None:
    """Encode texts while a hook sees the inputs of each linear layer."""
    with ExitStack() as stack:
        for name, parent, part in linear_layers(encoder):
            layer = cast(nn.Module, getattr(parent, part))
            stack.callback(layer.register_forward_pre_hook(hook(name)).remove)
        for batch in batches:
            encoder(batch)
            advance(1)


class _Watched:
    """The lowest value, the highest value and the sum of each input channel of a layer."""

    def __init__(self, inputs: Tensor) -> None:
        self._low, self._high = inputs.amin(dim=0), inputs.amax(dim=0)
        self._sum, self._rows = torch.zeros(inputs.shape[-1], dtype=torch.float64), 0

    def add(self, inputs: Tensor) -> None:
        self._low = torch.minimum(self._low, inputs.amin(dim=0))
        self._high = torch.maximum(self._high, inputs.amax(dim=0))
        self._sum += inputs.sum(dim=0, dtype=torch.float64)
        self._rows += len(inputs)

    @property
    def range(self) -> ChannelRange:
        return ChannelRange(self._low, self._high, (self._sum / self._rows).float())


class _Noise:
    """Compares the outputs of a layer in float32 and in int8 for the same inputs."""

    def __init__(self, name: str, layer: nn.Linear, inputs: ChannelRange) -> None:
        levels = joint_levels(inputs) if name.endswith(".down") else None
        self._exact = layer
        self._int8 = Int8Linear(layer, inputs, RangeCounter(), levels=levels)
        self._error = self._spread = 0.0

    def add(self, inputs: Tensor) -> None:
        outputs = F.linear(inputs, self._exact.weight, self._exact.bias)
        self._error += float((self._int8(inputs) - outputs).square().sum())
        self._spread += float((outputs - outputs.mean(dim=0)).square().sum())

    @property
    def share(self) -> float:
        """Root mean square of the error, divided by the standard deviation of the outputs."""
        return math.sqrt(self._error / max(self._spread, 1e-30))
