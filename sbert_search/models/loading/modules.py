"""Read JSON files of a model folder, and the modules that it lists, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sbert_search.errors import ModelError

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def read_json(path: Path) -> object:
    """Read a JSON file, or raise a ModelError."""
    try:
        return json.loads(path.read_bytes().decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path} cannot be read as JSON: {error}. Is its folder a model? Copy the file again."
        ) from error


def read_object(path: Path) -> dict[str, object]:
    """Read a file that holds a JSON object, or raise a ModelError."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object. Copy the file again.")
    return value


def read_if_present(path: Path) -> dict[str, object]:
    """Read a JSON object; {} if the file does not exist."""
    return read_object(path) if path.is_file() else {}


def refuse_pickles(folder: Path) -> None:
    """Raise an error that names a pickle, if a folder without safetensors files has one."""
    if pickles := sorted(path for pattern in _PICKLES for path in folder.glob(pattern)):
        raise ModelError(
            f"{folder} has its weights in {pickles[0].name}, a pickle, which can run code when it "
            "is opened. Save the model again with a recent version of transformers, or, if you "
            "trust the file, convert it at https://huggingface.co/spaces/safetensors/convert"
        )


# Settings by which a module treats queries and documents differently.
_SETTINGS_BY_TASK = ("query_length", "document_length", "query_expansion")
_CUTS = (True, "longest_first")  # values of "truncation" that do what the native tokenizer does


def require_one_length(where: object, settings: Mapping[str, object]) -> None:
    """Refuse a Transformer module that cuts queries and documents to lengths of their own."""
    for name in _SETTINGS_BY_TASK:
        if (value := settings.get(name)) is not None:
            raise ModelError(
                f"{where}: {name} is {value!r}, which treats queries and documents differently; "
                f"this package needs one limit for both. Remove {name}, and set max_seq_length."
            )


def processing_limit(where: object, processing: object) -> int | None:
    """Return the ``max_length`` in ``processing_kwargs``, which replaces other limits."""
    found = _of_texts(where, processing)
    if "truncation" in found and found["truncation"] in (None, False, "do_not_truncate"):
        raise ModelError(
            f"{where}: processing_kwargs turns truncation off, so the model would fail on long "
            "texts; remove truncation from it."
        )
    limit = found.get("max_length")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ModelError(
            f"{where}: max_length in processing_kwargs is {limit!r}; it must be a number of tokens."
        )
    return limit


def only_limits(where: object, processing: object) -> bool:
    """Whether ``processing_kwargs`` changes nothing of a text but its largest number of tokens."""
    found = dict(_of_texts(where, processing))
    found.pop("max_length", None)
    return found.pop("truncation", True) in _CUTS and not found


def _of_texts(where: object, processing: object) -> Mapping[str, object]:
    """Return what ``processing_kwargs`` says of texts; as in the library, ``common`` decides."""
    merged: dict[str, object] = {}
    named = processing if isinstance(processing, Mapping) else {}
    parts = [named.get(name) or {} for name in ("text", "common")]
    if not isinstance(processing or {}, Mapping) or not all(isinstance(p, Mapping) for p in parts):
        raise ModelError(
            f"{where}: processing_kwargs is {processing!r}; it must map text and common to "
            "settings."
        )
    for part in parts:
        merged.update(part)
    return merged


# The key of each pooling mode in the legacy format. The modes are in the order in which
# sentence-transformers concatenates their results.
POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_KINDS = (
    "Transformer",
    "Pooling",
    "Dense",
    "Normalize",
    "Dropout",
    "LayerNorm",
    "WeightedLayerPooling",
    "StaticEmbedding",
    "LogitScore",
)
# Modules that treat queries and documents differently. Asym is Router's name before version 5.
_BY_TASK = ("Router", "Asym")
# sentence-transformers reads the settings of a Transformer from the first of these files that is
# not empty.
_TRANSFORMER_SETTINGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)


@dataclass(frozen=True, slots=True)
class Module:
    """One entry of ``modules.json`` with the settings in its folder."""

    kind: str  # class name, such as Pooling
    folder: str  # path inside the model folder; "" is the model folder itself
    settings: Mapping[str, object] = field(default_factory=dict)  # {}: no file


def pooling_modes(module: Module) -> tuple[str, ...]:
    """Return the modes of a Pooling module, in the order of concatenation of their results."""
    modes = module.settings.get("pooling_mode")
    if modes is None:
        modes = [mode for mode, key in POOLING_KEYS.items() if module.settings.get(key)]
    if isinstance(modes, list) and modes:
        return tuple(map(str, modes))
    return (str(modes or "mean"),)


def read_modules(path: Path) -> tuple[Module, ...]:
    """Read ``modules.json``; without this file the modules are Transformer and mean Pooling."""
    file = path / "modules.json"
    if not file.is_file():
        return (Module("Transformer", ""), Module("Pooling", "", {"pooling_mode": "mean"}))
    listing = read_json(file)
    if not isinstance(listing, list) or not listing:
        raise ModelError(f"{file} holds no list of modules.")
    return tuple(_read_module(path, entry) for entry in listing)


def _read_module(path: Path, entry: object) -> Module:
    where = path / "modules.json"
    if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
        raise ModelError(f"{where}: {entry!r} is not a module; it needs a type and a path.")
    kind, folder = entry["type"], str(entry.get("path", ""))
    if not kind.startswith("sentence_transformers."):
        raise ModelError(
            f"{where}: module {kind!r} is not part of sentence-transformers; this package runs no "
            "code that comes with a model."
        )
    if PurePosixPath(folder).is_absolute() or ".." in PurePosixPath(folder).parts:
        raise ModelError(f"{where}: module path {folder!r} leaves the model folder.")
    kind = kind.rpartition(".")[2]
    if kind in _BY_TASK:
        raise ModelError(
            f"{where}: {kind} sends queries and documents through different modules; this package "
            "needs one model for both. Choose such a model."
        )
    if kind not in _KINDS:
        raise ModelError(
            f"{where}: this package does not support the module {kind}. Choose a model that "
            f"has only these modules: {', '.join(_KINDS)}."
        )
    names = _TRANSFORMER_SETTINGS if kind == "Transformer" else ("config.json",)
    settings = next(filter(None, (read_if_present(path / folder / name) for name in names)), {})
    if kind == "Transformer":
        require_one_length(path / folder / names[0], settings)
    if kind == "Pooling" and not settings:
        raise ModelError(
            f"{path / folder / 'config.json'} is missing or empty, so the pooling is unknown; copy "
            "all folders of the model."
        )
    return Module(kind, folder, settings)
