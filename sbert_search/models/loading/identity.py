"""Which model made a vector: hashes of what it is, and the settings that change its output."""

from __future__ import annotations

import functools
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sbert_search.config import from_mapping, to_mapping
from sbert_search.runtime.cache import remembered

IN_MEMORY = "state:"  # before the hash of what no file was named for

# Where the weights lie and how they are computed do not change what a vector means.
_CIRCUMSTANCES = frozenset({"name", "engine", "precision"})
_LARGE = 1 << 20  # bytes from which looking a hash up is faster than computing it
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelIdentity:
    """What must agree for two vectors to be comparable, and where the model came from.

    Attributes:
        name: The path or name it was opened by.
        weights_sha256: Of the safetensors file, or of the list of them when there are several; of a
            model that came as an object, `IN_MEMORY` and the hash of its state.
        tokenizer_sha256: Of the file that defines the tokens.
        architecture: ``model_type`` of ``config.json``.
        pooling: Pooling modes joined by "+", with the sizes of dense layers after them.
        prompts: Texts put before others, by name; "" is used when no name is given.
        max_len: Tokens of a text that are read, special ones included.
        dim: Length of a vector, after truncation.
        similarity: cosine, dot, euclidean or manhattan.
        normalize: Whether the vectors have length 1.
        engine: native, onnx, sentence-transformers or hashing.
        precision: fp32, bf16 or fp16.
    """

    name: str
    weights_sha256: str
    tokenizer_sha256: str
    architecture: str
    pooling: str
    prompts: Mapping[str, str] = field(default_factory=dict)
    max_len: int
    dim: int
    similarity: str = "cosine"
    normalize: bool = False
    engine: str = "native"
    precision: str = "fp32"

    @property
    def in_memory(self) -> bool:
        """Whether the model came as an object, so that the hashes are not those of files."""
        return self.weights_sha256.startswith(IN_MEMORY)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ModelIdentity:
        """Read what `to_mapping` gave.

        Raises:
            ConfigError: A field is unknown, missing or of the wrong type.
        """
        return from_mapping(cls, values, where="model.")

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return to_mapping(self)

    def differences(self, other: ModelIdentity) -> list[str]:
        """Name the fields by which vectors of the two models cannot be compared.

        Name, engine and precision are left out: the first says nothing of the vectors, and the
        other two are judged by a self-check (`same_numbers`).

        Returns:
            One line a field, such as ``max_len: 256, not 128``; none when the models agree.
        """
        return [
            f"{f.name}: {_short(getattr(self, f.name))}, not {_short(getattr(other, f.name))}"
            for f in fields(self)
            if f.name not in _CIRCUMSTANCES and getattr(self, f.name) != getattr(other, f.name)
        ]

    def same_numbers(self, other: ModelIdentity) -> bool:
        """Say whether both compute with the same engine in the same precision."""
        return (self.engine, self.precision) == (other.engine, other.precision)


def sha256_of(path: Path) -> str:
    """Hash a file; of a large one, this and later processes remember the answer until it changes.

    Whether it changed is seen by device, inode, size and times; a file changed in the last two
    seconds is not remembered on disk, since a second change might have the same time.
    """
    stat = path.stat()
    times = (stat.st_mtime_ns, stat.st_ctime_ns)
    return _sha256(path.resolve(), stat.st_dev, stat.st_ino, stat.st_size, *times)


def sha256_of_files(folder: Path, names: Sequence[str]) -> str:
    """Hash one file, or the list of names and hashes of several, whatever their order."""
    if len(names) == 1:
        return sha256_of(folder / names[0])
    listing = "".join(f"{sha256_of(folder / name)}  {name}\n" for name in sorted(names))
    return hashlib.sha256(listing.encode()).hexdigest()


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, *state: int) -> str:
    *_, size, changed, moved = state
    if size < _LARGE or time.time_ns() - max(changed, moved) < _SETTLED_NS:
        return _hash(path)
    key = [str(path), *state]
    found: str = remembered("sha256", key, lambda: _hash(path), _is_sha256)
    return found


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:12]}…"
