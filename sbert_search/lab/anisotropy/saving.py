"""Save a model with a fitted linear map as its last Dense module."""

from __future__ import annotations

from pathlib import Path

import torch

from sbert_search.errors import ConfigError
from sbert_search.lab.anisotropy.remedies import LinearMap
from sbert_search.lab.opening import open_folder
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.heads import Dense, Normalize


def require_free(out: Path) -> None:
    """Check before an analysis that the folder for the new model is absent or empty.

    Raises:
        ConfigError: The path is a file, or a folder that is not empty.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} already exists; name a new folder for the model.")


def save_with_map(model: str | Path | None, remedy: LinearMap, out: str | Path) -> None:
    """Save a copy of a model that applies a linear map to its embeddings.

    The copy is a folder for sentence-transformers. The map is a Dense module without activation.
    If the model scales its embeddings to norm 1, so does the copy, by a Normalize module at the
    end.

    Args:
        model: The model whose embeddings the map was fitted on.
        remedy: The map.
        out: Folder for the copy; it must not contain a model.

    Raises:
        ModelError: The model cannot be loaded, or the folder already contains a model.
    """
    folder, _ = open_folder(model)
    old = BiEncoder.from_folder(folder)
    dim_out, dim = remedy.weight.shape
    dense = Dense(old.dim, dim_out, activation=torch.nn.Identity())
    weight = torch.zeros(dim_out, old.dim, dtype=torch.float64)
    # The map has no weights for the dimensions that truncate_dim cut off; they stay 0.
    weight[:, :dim] = torch.from_numpy(remedy.weight.copy())
    dense.linear.load_state_dict({"weight": weight, "bias": torch.from_numpy(remedy.bias)})
    parts: list[Dense | Normalize] = [
        part for part in old.head if isinstance(part, (Dense, Normalize))
    ]
    ends_in_norm = bool(parts) and isinstance(parts[-1], Normalize)
    new = BiEncoder(
        old.encoder,
        old.tokenizer,
        pooling=old.pooling,
        head=[*parts, dense, *([Normalize()] if ends_in_norm else [])],
        prompts=old.prompts,
        default_prompt_name=old.default_prompt_name,
        similarity=old.similarity,
    )
    new.save(out)
