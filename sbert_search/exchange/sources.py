"""Sources of vectors to import: Parquet files, and folders of Chroma and of LanceDB."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sbert_search.base.progress import note
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.exchange.clients import needs
from sbert_search.exchange.file_targets import DTYPE_KEY, METRIC_KEY
from sbert_search.exchange.passages import OWN
from sbert_search.exchange.plan import VECTOR
from sbert_search.index.building.parquet import MODEL_KEY, recorded_model
from sbert_search.index.storage.columns import PREFIX, unique_names
from sbert_search.index.storage.manifest import Metric, VectorType
from sbert_search.text.fields import FieldNames
from sbert_search.text.ids import IdsLike
from sbert_search.text.spool import Sources
from sbert_search.text.vectors import RowVectors

FIELDS = ("--id-field", "--text-field", "--title-field")


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorSource:
    """The vectors of a source, with their ids and, if the source has them, texts and metadata."""

    rows: Sources | None = None  # None: the source has no texts and metadata
    vectors: RowVectors | None = None  # None: the field ``fields.vector`` of ``rows`` has them
    ids: IdsLike | None = None  # used without ``rows``; None: numbers from 0
    fields: FieldNames = FieldNames()  # noqa: RUF009 (frozen)
    metadata_fields: tuple[str, ...] | None = None  # None: all that have no other use
    metric: Metric | None = None  # None: the source states none
    dtype: VectorType | None = None  # of the exported index; None: the source states none
    recorded: Mapping[str, object] = field(default_factory=dict)  # fields of a `ModelIdentity`
    keeps: tuple[object, ...] = ()  # objects not to free before the build, such as a client


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """The options of `import_index` that say what to read from a source."""

    ids: Path | None = None  # None: ids in the source, else in a file beside it
    # Of the id, the text, the title and the vector; a name that is None is detected.
    fields: FieldNames = FieldNames()  # noqa: RUF009 (frozen)
    table: str | None = None  # None: the only one in the source
    metric: Metric | None = None  # None: that of the source

    def require_only(self, shown: str, *options: str) -> None:
        """Refuse all options of the user but ``options``, which have an effect on the source."""
        values = {
            "--ids": self.ids,
            "--table": self.table,
            "--id-field": self.fields.id,
            "--text-field": self.fields.text,
            "--title-field": self.fields.title,
            "--vector-field": self.fields.vector,
        }
        for option, value in values.items():
            if value is not None and option not in options:
                raise ConfigError(f"{option} has no effect on {shown}; leave it out.")


VECTOR_FIELDS = (VECTOR, "embedding", "embeddings", "vectors")
DOCUMENT = "document"  # metadata column with the id of a passage's document
_OWN_OF_EMBED = ("doc_id", "chunk", "text", "n_tokens", "lost_tokens")
_BATCH_ROWS = 1024


def found_in_parquet(
    path: Path, asked: SourceOptions, *, has_vectors: bool = False
) -> VectorSource:
    """Find the vectors, ids, texts and metadata of a Parquet file.

    If this package wrote the file, and the file has documents of several passages, each passage
    becomes a document. Its id is the ``doc_id`` in the file, ``#`` and the number of the passage,
    such as ``d7#2``. The metadata column ``document`` has the ``doc_id``.
    """
    asked.require_only(str(path), "--ids" if has_vectors else "--vector-field", *FIELDS)
    with _opened(path) as file:
        schema = file.schema.to_arrow_schema()
    stated = schema.metadata or {}
    field = None if has_vectors else asked.fields.vector or vector_field(schema, str(path))
    metric = stated.get(METRIC_KEY.encode(), b"").decode()
    dtype = stated.get(DTYPE_KEY.encode(), b"").decode()
    found = VectorSource(
        rows=[path],
        fields=replace(asked.fields, vector=field),
        metric=cast(Metric, metric) if metric in get_args(Metric) else None,
        dtype=cast(VectorType, dtype) if dtype in get_args(VectorType) else None,
        recorded=recorded_model(schema, field),
    )
    is_ours = MODEL_KEY.encode() in stated and "doc_id" in schema.names
    if not is_ours or asked.fields.id is not None:
        return found
    own = OWN if METRIC_KEY.encode() in stated else _OWN_OF_EMBED  # embed states no metric
    known = {*own, *asked.fields.texts, *filter(None, [field, asked.fields.title])}
    metadata = [name for name in schema.names if name not in known]
    if "chunk" not in schema.names or not _has_later_passages(path):
        fields = replace(found.fields, id="doc_id")  # a metadata column may be called _id
        return replace(found, fields=fields, metadata_fields=tuple(metadata))
    note(f"{path} has documents of several passages; each passage becomes a document.")
    names = unique_names(metadata, {"_id", DOCUMENT})
    named = _named(schema, names)
    return replace(
        found,
        rows=pa.RecordBatchReader.from_batches(named, _passages(path, named)),
        fields=replace(found.fields, id="_id"),
        metadata_fields=(DOCUMENT, "chunk", *names.values()),
    )


def vector_field(schema: pa.Schema, shown: str) -> str:
    """Return the first column of vectors named as in `VECTOR_FIELDS`, else the only one."""
    lists = [field.name for field in schema if _is_vector(field.type)]
    known = [name for name in VECTOR_FIELDS if name in lists]
    if known or len(lists) == 1:
        return (known or lists)[0]
    which = f"several: {', '.join(map(repr, lists))}" if lists else "none"
    raise CorpusError(
        f"{shown}: of the columns with lists of floats, which could be the vectors, there are "
        f"{which}. Name the column with --vector-field."
    )


def _is_vector(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list and not pa.types.is_fixed_size_list(kind):
        return False
    return bool(pa.types.is_floating(kind.value_type))


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (OSError, pa.ArrowException) as error:
        raise CorpusError(f"{path}: cannot be read as Parquet: {error}.") from error


def _has_later_passages(path: Path) -> bool:
    with _opened(path) as file:
        batches = file.iter_batches(columns=["chunk"])
        return any(pc.max(batch.column(0)).as_py() for batch in batches if batch.num_rows)


def _named(schema: pa.Schema, names: Mapping[str, str]) -> pa.Schema:
    """Return the schema of a file whose passages become documents, with new names of metadata."""
    kept = [f.with_name(names.get(f.name, f.name)) for f in schema if f.name != "doc_id"]
    own = [pa.field("_id", pa.large_string()), pa.field(DOCUMENT, pa.large_string())]
    return pa.schema([*own, *kept])


def _passages(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with _opened(path) as file:
        kept = [at for at, name in enumerate(file.schema_arrow.names) if name != "doc_id"]
        for batch in file.iter_batches(_BATCH_ROWS):
            documents = batch.column("doc_id").cast(pa.large_string())
            chunks = batch.column("chunk").cast(pa.large_string())
            ids = pc.binary_join_element_wise(documents, chunks, pa.scalar("#", pa.large_string()))
            rest = [batch.column(at) for at in kept]
            yield pa.RecordBatch.from_arrays([ids, documents, *rest], schema=schema)


_PAGE = 1000  # records read at a time
_CHROMA_METRICS: Mapping[str, Metric] = {"cosine": "cosine", "ip": "dot", "l2": "euclidean"}
_ID, _TEXT = "_id", "text"
_TAKEN = re.compile(rf"(?:{re.escape(PREFIX)})*(?:{_ID}|{_TEXT}|{VECTOR})")


def found_in_chroma(folder: Path, asked: SourceOptions) -> VectorSource:
    """Find the ids, vectors, documents and metadata of a Chroma collection.

    The records are read later, page by page, when the rows of the result are iterated over.
    """
    asked.require_only(f"the Chroma folder {folder}", "--table", "--text-field", "--title-field")
    with needs("chromadb"):
        import chromadb
    settings = chromadb.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(folder), settings=settings)
    names = sorted(each.name for each in client.list_collections())
    name = choose_name(asked.table, names, str(folder), "collection")
    collection = client.get_collection(name, embedding_function=None)
    if not collection.count():
        raise CorpusError(
            f"{folder}: the collection {name!r} holds no records. Name another one with --table; "
            f"there are: {', '.join(names)}."
        )
    # Reading `configuration` would log a warning, since no embedding function is passed.
    space = (collection.configuration_json.get("hnsw") or {}).get("space", "")
    metric = asked.metric or _CHROMA_METRICS.get(space)
    if metric is None:
        raise CorpusError(
            f"{folder}: the collection {name!r} compares vectors by {space!r}, which this package "
            "does not. Name another metric with --metric."
        )

    def rows() -> Iterator[dict[str, object]]:
        for start in range(0, collection.count(), _PAGE):
            page = collection.get(
                include=["embeddings", "documents", "metadatas", "uris"],
                limit=_PAGE,
                offset=start,
            )
            parts = (page[name] for name in ("ids", "documents", "metadatas", "embeddings", "uris"))
            for doc_id, text, metadata, vector, uri in zip(*parts, strict=True):
                others = {"uri": uri} if uri is not None else {}  # the only link to its content
                row = _with_text({**others, **(metadata or {})}, text)
                yield {**row, _ID: doc_id, VECTOR: vector}

    text_field = asked.fields.text or _TEXT
    fields = FieldNames(id=_ID, text=text_field, title=asked.fields.title, vector=VECTOR)
    return VectorSource(rows=rows(), fields=fields, metric=metric, keeps=(client,))


def _with_text(metadata: Mapping[str, object], text: str | None) -> dict[str, object]:
    """Return the metadata of a record with its text in the field ``text``.

    A metadata field named ``text``, ``_id`` or ``vector`` would collide with a field of the record,
    so its name gets the prefix ``meta.``. A metadata field that is already called ``meta.text``
    becomes ``meta.meta.text``, so that all names stay different. There is one exception: if the
    record has no document, a string in the metadata field ``text`` becomes the text of the record.
    """
    if text is None and isinstance(own := metadata.get(_TEXT), str):
        text, metadata = own, {name: metadata[name] for name in metadata if name != _TEXT}
    renamed = {PREFIX + n if _TAKEN.fullmatch(n) else n: value for n, value in metadata.items()}
    return {**renamed, _TEXT: text}


def choose_name(asked: str | None, names: list[str], shown: str, kind: str) -> str:
    """Return the collection or table that the user named; by default, the only one."""
    listed = ", ".join(map(repr, names)) or "none"
    if asked is not None and asked not in names:
        raise CorpusError(f"{shown}: no {kind} {asked!r}; there are: {listed}.")
    if asked is None and len(names) != 1:
        raise CorpusError(f"{shown}: name the {kind} with --table; there are: {listed}.")
    return asked if asked is not None else names[0]


ENDING = ".lance"


_LANCE_METRICS: Mapping[str, Metric] = {"cosine": "cosine", "dot": "dot", "l2": "euclidean"}


def found_in_lance(folder: Path, asked: SourceOptions) -> VectorSource:
    """Find the vectors, ids, texts and metadata of a table, which is read batch by batch.

    The metric is that of the table's vector index. Without an index it is ``euclidean``, LanceDB's
    default.
    """
    table_option = () if folder.suffix == ENDING else ("--table",)
    asked.require_only(f"the LanceDB folder {folder}", *table_option, *FIELDS, "--vector-field")
    if folder.suffix == ENDING:
        folder, asked = folder.parent, replace(asked, table=folder.stem)
    names = sorted(path.stem for path in folder.glob(f"*{ENDING}") if path.is_dir())
    name = choose_name(asked.table, names, str(folder), "table")
    with needs("lancedb"):
        import lancedb
    table = lancedb.connect(str(folder)).open_table(name)
    field = asked.fields.vector or vector_field(table.schema, f"{folder}: {name}")
    batches = table.search().to_batches(_BATCH_ROWS)
    return VectorSource(
        rows=pa.RecordBatchReader.from_batches(table.schema, batches),
        fields=replace(asked.fields, vector=field),
        metric=asked.metric or _metric_of(table, field, f"{folder}: {name}"),
        keeps=(table,),
    )


def _metric_of(table: Any, field: str, shown: str) -> Metric:
    for index in table.list_indices():
        if list(index.columns) != [field]:
            continue
        stats = table.index_stats(index.name)
        distance = stats.distance_type if stats else None
        if distance is None or distance not in _LANCE_METRICS:
            raise CorpusError(
                f"{shown}: the index compares vectors by {distance!r}, which this package does "
                "not. Name another metric with --metric."
            )
        return _LANCE_METRICS[distance]
    return "euclidean"
