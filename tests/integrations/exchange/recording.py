"""A server with the paths of OpenSearch that an upload uses: it checks, records and can fail."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

Fault = Callable[[int], tuple[int, dict[str, object]] | None]


class Recording:
    """What a client sent.

    Attributes:
        indexes: Body of each index by its name.
        pipelines: Body of each search pipeline.
        documents: The stored documents of each index by id.
        refresh: The refresh interval of each index.
        bulks: Number of documents of each bulk request.
        fault: Called with the number of a bulk request; an answer in place of success, or None.
        refused: Status for a document, by its id; others are stored.
    """

    def __init__(self) -> None:
        self.indexes: dict[str, dict[str, object]] = {}
        self.pipelines: dict[str, object] = {}
        self.documents: dict[str, dict[str, dict[str, object]]] = {}
        self.refresh: dict[str, object] = {}
        self.bulks: list[int] = []
        self.fault: Fault = lambda number: None
        self.refused: dict[str, int] = {}

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        data = request.get_data()
        if request.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        parts = request.path.strip("/").split("/")
        status, body = self._answered(request.method, parts, data)
        return Response(json.dumps(body), status, content_type="application/json")

    def _answered(
        self, method: str, parts: list[str], data: bytes
    ) -> tuple[int, dict[str, object]]:
        name = parts[0]
        match method, parts[1:]:
            case "PUT", ["pipeline", pipeline]:
                self.pipelines[pipeline] = json.loads(data)
            case "HEAD", []:
                return (200 if name in self.indexes else 404), {}
            case "PUT", []:
                self.indexes[name] = json.loads(data)
                self.documents[name] = {}
            case "DELETE", []:
                del self.indexes[name], self.documents[name]
            case "PUT", ["_settings"]:
                self.refresh[name] = json.loads(data)["index"]["refresh_interval"]
            case "POST", ["_bulk"]:
                return self._bulk(name, data)
            case "POST", ["_refresh"]:
                pass
            case (("GET" | "POST"), ["_count"]):
                return 200, {"count": len(self.documents[name])}
            case _:
                return 400, {"error": f"unexpected {method} {parts}"}
        return 200, {"acknowledged": True}

    def _bulk(self, name: str, data: bytes) -> tuple[int, dict[str, object]]:
        assert data.endswith(b"\n")
        rows = [json.loads(line) for line in data.splitlines()]
        self.bulks.append(len(rows) // 2)
        if (fault := self.fault(len(self.bulks))) is not None:
            return fault
        items = []
        for action, source in zip(rows[::2], rows[1::2], strict=True):
            point = action["index"]["_id"]
            status = self.refused.get(source["doc_id"], 201)
            if status == 201:
                self.documents[name][point] = source
            error = {} if status == 201 else {"error": {"reason": "mapper_parsing_exception"}}
            items.append({"index": {"_id": point, "status": status, **error}})
        return 200, {"errors": any("error" in i["index"] for i in items), "items": items}


@contextmanager
def recording() -> Iterator[tuple[str, Recording]]:
    """Run a server; yield its URL and what it recorded."""
    record, server = Recording(), HTTPServer(host="localhost")
    server.expect_request(re.compile(".*")).respond_with_handler(record.answer)
    server.start()
    try:
        yield server.url_for("").rstrip("/"), record
    finally:
        server.stop()
