"""Comparing a model with the one that a Parquet file records as the maker of its vectors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sbert_search.errors import ConfigError, CorpusError, ModelMismatch
from sbert_search.index.ingestion.export import MODEL_KEY
from sbert_search.index.ingestion.model_check import differences
from sbert_search.models.loading.identity import ModelIdentity

_VECTOR = "vector"  # the column of vectors in the files of `embed` and of `index export`
_KNOWN = {field.name for field in fields(ModelIdentity)}


def recorded_model(schema: pa.Schema, field: str | None) -> Mapping[str, object]:
    """Return the identity of the model that made the vectors, as a file records it.

    Args:
        schema: The schema of a Parquet file.
        field: The column of the vectors; None: the vectors are in another file, as in an export to
            FAISS. A recorded model then counts only if the Parquet file has no vectors itself.

    Returns:
        The fields of a `ModelIdentity`; empty if no model is recorded for these vectors.
    """
    about = field == _VECTOR if field is not None else _VECTOR not in schema.names
    try:
        stated = json.loads((schema.metadata or {}).get(MODEL_KEY.encode(), b"{}"))
    except ValueError:  # this package writes valid JSON, so another program wrote the value
        return {}
    if not (about and isinstance(stated, dict)) or stated.get("engine") == ModelIdentity.NO_ENGINE:
        return {}
    return {name: value for name, value in stated.items() if name in _KNOWN}


def require_recorded_model(
    recorded: Mapping[str, object], model: ModelIdentity, path: Path, remedy: str = ""
) -> None:
    """Refuse a model that did not make the vectors of a file.

    Args:
        recorded: The result of `recorded_model`. Fields that are missing in it are not compared.
        model: The model that is given for the vectors.
        path: The file, for messages.
        remedy: Last sentence of the message; "": to name the recorded model, or none.

    Raises:
        ModelMismatch: The file records another model; the message names every field that differs.
        CorpusError: A recorded field has a value of a wrong type.
    """
    if not recorded or not model.is_model:
        return
    try:
        stored = ModelIdentity.from_mapping({**model.to_mapping(), **recorded})
    except ConfigError as error:
        raise CorpusError(
            f"{path}: its metadata {MODEL_KEY} is damaged: {error} Write the file again."
        ) from error
    if differing := differences(stored, model):
        raise ModelMismatch(
            f"{path} says that {stored.name} made its vectors, and {model.name} is another model "
            f"({'; '.join(differing)}). {remedy or f'Name {stored.name} as the model, or none.'}"
        )


def require_recorded_models(
    paths: Iterable[Path], field: str, model: ModelIdentity, remedy: str = ""
) -> None:
    """Compare a model with the models that are recorded in the Parquet files among the sources.

    Args:
        paths: The sources.
        field: The field of the vectors.
        model: The model that is given for the vectors.
        remedy: As for `require_recorded_model`.

    Raises:
        ModelMismatch: A file records another model.
        CorpusError: A file cannot be read any more, or its record is damaged.
    """
    for path in paths:
        if path.suffix.lower() != ".parquet":
            continue
        try:
            schema = pq.read_schema(path)
        except (OSError, pa.ArrowException) as error:
            raise CorpusError(f"{path}: cannot be read as Parquet: {error}.") from error
        require_recorded_model(recorded_model(schema, field), model, path, remedy)
