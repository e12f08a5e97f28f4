"""Open the models that an analysis looks into; only this package's own encoder can be analysed."""

from __future__ import annotations

from pathlib import Path

from sbert_search.errors import ModelError
from sbert_search.models.loading.folder import ModelFolder, read_folder
from sbert_search.models.loading.native_support import why_not_native
from sbert_search.models.loading.resolve import resolve_model


def open_folder(model: str | Path | None) -> tuple[ModelFolder, str]:
    """Find the folder of a bi-encoder or an encoder, and the name by which it was found.

    Raises:
        ModelError: The model cannot be found, or this package's own encoder does not implement it.
    """
    resolved = resolve_model(model)
    folder = read_folder(resolved.path)
    if reason := why_not_native(folder):
        raise ModelError(
            f"{folder.path}: {reason}. An analysis needs the states of each layer; name a model of "
            "the architecture BERT, RoBERTa, ALBERT, DistilBERT, ELECTRA or DeBERTa."
        )
    return folder, resolved.name
