"""Parquet files of embedded documents: writing them, and checking the model they record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from sbert_search.base.files import replacing
from sbert_search.base.folders import require_apart, require_possible_output
from sbert_search.embed.pipeline import EmbedBatches, EmbeddedBatch, embed_batches
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, CorpusError, ModelMismatch
from sbert_search.index.building.ingest import IngestReport, Mode, ingest, require_memory
from sbert_search.index.building.model_check import differences
from sbert_search.index.building.settings import ReadSettings, reader_of
from sbert_search.index.storage.columns import ARROW_TYPES, metadata_array, unique_names
from sbert_search.index.storage.manifest import BuildCursor
from sbert_search.index.writer import Outcome
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.records import Document
from sbert_search.text.documents import ColumnType
from sbert_search.text.spool import Sources

# Extensions of other formats: programs would not read the file as Parquet.
_OTHER_FORMATS = (".arrow", ".csv", ".feather", ".json", ".jsonl", ".npy", ".npz", ".tsv", ".txt")
MODEL_KEY = "sbert_search.model"  # key in the file's metadata for the model's identity, as JSON


def embed_to_parquet(
    sources: Sources,
    out: Path,
    open_model: Callable[[], TextEmbedder],
    settings: ReadSettings,
    *,
    embed: EmbedBatches = embed_batches,
) -> IngestReport:
    """Embed documents into a Parquet file, which appears under its name when it is complete.

    Each passage is a row: ``doc_id``, ``chunk``, ``text`` (the passage, a part of
    `Document.full_text`), ``n_tokens``, ``lost_tokens``, ``vector`` (a fixed-size list of float32),
    then a column for each metadata field. A metadata field that has the name of one of the first
    six columns gets the prefix ``meta.``. Each block of the input is a row group.
    """
    if out.suffix.lower() in _OTHER_FORMATS:
        raise ConfigError(f"{out}: the file is written as Parquet; name a file such as x.parquet.")
    require_memory()
    reader = reader_of(settings, sources)
    require_possible_output(out)
    require_apart(out, reader.paths)
    survey = reader.survey()
    embedder = open_model()
    chunking = settings.chunking(embedder)
    require_apart(out, [Path(embedder.identity.name)])
    require_memory()
    schema = _schema(embedder, survey.columns)
    with replacing(out) as file, pq.ParquetWriter(cast(IO[bytes], file), schema) as writer:
        return ingest(
            _ParquetSink(out, writer, survey.columns),
            reader,
            embedder,
            survey=survey,
            mode="add",
            on_truncate=settings.on_truncate,
            chunking=chunking,
            embed=embed,
        )


class _ParquetSink:
    """Accepts every document, and writes each committed batch as one row group."""

    def __init__(
        self, path: Path, writer: pq.ParquetWriter, columns: Mapping[str, ColumnType]
    ) -> None:
        self.path, self._writer, self._columns = path, writer, columns

    def classify(
        self, documents: Sequence[Document], mode: Mode, vectors: object = None
    ) -> list[Outcome]:
        return [Outcome.NEW] * len(documents)

    def commit(
        self,
        batch: EmbeddedBatch[object],
        *,
        cursor: BuildCursor | None,
        starts_block: bool,
        ends_block: bool,
    ) -> None:
        documents = [batch.documents[at] for at in batch.doc_of.tolist()]  # one for each passage
        spans = zip(documents, batch.char_start.tolist(), batch.char_end.tolist(), strict=True)
        vectors = pa.array(batch.vectors.reshape(-1))
        arrays = [
            pa.array([document.doc_id for document in documents], pa.large_string()),
            pa.array(batch.chunk),
            pa.array([doc.full_text[start:end] for doc, start, end in spans], pa.large_string()),
            pa.array(batch.n_tokens),
            pa.array(batch.lost_tokens),
            pa.FixedSizeListArray.from_arrays(vectors, batch.vectors.shape[1]),
            *(metadata_array(documents, name, kind) for name, kind in self._columns.items()),
        ]
        self._writer.write_table(pa.table(arrays, schema=self._writer.schema))


def _schema(embedder: TextEmbedder, columns: Mapping[str, ColumnType]) -> pa.Schema:
    fields = [
        pa.field("doc_id", pa.large_string()),
        pa.field("chunk", pa.int32()),
        pa.field("text", pa.large_string()),
        pa.field("n_tokens", pa.int32()),
        pa.field("lost_tokens", pa.int32()),
        pa.field("vector", pa.list_(pa.float32(), embedder.dim)),
    ]
    names = unique_names(columns, {field.name for field in fields})
    fields += [pa.field(names[name], ARROW_TYPES[kind]) for name, kind in columns.items()]
    return pa.schema(fields, {MODEL_KEY: json.dumps(embedder.identity.to_mapping())})


_VECTOR = "vector"  # the column of vectors in the files of `embed` and of `index export`
_KNOWN = {field.name for field in fields(ModelIdentity)}


def recorded_model(schema: pa.Schema, field: str | None) -> Mapping[str, object]:
    """Return the identity of the model that made the vectors, as a file records it.

    If ``field`` is None, the vectors are in another file, as in an export to FAISS. A recorded
    model then counts only if the Parquet file has no vectors itself. The result has the fields of a
    `ModelIdentity`; it is empty if no model is recorded for these vectors.
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

    Fields that are missing in ``recorded`` are not compared. ``remedy`` is the last sentence of the
    message; "": to name the recorded model, or none.
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
    """Refuse a model if a Parquet file of the sources records another one for its vectors."""
    for path in paths:
        if path.suffix.lower() != ".parquet":
            continue
        try:
            schema = pq.read_schema(path)
        except (OSError, pa.ArrowException) as error:
            raise CorpusError(f"{path}: cannot be read as Parquet: {error}.") from error
        require_recorded_model(recorded_model(schema, field), model, path, remedy)
