"""OpenSearch: the requests that make, fill and search its index, as files or through its client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from sbert_search.base.files import NewFile, write_new
from sbert_search.base.progress import shown_url
from sbert_search.errors import ConfigError, ExchangeError
from sbert_search.exchange.clients import needs
from sbert_search.exchange.passages import Passages, engine_types, records
from sbert_search.exchange.plan import QUESTION, VECTOR, ExportPlan, question_vector
from sbert_search.index.storage.manifest import Metric

SPACES: Mapping[Metric, str] = {"cosine": "cosinesimil", "dot": "innerproduct", "euclidean": "l2"}
BULK_BYTES = 10 << 20  # of a bulk request; OpenSearch advises 5 to 15 MB, and refuses over 100 MB
PIPELINE: Mapping[str, object] = {
    "description": "Join lexical and dense scores, scaled for each query",
    "phase_results_processors": [
        {
            "normalization-processor": {
                "normalization": {"technique": "min_max"},
                "combination": {
                    "technique": "arithmetic_mean",
                    "parameters": {"weights": [0.5, 0.5]},
                },
            }
        }
    ],
}
_TYPES = {
    "string": "keyword",
    "int64": "long",
    "float64": "double",
    "bool": "boolean",
    "timestamp": "date",
    "date": "date",
}
_KEYWORD = {"type": "keyword", "ignore_above": 8191}  # Lucene refuses words over 32,766 bytes
_ANALYZERS = (  # languages of the index for which OpenSearch has an analyzer of the same name
    *("arabic", "armenian", "basque", "catalan", "czech", "danish", "dutch", "english", "finnish"),
    *("french", "german", "greek", "hindi", "hungarian", "indonesian", "irish", "italian"),
    *("lithuanian", "norwegian", "portuguese", "romanian", "russian", "spanish", "swedish"),
    "turkish",
)
_BUSY = (408, 429, 502, 503, 504)
_SHOWN = 5  # maximum number of documents that an error names


def index_body(plan: ExportPlan) -> dict[str, object]:
    """Return the body that creates the index: its settings and the types of its fields."""
    lexical = plan.snapshot.manifest.lexical
    language = lexical.language if lexical else "none"
    text = {"type": "text", "analyzer": language if language in _ANALYZERS else "standard"}
    similarity = {"type": "BM25", **({"k1": lexical.k1, "b": lexical.b} if lexical else {})}
    vector = {
        "type": "knn_vector",
        "dimension": plan.dim,
        "space_type": SPACES[plan.metric],
        "method": {
            "name": "hnsw",
            "engine": "faiss",
            "parameters": {"m": 16, "ef_construction": 100},
        },
    }
    fields = {
        name: _KEYWORD if kind == "keyword" else {"type": kind}
        for name, kind in engine_types(plan.kinds, _TYPES).items()
    }
    return {
        "settings": {"index": {"knn": True, "similarity": {"default": similarity}}},
        "mappings": {
            "dynamic": "strict",
            "properties": {
                "doc_id": {"type": "keyword"},
                "chunk": {"type": "integer"},
                "title": text,
                "text": text,
                **fields,
                VECTOR: vector,
            },
        },
    }


def bulk_lines(batch: Passages, plan: ExportPlan) -> Iterator[tuple[str, bytes]]:
    """Yield the document id of each passage and its two lines of a bulk request."""
    rows = zip(batch.ids, records(batch, plan.kinds), batch.vectors, strict=True)
    for point, record, vector in rows:
        action = json.dumps({"index": {"_id": point}})
        source = json.dumps({**record, VECTOR: vector.tolist()}, ensure_ascii=False)
        yield str(record["doc_id"]), f"{action}\n{source}\n".encode()


def write_files(plan: ExportPlan, folder: Path) -> list[Path]:
    """Write the request bodies that create the index and the search pipeline, and bulk requests."""
    written = [folder / "index.json", folder / "pipeline.json"]
    for path, body in zip(written, (index_body(plan), PIPELINE), strict=True):
        write_new(path, json.dumps(body, indent=2).encode() + b"\n")
    pairs = (pair for block in plan.passages() for _, pair in bulk_lines(block, plan))
    pair = next(pairs, None)
    while pair is not None:
        written.append(folder / f"bulk-{len(written) - 2:05}.ndjson")
        with NewFile(written[-1]) as file:
            while pair is not None and (not file.n_bytes or file.n_bytes + len(pair) <= BULK_BYTES):
                file.write(pair)
                pair = next(pairs, None)
    return written


class OpenSearchReceiver:
    """Uploads passages to an index of OpenSearch."""

    def __init__(self, plan: ExportPlan, url: str, name: str, api_key: str | None) -> None:
        with needs("opensearch-py", "opensearch"):
            import opensearchpy
        if urlsplit(url).scheme not in ("http", "https"):
            raise ConfigError(
                f"--url {shown_url(url)}: OpenSearch needs a URL such as http://localhost:9200."
            )
        self._plan, self._name, self._errors = plan, name, opensearchpy.exceptions
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = opensearchpy.OpenSearch(
            url, headers=headers, http_compress=True, timeout=60, max_retries=0
        )

    def exists(self) -> bool:
        """Whether there is an index of this name."""
        return bool(self._client.indices.exists(index=self._name))

    def drop(self) -> None:
        """Delete the index."""
        self._client.indices.delete(index=self._name)

    def create(self) -> None:
        """Make the search pipeline and the index; turn refreshing off until `finish`."""
        self._client.http.put(f"/_search/pipeline/{self._name}", body=dict(PIPELINE))
        self._client.indices.create(index=self._name, body=index_body(self._plan))
        self._refresh_every("-1")

    def send(self, batch: Passages) -> None:
        """Write passages; passages with the same ids are replaced.

        If the server was too busy for some passages, `_Busy` is raised: send the batch again.
        """
        pairs = list(bulk_lines(batch, self._plan))
        answer = self._client.bulk(index=self._name, body=b"".join(pair for _, pair in pairs))
        if not answer["errors"]:
            return
        failed = [
            (doc_id, item["index"])
            for (doc_id, _), item in zip(pairs, answer["items"], strict=True)
            if item["index"]["status"] >= 400
        ]
        refused = [(doc_id, item) for doc_id, item in failed if item["status"] not in _BUSY]
        if refused:
            reason = refused[0][1].get("error", {}).get("reason", "no reason given")
            named = ", ".join(repr(doc_id) for doc_id, _ in refused[:_SHOWN])
            more = f" and {len(refused) - _SHOWN:,} more" if len(refused) > _SHOWN else ""
            raise ExchangeError(
                f"OpenSearch refused passages of the documents {named}{more}: {reason}. Correct "
                "the index in OpenSearch and run the command again without --replace to continue "
                "the upload. Or correct the documents and run the command with --replace."
            )
        raise _Busy(f"{len(failed):,} passages were not taken, status {failed[0][1]['status']}")

    def finish(self) -> None:
        """Make all passages searchable."""
        self._refresh_every(None)
        self._client.indices.refresh(index=self._name)

    def count(self) -> int:
        """Count the passages."""
        return int(self._client.count(index=self._name)["count"])

    def is_transient(self, error: Exception) -> bool:
        """Whether the server is busy or cannot be reached."""
        if isinstance(error, self._errors.TransportError):
            status = error.status_code
            return status in _BUSY or isinstance(error, self._errors.ConnectionError)
        return isinstance(error, (_Busy, ConnectionError))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _refresh_every(self, seconds: str | None) -> None:
        settings = {"index": {"refresh_interval": seconds}}
        self._client.indices.put_settings(index=self._name, body=settings)


class _Busy(Exception):  # noqa: N818 (it is caught, and the batch is sent again)
    """The server took a bulk request, but not all of its passages."""


def query_of(plan: ExportPlan, url: str, name: str) -> str:
    """Return Python code that searches the index: exactly if ``plan.exact``, else by HNSW."""
    lexical = plan.snapshot.manifest.lexical
    weight = lexical.title_weight if lexical else 1
    knn = f"{{'knn': {{{VECTOR!r}: {{'vector': vector, 'k': 100}}}}}}"
    exact = (
        "{'script_score': {'query': {'match_all': {}}, 'script': {\n"
        "    'lang': 'knn', 'source': 'knn_score',\n"
        f"    'params': {{'field': {VECTOR!r}, 'query_value': vector,\n"
        f"               'space_type': {SPACES[plan.metric]!r}}},\n"
        "}}}"
    )
    return (
        "from opensearchpy import OpenSearch\n\n"
        f"{question_vector(plan)}"
        f"client = OpenSearch({url!r})\n"
        f"query = {exact if plan.exact else knn}\n"
        "body = {'size': 10, 'query': query, '_source': ['doc_id', 'chunk']}\n"
        f"for hit in client.search(index={name!r}, body=body)['hits']['hits']:\n"
        "    print(hit['_source']['doc_id'], hit['_source']['chunk'], hit['_score'])\n\n"
        "# Hybrid search: words and vector, joined by the search pipeline.\n"
        f"words = {{'multi_match': {{'query': {QUESTION!r},\n"
        f"                         'fields': ['title^{weight}', 'text']}}}}\n"
        "both = {'hybrid': {'pagination_depth': 100, 'queries': [\n"
        f"    words, {knn},\n"
        "]}}\n"
        f"# client.search(index={name!r}, body={{'query': both}},\n"
        f"#               params={{'search_pipeline': {name!r}}})\n"
    )
