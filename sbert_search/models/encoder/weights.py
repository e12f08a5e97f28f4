"""Read and write encoders as ``config.json`` and safetensors, in the layout of their family."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sbert_search.base import files
from sbert_search.base.tensors import write_tensors
from sbert_search.errors import ModelError, WeightsError
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.layouts import LAYOUTS, Layout, encoder_settings, to_settings
from sbert_search.models.loading.modules import read_object, refuse_pickles

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"[\w.-]+\.safetensors")


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a model folder as float32 copies; refuse damaged or infinite ones."""
    tensors: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        try:
            with safe_open(file, framework="pt") as source:
                for name in source.keys():  # noqa: SIM118 (no mapping)
                    tensors[name] = source.get_tensor(name).to(torch.float32, copy=True)
        except (OSError, SafetensorError) as error:
            raise WeightsError(
                f"{file} is damaged or cut off ({error}). Copy or download it again."
            ) from error
    for name, tensor in tensors.items():
        # If a value is not finite, the sum is not finite either. The sum is faster than a test of
        # each value. Finite values would be refused only if their sum exceeded 3.4e38.
        if not tensor.sum().isfinite():
            raise WeightsError(f"{folder}: {name} holds NaN or infinity. Take another checkpoint.")
    return tensors


def first_names(names: Sequence[str]) -> str:
    """Join the first five names, and say how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        return _shards(folder)
    refuse_pickles(folder)
    raise ModelError(f"{folder} has no {WEIGHTS}; name a folder that has it.")


def _shards(folder: Path) -> list[Path]:
    try:
        weight_map = read_object(folder / INDEX)["weight_map"]
        if not isinstance(weight_map, dict):
            raise TypeError("weight_map is no object")
        names = sorted(set(weight_map.values()))
    except (ModelError, LookupError, TypeError) as error:
        raise WeightsError(f"{folder / INDEX} is not an index of weights ({error}).") from error
    for name in names:
        if not isinstance(name, str) or not _SHARD.fullmatch(name) or not (folder / name).exists():
            raise WeightsError(f"{folder / INDEX} names {name!r}, which is not in the folder.")
    return [folder / name for name in names]


_BUFFER = re.compile(r"(^|\.)embeddings\.(position_ids|token_type_ids)$")
_LEGACY_NORM = re.compile(r"(?<=LayerNorm\.)(gamma|beta)$")
_NEW_NORM = {"gamma": "weight", "beta": "bias"}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The content of a model folder, after a check of the names and shapes of its tensors."""

    encoder: Encoder  # float32, in evaluation mode
    head: dict[str, Tensor]  # float32, by published name
    settings: dict[str, object]  # all keys of ``config.json``


def load_encoder(folder: str | Path) -> Encoder:
    """Read an encoder, in float32 and evaluation mode; parameters of heads are ignored."""
    return read_checkpoint(folder).encoder


def save_encoder(
    encoder: Encoder,
    folder: str | Path,
    *,
    head: Mapping[str, Tensor] | None = None,
    settings: Mapping[str, object] | None = None,
) -> None:
    """Write an encoder in its layout to a new or existing folder, and wait until it is on disk.

    Neither ``config.json`` nor ``model.safetensors`` may exist. The parameters of a head have
    published names. If there is a head, the layout's prefix is put before the encoder's names, as
    in published models. ``settings`` are more keys for ``config.json``, such as ``id2label``. A
    frozen encoder cannot be saved.
    """
    if encoder.frozen:
        raise ModelError(
            "An encoder that `freeze` has converted for inference cannot be saved; load the model "
            "again and save the one just loaded."
        )
    folder, layout = Path(folder), LAYOUTS[encoder.config.layout]
    keys = to_settings(encoder.config) | dict(settings or {})
    prefix = layout.prefix if head else ""
    tensors = {prefix + name: part for name, part in _to_published(encoder, layout)}
    tensors |= head or {}
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", WEIGHTS):
        if (folder / name).exists():
            raise ModelError(f"{folder / name} exists already; name another folder.")
    write_tensors(folder / WEIGHTS, tensors, {"format": "pt"})
    files.write_new(folder / "config.json", json.dumps(keys, indent=2).encode() + b"\n")
    files.disk.fsync_folder(folder)


def published_state(layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return the parameters of layers of a head, on the CPU; the layers have published names."""
    return {
        f"{name}.{part}": tensor.cpu()
        for name, layer in layers.items()
        for part, tensor in layer.state_dict().items()
    }


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Read a model folder and check the names and shapes of its tensors."""
    folder = Path(folder)
    keys = read_object(folder / "config.json")
    config = encoder_settings(folder / "config.json", keys)
    layout = LAYOUTS[config.layout]
    tensors = _current_names(read_tensors(folder))
    full_names = {name.removeprefix(layout.prefix): name for name in tensors}
    if twice := sorted(tensors.keys() - set(full_names.values())):
        raise WeightsError(
            f"{folder}: the weights have {twice[0]} twice, with and without the prefix "
            f"{layout.prefix!r}. Take another checkpoint."
        )
    pooler = {f"{name}.weight" for name in layout.names.get("pooler", ())}
    _check_sizes(config, tensors, folder)  # before an encoder allocates memory of these sizes
    with _SkipInit():
        encoder = Encoder(replace(config, pooler=bool(pooler & full_names.keys())))
    try:
        head = _fill(encoder, layout, {bare: tensors[name] for bare, name in full_names.items()})
    except WeightsError as error:
        raise WeightsError(f"{folder}: {error}") from error
    encoder.requires_grad_().eval()
    return Checkpoint(encoder, {full_names[bare]: tensors[full_names[bare]] for bare in head}, keys)


def _check_sizes(config: EncoderConfig, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse sizes in ``config.json`` that are far larger than those of the weights."""
    largest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    positions = config.max_positions + config.position_offset
    sizes = {
        "layers": (config.n_blocks, len(tensors)),
        "vocab_size": (config.vocab_size, largest),
        "hidden_size": (config.hidden_size, largest),
        "embedding_size": (config.table_size, largest),
        "intermediate_size": (config.intermediate_size, largest),
        "token types": (config.token_type_vocab, largest),
        "relative positions": (2 * config.relative_positions, largest),
        "position buckets": (config.position_buckets, largest),
        "positions": (positions if config.position_embeddings else 0, largest),
    }
    for name, (value, most) in sizes.items():
        if value > 16 * most:  # smaller errors are found later, by names and shapes of tensors
            raise WeightsError(
                f"{folder}: config.json asks for {name} {value:,}, and the weights are "
                f"{len(tensors):,} tensors with at most {largest:,} rows or columns. "
                "Take config.json and weights from one model."
            )


class _SkipInit(TorchFunctionMode):
    """Context in which modules skip random initialisation, since weights of a file replace it."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return func(*args, **(kwargs or {}))


def _current_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drop buffers and rename gamma and beta, which old checkpoints use, to weight and bias."""
    return {
        _LEGACY_NORM.sub(lambda old: _NEW_NORM[old[0]], name): tensor
        for name, tensor in tensors.items()
        if not _BUFFER.search(name)
    }


def _fill(encoder: Encoder, layout: Layout, tensors: dict[str, Tensor]) -> list[str]:
    """Load published tensors into the encoder; return the names of those that belong to heads."""
    config = encoder.config
    shapes = {name: tensor.shape for name, tensor in encoder.state_dict().items()}
    names = {name: published_names(name, config, layout) for name in shapes}
    expected = {published for parts in names.values() for published in parts}
    left = [name for name in tensors if name not in expected]
    unknown = [name for name in left if not name.startswith(layout.model_heads)]
    _check_names(sorted(expected - tensors.keys()), sorted(unknown), config)
    state = {}
    for name, shape in shapes.items():
        parts = [tensors[published] for published in names[name]]
        expected_shape = (shape[0] // len(parts), *shape[1:])
        for published, part in zip(names[name], parts, strict=True):
            if tuple(part.shape) != expected_shape:
                raise WeightsError(
                    f"{published} has shape {tuple(part.shape)}; config.json asks for "
                    f"{expected_shape}."
                )
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        state[name] = _order_heads(joined, name, config, layout, published=False)
    encoder.load_state_dict(state, assign=True)
    return left


def _to_published(encoder: Encoder, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in encoder.state_dict().items():
        tensor = _order_heads(tensor.cpu(), name, encoder.config, layout, published=True)
        names = published_names(name, encoder.config, layout)
        yield from zip(names, tensor.chunk(len(names)), strict=True)


def published_names(name: str, config: EncoderConfig, layout: Layout) -> list[str]:
    """Published names of a parameter of `Encoder`, one for each slice of it, in order."""
    match = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
    prefix, table = "", layout.names
    if match:
        block, name = int(match[1]), match[2]
        group, inner = divmod(block, config.inner_layers)
        prefix = layout.block.format(block=block, group=group, inner=inner)
        table = layout.block_names
    stem, _, ending = name.rpartition(".")
    if name in table:
        return [prefix + published for published in table[name]]
    return [f"{prefix}{published}.{ending}" for published in table[stem]]


def _order_heads(
    tensor: Tensor, name: str, config: EncoderConfig, layout: Layout, *, published: bool
) -> Tensor:
    """Reorder the rows of a joint projection if the layout groups them by attention head.

    `Encoder` has all queries, then all keys, then all values. The published order has query, key
    and value of the first head, then of the second, and so on. ``published`` says which order the
    result has; ``tensor`` has the other one.
    """
    if not name.endswith(tuple(layout.per_head)):
        return tensor
    shape = (3, config.heads) if published else (config.heads, 3)
    rows = tensor.view(*shape, config.head_dim, *tensor.shape[1:])
    return rows.transpose(0, 1).reshape(tensor.shape)


def _check_names(missing: list[str], unknown: list[str], config: EncoderConfig) -> None:
    if missing or unknown:
        raise WeightsError(
            f"the weights are not of type {config.layout!r}. {_listed('Missing', missing)}"
            f"{_listed('Unknown', unknown)}{_look_like(unknown, config)}"
        )


def _look_like(unknown: list[str], config: EncoderConfig) -> str:
    for layout in LAYOUTS.values():
        name = published_names("blocks.0.up.weight", config, layout)[0]
        if name in unknown or layout.prefix + name in unknown:
            return f"These are names of type {layout.model_type!r}."
    return "Take config.json and weights from one model."


def _listed(what: str, names: list[str]) -> str:
    return f"{what}: {first_names(names)}. " if names else ""
