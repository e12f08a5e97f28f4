"""Read the tensors of a model folder from one safetensors file, or from several with an index."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sbert_search.errors import ModelError, WeightsError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"[\w.-]+\.safetensors")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a model folder as float32 copies, which do not share memory with a file.

    Raises:
        ModelError: There is no safetensors file. If there is a pickle file, the message says how
            to convert it.
        WeightsError: A file is damaged, or a value is not finite.
    """
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
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise ModelError(
            f"{folder} has its weights in {pickles[0]}, a pickle, which may run code when it is "
            f"opened. If you trust the file, convert it to {WEIGHTS} once: "
            "https://huggingface.co/spaces/safetensors/convert"
        )
    raise ModelError(f"{folder} has no {WEIGHTS}; name a folder that has it.")


def _shards(folder: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads((folder / INDEX).read_text("utf-8"))["weight_map"].values()))
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise WeightsError(f"{folder / INDEX} is not an index of weights ({error}).") from error
    for name in names:
        if not isinstance(name, str) or not _SHARD.fullmatch(name) or not (folder / name).exists():
            raise WeightsError(f"{folder / INDEX} names {name!r}, which is not in the folder.")
    return [folder / name for name in names]
