"""Open a model in int8: find its calibration in the user's cache, or make it.

A calibration has the ranges of the inputs of a model's linear layers, measured on some texts. It is
stored in a file whose name is a digest of the model (weights, tokenizer and settings) and of the
texts. The file starts with a checksum of its content. If the checksum does not match, the
calibration is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from typing import TypeVar, cast

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.base.cache import cache_folder, digest_of, write_cached
from sbert_search.base.device import DTYPES, Precision, resolve_device
from sbert_search.base.progress import note, progress, warn
from sbert_search.embed.arguments import CalibrationTexts
from sbert_search.embed.engines.native import PackedEngine
from sbert_search.embed.engines.protocol import MovableEngine, OpenedModel
from sbert_search.errors import ConfigError, CorpusError
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
from sbert_search.models.encoder.precision import fastest_with_int8
from sbert_search.models.loading.folder import ModelFolder
from sbert_search.models.loading.resolve import ResolvedModel

# Largest allowed error of the outputs of a layer in int8, as a share of the standard deviation of
# the outputs: of all channels together, and of each channel on average. The error is measured on
# the last two batches of the calibration, which have the longest texts. A layer with a larger error
# is not computed in int8. The layers of all-MiniLM-L6-v2 have errors of 0.009 to 0.086 together,
# and 0.014 to 0.20 by channel. In all-mpnet-base-v2, five layers with one very large channel have
# at most 0.03 together, but 0.39 to 0.57 by channel, and vectors of the cosine 0.8.
MOST_NOISE, MOST_CHANNEL_NOISE = 0.1, 0.25


@torch.inference_mode()
def calibrate(
    encoder: Encoder,
    batches: Sequence[PackedTokens],
    advance: Callable[[int], None] = lambda n: None,
) -> Calibration:
    """Measure the input ranges of the linear layers, and find the layers too inexact in int8.

    The encoder is in float32 on the CPU, not frozen; the batches are sorted by length. ``advance``
    is called with 1 after each batch.
    """
    watched: dict[str, _Watched] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, inputs: watched.setdefault(name, _Watched(inputs[0])).add(inputs[0])

    _run(encoder, batches, watch, advance)
    ranges = {name: seen.range for name, seen in watched.items()}
    noise: dict[str, _Noise] = {}
    joint = () if encoder.config.gated else (".down",)  # the layers whose channels share levels

    def compare(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda layer, inputs: noise.setdefault(
            name, _Noise(cast(nn.Linear, layer), ranges[name], joint=name.endswith(joint))
        ).add(inputs[0])

    _run(encoder, batches[-2:], compare, lambda n: None)
    return Calibration(ranges, frozenset(name for name, seen in noise.items() if seen.is_too_large))


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

    def __init__(self, layer: nn.Linear, inputs: ChannelRange, *, joint: bool) -> None:
        levels = joint_levels(inputs) if joint else None
        self._exact = layer
        self._int8 = Int8Linear(layer, inputs, RangeCounter(), levels=levels)
        # Of each channel, the sums of squares of the error and of the distance from the mean.
        self._error, self._spread = torch.zeros(2, layer.out_features, dtype=torch.float64)

    def add(self, inputs: Tensor) -> None:
        outputs = F.linear(inputs, self._exact.weight, self._exact.bias)
        self._error += (self._int8(inputs) - outputs).square().sum(dim=0)
        self._spread += (outputs - outputs.mean(dim=0)).square().sum(dim=0)

    @property
    def is_too_large(self) -> bool:
        """Whether the layer is too inexact in int8."""
        together = self._error.sum() / self._spread.sum().clamp(min=1e-30)
        # The outputs of some channels are constant, and any error would be too large for them.
        least = 0.01 * float(self._spread.median()) + 1e-30
        by_channel = (self._error / self._spread.clamp(min=least)).mean()
        return bool(together > MOST_NOISE**2 or by_channel > MOST_CHANNEL_NOISE**2)


FOLDER = "calibrations"  # in the user's cache
FORMAT = 2  # increase it whenever the method of calibration changes
_CHECKSUM = 32  # bytes
_JOINED = (6, 11)  # numbers of consecutive texts that are joined into one long text
_FEWEST = 16  # least number of texts of a calibration


E = TypeVar("E", bound=MovableEngine)


def open_int8(
    resolved: ResolvedModel,
    folder: ModelFolder,
    engine: E,
    check: Callable[[Callable[[], None]], None],
    *,
    device: str,
    texts: CalibrationTexts,
) -> OpenedModel[E]:
    """Calibrate a model, or read its calibration from the cache, and convert it to int8.

    The engine is in float32 on the CPU. ``check`` calls a function that changes it, and refuses an
    output that changes too much.
    """
    target = resolve_device("cpu" if device == "auto" else device)
    if target.type != "cpu":
        raise ConfigError(f"precision int8 is for the CPU, not for {device}; use bf16 there.")
    if not isinstance(engine, PackedEngine):
        raise ConfigError(
            f"precision int8 needs the engine native, which cannot compute {resolved.name}; use "
            "--precision fp32."
        )
    chosen = calibration_texts(texts)
    calibration = _calibration(folder, engine, chosen)
    verdict = engine.fastest_precision()
    exact = torch.float32 if verdict is None else DTYPES[verdict.choice]
    check(lambda: engine.quantize(calibration, exact))
    made_with = calibration_sha256(chosen)
    return OpenedModel.from_folder(resolved, folder, engine, "int8", "cpu", calibration=made_with)


def choose_fastest(
    folder: ModelFolder, engine: MovableEngine, *, device: str, texts: CalibrationTexts
) -> Precision:
    """Return the fastest of fp32, bf16 and int8 for a model on this CPU, by measurement.

    The engine is in float32 on the CPU; it is calibrated if the cache has no calibration. The
    result is "auto" if the device is not the CPU, if int8 cannot compute the model, or if the model
    is so small that its precision does not matter.
    """
    if resolve_device(device).type != "cpu" or not isinstance(engine, PackedEngine):
        return "auto"
    try:
        calibration = _calibration(folder, engine, calibration_texts(texts))
        verdict = fastest_with_int8(engine.encoder, calibration)
    except ConfigError as error:
        note(f"int8 is not possible: {error}")
        return "auto"
    return "auto" if verdict is None else cast("Precision", verdict.choice)


def calibration_texts(texts: CalibrationTexts) -> list[str]:
    """Return the texts that a calibration is made with, without empty texts; at least 16."""
    if texts is None:
        ours = resources.files(__package__) / "calibration_texts.txt"
        return ours.read_text(encoding="utf-8").splitlines()
    if not isinstance(texts, (str, Path)):
        found, where = [text for text in texts if text.strip()], "the list calibrate"
    else:
        found, where = _lines(Path(texts)), str(texts)
    if len(found) < _FEWEST:
        raise CorpusError(
            f"{where} has {len(found)} texts; a calibration needs at least {_FEWEST}; several "
            "hundred give a better one."
        )
    return found


def calibration_sha256(texts: Sequence[str]) -> str:
    """Return the hash that identifies the texts of a calibration and the method (`FORMAT`)."""
    return digest_of([FORMAT, list(texts)])


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(
            f"{path} cannot be read as UTF-8 text for a calibration: {error}."
        ) from error
    return [line for line in lines if line.strip()]


def _calibration(folder: ModelFolder, engine: PackedEngine, texts: Sequence[str]) -> Calibration:
    key = {
        "texts": calibration_sha256(texts),
        "weights": folder.weights_sha256(),
        "tokenizer": folder.tokenizer_sha256(),
        "encoder": dict(folder.transformer),
        "kind": type(engine).__name__,
        "prompts": {name: text for name, text in folder.description.prompts.items() if text},
        "max_len": folder.description.max_len,
    }
    path = cache_folder(FOLDER) / f"{digest_of(key)}.calibration"
    with contextlib.suppress(OSError):
        raw = path.read_bytes()
        if hashlib.sha256(raw[_CHECKSUM:]).digest() == raw[:_CHECKSUM]:
            return _from_bytes(raw[_CHECKSUM:])
        warn(f"{path} is damaged; the model is calibrated again.")
    note(f"Calibrating {folder.path} for int8 once, with {len(texts):,} texts.")
    batches = list(engine.batches(with_long_texts(texts)))
    with progress("Calibrating", len(batches), "batches") as advance:
        made = calibrate(engine.encoder, batches, advance)
    data = _to_bytes(made)
    try:
        write_cached(path, hashlib.sha256(data).digest() + data)
    except OSError as error:
        warn(f"{path} could not be written: {error}.")
    return made


def with_long_texts(texts: Sequence[str]) -> list[str]:
    """Add joined texts, since the ranges of the layers' inputs depend on the length of a text."""
    return [
        *texts,
        *(
            " ".join(texts[start : start + size])
            for size in _JOINED
            for start in range(0, len(texts), size)
        ),
    ]


def _to_bytes(calibration: Calibration) -> bytes:
    tensors = {
        f"{name}.{field}": values.contiguous()
        for name, ranges in calibration.ranges.items()
        for field, values in ranges._asdict().items()
    }
    return safetensors.torch.save(tensors, {"exact": json.dumps(sorted(calibration.exact))})


def _from_bytes(data: bytes) -> Calibration:
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    tensors = safetensors.torch.load(data)
    names = {name.rpartition(".")[0] for name in tensors}
    ranges = {
        name: ChannelRange(*(tensors[f"{name}.{field}"] for field in ChannelRange._fields))
        for name in names
    }
    return Calibration(ranges, frozenset(json.loads(header["__metadata__"]["exact"])))
