"""The identity of a model: hashes of its files, and the settings that change its output."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar

from sbert_search.base.cache import cached_or_computed, typed_lru_cache
from sbert_search.config import from_mapping, to_mapping

IN_MEMORY = "state:"  # prefix of the hash of a model that was passed as an object

_COMPUTED_BY = ("engine", "precision", "calibration")  # fields that say how a model is computed
# Fields that may differ between comparable embeddings.
_NOT_COMPARED = frozenset({"name", *_COMPUTED_BY})
_LARGE = 1 << 20  # bytes; for larger files, reading a cached hash is faster than computing it
# Nanoseconds. If a file changed more recently than this, another change may leave its timestamp the
# same, so the timestamp does not yet show whether the file has changed.
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelIdentity:
    """The properties of a model that decide whether its embeddings are comparable with others."""

    NO_ENGINE: ClassVar[str] = "none"

    name: str  # path or name by which the model was opened
    # Hash of the safetensors file, or of the list of names and hashes if there are several files.
    # For a model passed as an object: `IN_MEMORY` and the hash of its parameters.
    weights_sha256: str
    tokenizer_sha256: str  # of the files that define the tokenizer
    architecture: str  # as in `ModelDescription`
    pooling: str  # as in `ModelDescription`; "pair" for a cross-encoder
    prompts: Mapping[str, str] = field(default_factory=dict)  # by name; "": if a call names none
    max_len: int  # most tokens of a text, special tokens included
    dim: int  # of an embedding after truncation; number of labels of a cross-encoder
    similarity: str = "cosine"  # or dot, euclidean, manhattan; "score" for a cross-encoder
    normalize: bool = False  # whether the embeddings have norm 1
    # native, onnx, sentence-transformers or hashing; `NO_ENGINE` if the vectors of an index were
    # given without a model.
    engine: str = "native"
    precision: str = "fp32"  # or bf16, fp16, int8
    calibration: str = ""  # in int8, the hash of the texts of the calibration

    @property
    def in_memory(self) -> bool:
        """Whether the model was passed as an object, so that the hashes are not those of files."""
        return self.weights_sha256.startswith(IN_MEMORY)

    @property
    def is_model(self) -> bool:
        """Whether this describes a model; False for vectors that were given without a model."""
        return self.engine != self.NO_ENGINE

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> ModelIdentity:
        """Read the mapping that `to_mapping` returns."""
        return from_mapping(cls, values, where="model.")

    def to_mapping(self) -> dict[str, object]:
        """Return the fields as a mapping of JSON values."""
        return to_mapping(self)

    def differences(self, other: ModelIdentity, *, computed: bool = False) -> list[str]:
        """List the fields that make embeddings of the two models incomparable.

        There is one line per field, such as ``max_len: 256, not 128``. Engine, precision and
        calibration are compared only if ``computed``: they may change embeddings, which
        `index.building.model_check` measures with a few texts whose vectors are stored in the
        index.
        """
        left_out = _NOT_COMPARED.difference(_COMPUTED_BY if computed else ())
        return [
            f"{f.name}: {_short(getattr(self, f.name))}, not {_short(getattr(other, f.name))}"
            for f in fields(self)
            if f.name not in left_out and getattr(self, f.name) != getattr(other, f.name)
        ]

    def same_engine(self, other: ModelIdentity) -> bool:
        """Whether both have the same engine and precision and, in int8, the same calibration."""
        return all(getattr(self, name) == getattr(other, name) for name in _COMPUTED_BY)


def sha256_of(path: Path) -> str:
    """Hash a file; the hash is cached in the process and, for files of 1 MiB or more, on disk."""
    stat = path.stat()  # shows whether the file has changed
    times = (stat.st_mtime_ns, stat.st_ctime_ns)
    return _sha256(path.resolve(), stat.st_dev, stat.st_ino, stat.st_size, *times)


def sha256_of_files(folder: Path, names: Sequence[str]) -> str:
    """Hash one file; for several files, hash the sorted list of their names and hashes."""
    if len(names) == 1:
        return sha256_of(folder / names[0])
    listing = "".join(f"{sha256_of(folder / name)}  {name}\n" for name in sorted(names))
    return hashlib.sha256(listing.encode()).hexdigest()


@typed_lru_cache(maxsize=256)
def _sha256(path: Path, *state: int) -> str:
    *_, size, content_changed, inode_changed = state
    if size < _LARGE or time.time_ns() - max(content_changed, inode_changed) < _SETTLED_NS:
        return _hash(path)
    key = [str(path), *state]
    digest: str = cached_or_computed("sha256", key, lambda: _hash(path), _is_sha256)
    return digest


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:12]}…"
