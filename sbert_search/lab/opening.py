"""Open models for an analysis; this package's own encoder must support their architecture."""

from __future__ import annotations

from pathlib import Path

from sbert_search.errors import ModelError
from sbert_search.models.loading.folder import ModelFolder, read_folder
from sbert_search.models.loading.native_support import why_not_native
from sbert_search.models.loading.resolve import resolve_model


def open_folder(model: str | Path | None) -> tuple[ModelFolder, str]:
    """Find a bi-encoder or an encoder; return its folder, and the name by which it was found.

    Raises:
        ModelError: The model cannot be found, or this package's own encoder does not support it.
    """
    resolved = resolve_model(model)
    folder = read_folder(resolved.path)
    if reason := why_not_native(folder):
        raise ModelError(
            f"{folder.path}: {reason}. An analysis needs the states of each layer; name a model of "
            "the architecture BERT, RoBERTa, ALBERT, DistilBERT, ELECTRA or DeBERTa."
        )
    return folder, resolved.name
