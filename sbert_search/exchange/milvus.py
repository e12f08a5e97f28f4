"""Milvus: Parquet files for its bulk import; upload to a server or to a file of Milvus Lite."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from sbert_search.base.files import NewFile, write_new
from sbert_search.errors import ExchangeError
from sbert_search.exchange.clients import cannot_be_opened, needs
from sbert_search.exchange.file_targets import row_groups
from sbert_search.exchange.passages import Passages, item_type, records
from sbert_search.exchange.plan import ID, VECTOR, ExportPlan, question_vector
from sbert_search.index.storage.manifest import Metric

METRICS: Mapping[Metric, str] = {"cosine": "COSINE", "dot": "IP", "euclidean": "L2"}
MAX_BYTES = 65_535  # largest text in Milvus, in bytes
MAX_ITEMS = 4096  # largest number of values of a list in Milvus
_ID_BYTES = 36
_FILE_BYTES = 512 << 20  # size of a file; a bulk import reads several in parallel
_TYPES = {
    "string": "VARCHAR",
    "int64": "INT64",
    "float64": "DOUBLE",
    "bool": "BOOL",
    "timestamp": "VARCHAR",  # ISO 8601 in UTC; text order is time order
    "date": "VARCHAR",
}
_BUSY = ("rate limit", "unavailable", "timeout", "deadline", "not ready", "connect")


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A field of a collection."""

    name: str
    kind: str  # name of a member of pymilvus' enumeration `DataType`
    element: str = ""  # kind of the values of an ARRAY; "" for other kinds
    params: Mapping[str, int | bool]  # further ones, such as ``max_length``


def fields_of(plan: ExportPlan) -> list[Field]:
    """Return the fields of the collection, the vector last."""
    text, optional = {"max_length": MAX_BYTES}, {"nullable": True}
    fields = [
        Field(name=ID, kind="VARCHAR", params={"max_length": _ID_BYTES, "is_primary": True}),
        Field(name="doc_id", kind="VARCHAR", params=text),
        Field(name="chunk", kind="INT32", params={}),
        Field(name="title", kind="VARCHAR", params=text),
        Field(name="text", kind="VARCHAR", params=text),
    ]
    for name, kind in plan.kinds.items():
        inner, is_list = item_type(kind)
        stored = _TYPES[inner]
        length = text if stored == "VARCHAR" else {}
        if is_list:
            params = {**length, "max_capacity": MAX_ITEMS, **optional}
            fields.append(Field(name=name, kind="ARRAY", element=stored, params=params))
        else:
            fields.append(Field(name=name, kind=stored, params={**length, **optional}))
    return [*fields, Field(name=VECTOR, kind="FLOAT_VECTOR", params={"dim": plan.dim})]


def index_of(plan: ExportPlan) -> dict[str, object]:
    """Return the settings of the vector index: FLAT if the exported index is exact, else HNSW."""
    index = {"field_name": VECTOR, "metric_type": METRICS[plan.metric]}
    if plan.exact:
        return {**index, "index_type": "FLAT", "params": {}}
    return {**index, "index_type": "HNSW", "params": {"M": 32, "efConstruction": 200}}


class MilvusReceiver:
    """Uploads passages to a collection of Milvus."""

    def __init__(self, plan: ExportPlan, url: str, name: str, api_key: str | None) -> None:
        with needs("pymilvus", "milvus"):
            import pymilvus
        self._plan, self._url, self._name, self._milvus = plan, url, name, pymilvus
        try:
            self._client = pymilvus.MilvusClient(url, token=api_key or "")
        except (pymilvus.MilvusException, OSError, ValueError) as error:
            raise cannot_be_opened("Milvus", url, error) from None  # may have the password

    def exists(self) -> bool:
        """Whether there is a collection of this name."""
        return bool(self._client.has_collection(self._name))

    def drop(self) -> None:
        """Delete the collection."""
        self._client.drop_collection(self._name)

    def create(self) -> None:
        """Make the collection and its vector index."""
        kinds = self._milvus.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        for field in fields_of(self._plan):
            element = {"element_type": kinds[field.element]} if field.element else {}
            schema.add_field(field.name, kinds[field.kind], **element, **field.params)
        params = self._client.prepare_index_params()
        params.add_index(**index_of(self._plan))
        self._client.create_collection(self._name, schema=schema, index_params=params)

    def send(self, batch: Passages) -> None:
        """Write passages; passages with the same ids are replaced."""
        rows = zip(scalars(batch, self._plan), batch.vectors.tolist(), strict=True)
        self._client.upsert(self._name, [{**row, VECTOR: vector} for row, vector in rows])

    def finish(self) -> None:
        """Let the server write new data to disk and load the collection for searches."""
        self._client.flush(self._name)
        self._client.load_collection(self._name)

    def count(self) -> int:
        """Count the entities; each is one passage."""
        counted = self._client.query(
            self._name, filter="", output_fields=["count(*)"], consistency_level="Strong"
        )
        return int(counted[0]["count(*)"])

    def is_transient(self, error: Exception) -> bool:
        """Whether the server is busy or cannot be reached."""
        if isinstance(error, self._milvus.MilvusException):
            text = str(error).lower()
            return bool(getattr(error, "retriable", False)) or any(w in text for w in _BUSY)
        return isinstance(error, ConnectionError)

    def close(self) -> None:
        """Close the connection or the file; other processes can then open the file."""
        self._client.close()
        if "://" not in self._url:
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(self._url)


def scalars(batch: Passages, plan: ExportPlan) -> Iterator[dict[str, object]]:
    """Yield all fields of each passage except the vector."""
    none: dict[str, object] = dict.fromkeys(plan.kinds)
    for point, record in zip(batch.ids, records(batch, plan.kinds), strict=True):
        for name, value in record.items():
            _require_short(name, value, str(record["doc_id"]))
        yield {ID: point, **none, **record}


def write_files(plan: ExportPlan, folder: Path) -> list[Path]:
    """Write the Parquet files of a bulk import, and the schema of its collection."""
    schema = _arrow_schema(plan)
    described = {
        "fields": [
            {"name": field.name, "type": field.kind, "element": field.element, **field.params}
            for field in fields_of(plan)
        ],
        "index": index_of(plan),
    }
    written = [folder / "schema.json"]
    write_new(written[0], json.dumps(described, indent=2).encode() + b"\n")
    groups = row_groups(plan.passages())
    group = next(groups, None)
    while group is not None:
        written.append(folder / f"part-{len(written) - 1:05}.parquet")
        with (
            NewFile(written[-1]) as file,
            pq.ParquetWriter(cast(IO[bytes], file), schema) as writer,
        ):
            while group is not None and file.n_bytes < _FILE_BYTES:
                tables = [_table(block, plan, schema) for block in group]
                writer.write_table(pa.concat_tables(tables))
                group = next(groups, None)
    return written


def query_of(plan: ExportPlan, url: str, name: str) -> str:
    """Return Python code that searches the collection."""
    return (
        "from pymilvus import MilvusClient\n\n"
        f"{question_vector(plan)}"
        f"client = MilvusClient({url!r})\n"
        f"client.load_collection({name!r})\n"
        "hits = client.search(\n"
        f"    {name!r},\n"
        "    data=[vector],\n"
        "    limit=10,\n"
        f"    search_params={{'metric_type': {METRICS[plan.metric]!r}}},\n"
        "    output_fields=['doc_id', 'chunk'],\n"
        ")[0]\n"
        "for hit in hits:\n"
        "    print(hit['entity']['doc_id'], hit['entity']['chunk'], hit['distance'])\n"
        "client.close()\n"
    )


def _require_short(name: str, value: object, doc_id: str) -> None:
    items: Sequence[object] = value if isinstance(value, list) else [value]
    longest = max((len(item.encode()) for item in items if isinstance(item, str)), default=0)
    if longest > MAX_BYTES or len(items) > MAX_ITEMS:
        raise ExchangeError(
            f"Document {doc_id!r}: {name!r} has {longest:,} bytes and {len(items):,} values; "
            f"Milvus stores texts of at most {MAX_BYTES:,} bytes and lists of at most "
            f"{MAX_ITEMS:,} values. Leave the column out with --columns, or build the "
            "index with --on-truncate chunk."
        )


def _table(block: Passages, plan: ExportPlan, schema: pa.Schema) -> pa.Table:
    n_rows, dim = block.vectors.shape
    rows = pa.Table.from_pylist(list(scalars(block, plan)), schema.remove(len(schema) - 1))
    offsets = pa.array(range(0, n_rows * dim + 1, dim), pa.int32())
    vectors = pa.ListArray.from_arrays(offsets, pa.array(block.vectors.reshape(-1)))
    return rows.append_column(schema.field(VECTOR), vectors)


def _arrow_schema(plan: ExportPlan) -> pa.Schema:
    types = {
        "VARCHAR": pa.string(),
        "INT32": pa.int32(),
        "INT64": pa.int64(),
        "DOUBLE": pa.float64(),
        "BOOL": pa.bool_(),
        "FLOAT_VECTOR": pa.list_(pa.float32()),
    }
    return pa.schema(
        [
            (field.name, pa.list_(types[field.element]) if field.element else types[field.kind])
            for field in fields_of(plan)
        ]
    )
