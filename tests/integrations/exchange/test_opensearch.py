"""Exports for OpenSearch: files, and uploads by the real client to a recording server."""

from __future__ import annotations

import json
import runpy
import traceback
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from google.protobuf import json_format
from opensearch.protobufs.schemas import common_pb2

from sbert_search import IndexSpec
from sbert_search.errors import ConfigError, ExchangeError
from sbert_search.exchange.export import export_index
from sbert_search.exchange.plan import Target
from sbert_search.index.index import Index
from tests.exchange.samples import sample
from tests.integrations.exchange.recording import Recording, recording
from tests.integrations.killed import run_and_kill

KNN_VECTOR = {
    "type": "object",
    "required": ["type", "dimension", "space_type", "method"],
    "additionalProperties": False,
    "properties": {
        "type": {"const": "knn_vector"},
        "dimension": {"type": "integer", "minimum": 1, "maximum": 16000},
        "space_type": {"enum": ["l2", "cosinesimil", "innerproduct"]},
        "method": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "engine"],
            "properties": {
                "name": {"const": "hnsw"},
                "engine": {"enum": ["faiss", "lucene"]},
                "parameters": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "m": {"type": "integer", "minimum": 2, "maximum": 100},
                        "ef_construction": {"type": "integer", "minimum": 2},
                    },
                },
            },
        },
    },
}
FIELD = {
    "type": "object",
    "required": ["type"],
    "additionalProperties": False,
    "properties": {
        "type": {
            "enum": ["keyword", "text", "integer", "long", "double", "boolean", "date"],
        },
        "analyzer": {"type": "string"},
        "ignore_above": {"type": "integer", "maximum": 8191},
    },
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return sample(tmp_path_factory.mktemp("a") / "my.index", n=200)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Recording]]:
    monkeypatch.setattr("sbert_search.exchange.upload.FIRST_WAIT_S", 0.001)
    with recording() as started:
        yield started


def query_in(code: str, folder: Path) -> dict[str, object]:
    """Run the lines of a printed query that make its bodies; return the dense and hybrid one."""
    start, end = code.index("query ="), code.index("body =")
    rest = code[code.index("words =") : code.index("# client.search")]
    path = folder / "bodies.py"
    path.write_text(code[start:end] + rest)
    names = runpy.run_path(str(path), init_globals={"vector": [0.5, 1.0]})
    return {"dense": names["query"], "hybrid": names["both"]}


def published(body: object) -> object:
    """Write a query as the published schema does: the field of knn is a value, and not a name."""
    if isinstance(body, list):
        return [published(each) for each in body]
    if not isinstance(body, dict):
        return body
    if "knn" in body:
        ((field, settings),) = body["knn"].items()
        return {"knn": {"field": field, **settings}}
    return {name: published(value) for name, value in body.items()}


def require_index_body(body: object) -> None:
    assert isinstance(body, dict)
    fields = dict(body["mappings"]["properties"])
    jsonschema.validate(fields.pop("vector"), KNN_VECTOR)
    for field in fields.values():
        jsonschema.validate(field, FIELD)
    assert body["settings"]["index"]["knn"] is True


def test_the_files_hold_every_passage_once_in_parts_of_bounded_size(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbert_search.exchange.opensearch.BULK_BYTES", 20_000)
    report = export_index(index, "opensearch", tmp_path / "o")
    names = [path.name for path in report.files]
    assert names[:3] == ["index.json", "pipeline.json", "bulk-00000.ndjson"]
    assert sorted(names) == sorted(path.name for path in (tmp_path / "o").iterdir())
    body = json.loads((tmp_path / "o" / "index.json").read_text())
    require_index_body(body)
    assert body["mappings"]["properties"]["day"] == {"type": "date"}
    assert body["mappings"]["properties"]["text"]["analyzer"] == "english"
    rows = []
    for path in report.files:
        if path.suffix == ".ndjson":
            assert path.stat().st_size <= 20_000
            rows += [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["index"]["_id"] for row in rows[::2]}) == index.state.n_rows
    vectors = np.array([row["vector"] for row in rows[1::2]], np.float32)
    assert np.array_equal(vectors, index.state.vectors(index.state.live_rows()))
    fields = set(body["mappings"]["properties"])
    assert all(set(row) <= fields for row in rows[1::2])


@pytest.mark.parametrize("spec", ["Flat", "HNSW8"])
def test_queries_are_those_of_the_published_schema(spec: str, tmp_path: Path) -> None:
    rows = [{"_id": "a", "text": "mill"}]
    small = Index.build(rows, out=tmp_path / "i", model="hashing:2", spec=IndexSpec(factory=spec))
    code = export_index(small, "opensearch", tmp_path / "o").query
    bodies = query_in(code, tmp_path)
    json_format.ParseDict(published(bodies["hybrid"]), common_pb2.QueryContainer())
    dense = bodies["dense"]
    if spec != "Flat":
        json_format.ParseDict(published(dense), common_pb2.QueryContainer())
        return
    # The published schema has no script_score; this is the form of OpenSearch's documentation.
    params = {"field": "vector", "query_value": [0.5, 1.0], "space_type": "cosinesimil"}
    script = {"lang": "knn", "source": "knn_score", "params": params}
    assert dense == {"script_score": {"query": {"match_all": {}}, "script": script}}


def test_an_upload_makes_the_index_and_sends_every_passage(
    index: Index, server: tuple[str, Recording]
) -> None:
    url, record = server
    report = export_index(index, "opensearch", url=url.replace("//", "//user:secret@"))
    assert report.url == url
    assert "secret" not in report.query
    require_index_body(record.indexes["my"])
    assert "my" in record.pipelines
    assert record.refresh == {"my": None}
    assert max(record.bulks) <= 256
    assert len(record.documents["my"]) == report.passages == index.state.n_rows
    with pytest.raises(ConfigError, match="holds 'my' already"):
        export_index(index, "opensearch", url=url)


@pytest.mark.parametrize("url", ["me:secret@localhost:9200", "http://me:sec/ret@localhost:9200"])
@pytest.mark.parametrize("to", ["milvus", "opensearch"])
def test_a_wrong_url_is_refused_without_its_password(index: Index, to: Target, url: str) -> None:
    with pytest.raises(ConfigError, match=r"^url (http://)?localhost:9200: ") as caught:
        export_index(index, to, url=url)
    shown = "".join(traceback.format_exception(caught.value))
    assert "secret" not in shown
    assert "sec/ret" not in shown


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(
    index: Index,
    server: tuple[str, Recording],
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, record = server
    record.fault = lambda number: (status, {"error": "busy"}) if number in (1, 2, 4) else None
    assert export_index(index, "opensearch", url=url).passages == len(record.documents["my"])
    assert capsys.readouterr().err.count("The engine is busy or away (") == 3


def test_passages_that_a_busy_server_left_out_are_sent_again(
    index: Index, server: tuple[str, Recording]
) -> None:
    url, record = server
    record.refused = {"d/21 é": 429}

    def recovers(number: int) -> None:
        if number == 3:
            record.refused = {}

    record.fault = recovers
    assert export_index(index, "opensearch", url=url).passages == len(record.documents["my"])
    assert len(record.bulks) > 2


def test_refused_passages_are_named_and_the_rest_follows_later(
    index: Index, server: tuple[str, Recording]
) -> None:
    url, record = server
    record.refused = {"d/21 é": 400}
    with pytest.raises(ExchangeError, match=r"documents 'd/21 é'.*: mapper_parsing_exception"):
        export_index(index, "opensearch", url=url)
    record.refused = {}
    export_index(index, "opensearch", url=url)
    assert len(record.documents["my"]) == index.state.n_rows


def test_a_server_that_never_answers_is_named(index: Index, server: tuple[str, Recording]) -> None:
    url, record = server
    record.fault = lambda number: (503, {"error": "busy"})
    with pytest.raises(ExchangeError, match="did not answer as it should 8 times"):
        export_index(index, "opensearch", url=url)
    assert len(record.bulks) == 8
    record.fault = lambda number: None
    export_index(index, "opensearch", url=url)
    assert len(record.documents["my"]) == index.state.n_rows


def test_a_count_that_differs_is_an_error(index: Index, server: tuple[str, Recording]) -> None:
    url, record = server

    def another_program(number: int) -> None:
        record.documents["my"]["other"] = {}

    record.fault = another_program
    with pytest.raises(ExchangeError, match="Another program may write to it; pass replace=True"):
        export_index(index, "opensearch", url=url)
    record.fault = lambda number: None
    export_index(index, "opensearch", url=url, replace=True)


KILLED = """
from sbert_search.exchange import export, upload
from pathlib import Path
import os, signal

send = export.opensearch.OpenSearchReceiver.send
sent = []
def counted(self, batch):
    send(self, batch)
    sent.append(batch)
    if len(sent) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
export.opensearch.OpenSearchReceiver.send = counted
upload.BATCH_ROWS = 50
export.export_index(Path(sys.argv[1]) / "my.index", "opensearch", url=%r)
"""


def test_a_killed_upload_goes_on_after_the_last_batch(
    tmp_path: Path, server: tuple[str, Recording]
) -> None:
    url, record = server
    index = sample(tmp_path / "my.index", n=200)
    run_and_kill(KILLED % url, tmp_path)
    assert record.bulks == [50, 50, 50]
    assert export_index(index, "opensearch", url=url).resumed == 100
    assert len(record.documents["my"]) == index.state.n_rows
    assert sum(record.bulks) == index.state.n_rows + 50
