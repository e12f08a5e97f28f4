"""Qdrant: upload to a server, or to a folder of the local mode of its client."""

from __future__ import annotations

from collections.abc import Mapping

from sbert_search.exchange.clients import cannot_be_opened, needs
from sbert_search.exchange.passages import Passages, engine_types, records
from sbert_search.exchange.plan import ExportPlan, question_vector
from sbert_search.index.storage.manifest import Metric

DISTANCES: Mapping[Metric, str] = {"cosine": "Cosine", "dot": "Dot", "euclidean": "Euclid"}
PAYLOAD_INDEXES = {  # Qdrant's type of a payload index, by the type of the metadata column
    "string": "keyword",
    "int64": "integer",
    "float64": "float",
    "bool": "bool",
    "timestamp": "datetime",
    "date": "datetime",
}
_THRESHOLD_KB = 10_000  # Qdrant's default: larger segments get an HNSW graph
_BUSY = (408, 429, 500, 502, 503, 504)


class QdrantReceiver:
    """Uploads passages to a collection of Qdrant."""

    def __init__(self, plan: ExportPlan, url: str, name: str, api_key: str | None) -> None:
        with needs("qdrant-client", "qdrant"):
            from qdrant_client import QdrantClient, models
            from qdrant_client.http import exceptions
        self._plan, self._name, self._models, self._errors = plan, name, models, exceptions
        self._is_local = "://" not in url
        try:
            if self._is_local:
                self._client = QdrantClient(path=url)
            else:
                self._client = QdrantClient(
                    url=url, api_key=api_key, timeout=60, check_compatibility=False
                )
        except (RuntimeError, ValueError, OSError) as error:
            raise cannot_be_opened("Qdrant", url, error) from None  # may have the password

    def exists(self) -> bool:
        """Whether there is a collection of this name."""
        return bool(self._client.collection_exists(self._name))

    def drop(self) -> None:
        """Delete the collection."""
        self._client.delete_collection(self._name)

    def create(self) -> None:
        """Make the collection; Qdrant builds no HNSW graph before `finish`."""
        models = self._models
        self._client.create_collection(
            self._name,
            vectors_config=models.VectorParams(
                size=self._plan.dim, distance=models.Distance(DISTANCES[self._plan.metric])
            ),
            optimizers_config=models.OptimizersConfigDiff(indexing_threshold=0),
        )
        if self._is_local:
            return  # a local collection has no payload indexes and filters without them
        indexed = {"doc_id": "keyword", **engine_types(self._plan.kinds, PAYLOAD_INDEXES)}
        for field, kind in indexed.items():
            schema = models.PayloadSchemaType(kind)
            self._client.create_payload_index(self._name, field, field_schema=schema)

    def send(self, batch: Passages) -> None:
        """Write passages; passages with the same ids are replaced."""
        points = self._models.Batch(
            ids=batch.ids,
            vectors=batch.vectors.tolist(),
            payloads=list(records(batch, self._plan.kinds)),
        )
        self._client.upsert(self._name, points=points, wait=True)

    def finish(self) -> None:
        """Let Qdrant build the HNSW graph."""
        threshold = self._models.OptimizersConfigDiff(indexing_threshold=_THRESHOLD_KB)
        self._client.update_collection(self._name, optimizers_config=threshold)

    def count(self) -> int:
        """Count the points; each is one passage."""
        return int(self._client.count(self._name, exact=True).count)

    def is_transient(self, error: Exception) -> bool:
        """Whether the server is busy or cannot be reached."""
        if isinstance(error, self._errors.UnexpectedResponse):
            return error.status_code in _BUSY
        return isinstance(error, (self._errors.ResponseHandlingException, ConnectionError))

    def close(self) -> None:
        """Close the connection to the server, or the folder of the local mode."""
        self._client.close()


def query_of(plan: ExportPlan, url: str, name: str) -> str:
    """Return Python code that searches the collection."""
    is_local = "://" not in url
    place = f"path={url!r}" if is_local else f"url={url!r}"
    exact = f"    search_params=models.SearchParams(exact={plan.exact}),\n"
    return (
        "from qdrant_client import QdrantClient, models\n\n"
        f"{question_vector(plan)}"
        f"client = QdrantClient({place})\n"
        "hits = client.query_points(\n"
        f"    {name!r},\n"
        "    query=vector,\n"
        "    limit=10,\n"
        f"{'' if is_local else exact}"  # local mode is always exact
        ").points\n"
        "for hit in hits:\n"
        "    print(hit.payload['doc_id'], hit.payload['chunk'], hit.score)\n"
        "client.close()\n"
    )
