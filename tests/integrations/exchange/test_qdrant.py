"""Uploads to the local mode of Qdrant's client: rankings, filters, kills and refusals.

The local mode is written in Python. What it holds is also given to Qdrant's own engine, which runs
without a server in the package `qdrant-edge-py` and opens no folders of the local mode.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import qdrant_edge as edge
from qdrant_client import QdrantClient, models

from sbert_search.errors import ConfigError, ExchangeError
from sbert_search.exchange.export import export_index
from sbert_search.exchange.passages import engine_types
from sbert_search.exchange.qdrant import DISTANCES, PAYLOAD_INDEXES
from sbert_search.index.index import Index
from sbert_search.index.storage.manifest import Metric
from sbert_search.search.engine import SearchEngine
from tests.exchange.queries import N_QUERIES, best_rows, require_same, vectors_of
from tests.exchange.samples import QUESTION, require_same_ranking, run, sample
from tests.integrations.killed import run_and_kill

FILTER = models.Filter(
    must=[
        models.FieldCondition(key="year", range=models.Range(gte=1910)),
        models.FieldCondition(key="tags", match=models.MatchValue(value="river")),
    ]
)


@pytest.fixture(scope="module", params=get_args(Metric))
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Index:
    return sample(tmp_path_factory.mktemp("a") / "my.index", n=150, metric=request.param)


def test_qdrant_ranks_as_the_index_does(index: Index, tmp_path: Path) -> None:
    report = export_index(index, "qdrant", url=str(tmp_path / "q"))
    assert (report.name, report.passages) == ("my", index.state.n_rows)
    assert not list(index.path.parent.glob("*.cursor.json"))
    client = QdrantClient(path=str(tmp_path / "q"))
    most = N_QUERIES if index.state.settings.metric == "cosine" else 100  # 5 ms each, in Python
    filtered = "year >= 1910 AND 'river' IN tags"
    for where, condition, n_queries in ((None, None, most), (filtered, FILTER, 100)):
        queries = vectors_of(index, n_queries)
        best = best_rows(index, queries, where)
        for query, wanted in zip(queries, best, strict=True):
            points = client.query_points(
                "my",
                query=query,
                query_filter=condition,
                limit=10,
            ).points
            payloads = [point.payload or {} for point in points]
            require_same([(p["doc_id"], p["chunk"]) for p in payloads], wanted)
    client.close()
    printed = run(report.query.replace("your question", QUESTION), tmp_path)
    engine = SearchEngine(index)
    require_same_ranking(printed, engine, engine.embedder.encode_query([QUESTION])[0])


def test_the_engine_of_qdrant_ranks_as_the_index_does(index: Index, tmp_path: Path) -> None:
    report = export_index(index, "qdrant", url=str(tmp_path / "q"))
    client = QdrantClient(path=str(tmp_path / "q"))
    points, _ = client.scroll("my", limit=100_000, with_vectors=True)
    client.close()
    distance = getattr(edge.Distance, DISTANCES[index.state.settings.metric])
    vectors = edge.EdgeVectorParams(size=index.state.settings.dim, distance=distance)
    shard = edge.EdgeShard.create(str(tmp_path / "edge"), edge.EdgeConfig(vectors=vectors))
    given = [edge.Point(id=p.id, vector=p.vector, payload=p.payload) for p in points]
    shard.update(edge.UpdateOperation.upsert_points(given))
    kinds = {there: index.state.columns[name] for name, there in report.fields.items()}
    for field, kind in {"doc_id": "keyword", **engine_types(kinds, PAYLOAD_INDEXES)}.items():
        schema = getattr(edge.PayloadSchemaType, kind.capitalize())
        shard.update(edge.UpdateOperation.create_field_index(field, schema))
    assert shard.count(edge.CountRequest()) == report.passages == len(points)
    year = edge.FieldCondition(key="year", range=edge.RangeFloat(gte=1910))
    tags = edge.FieldCondition(key="tags", match=edge.MatchValue("river"))
    filtered = "year >= 1910 AND 'river' IN tags"
    queries = vectors_of(index, N_QUERIES)
    for where, condition in ((None, None), (filtered, edge.Filter(must=[year, tags]))):
        for query, wanted in zip(queries, best_rows(index, queries, where), strict=True):
            asked = edge.QueryRequest(
                limit=10,
                query=edge.Query.Nearest(query.tolist()),
                filter=condition,
                with_payload=["doc_id", "chunk"],
                params=edge.SearchParams(exact=True),
            )
            found = [point.payload for point in shard.query(asked)]
            require_same([(payload["doc_id"], payload["chunk"]) for payload in found], wanted)
    shard.close()


def test_payloads_have_the_types_of_the_columns(tmp_path: Path) -> None:
    index = sample(tmp_path / "my.index", n=30)
    export_index(index, "qdrant", url=str(tmp_path / "q"), columns=["year", "seen", "odd name!"])
    client = QdrantClient(path=str(tmp_path / "q"))
    found = client.scroll(
        "my",
        scroll_filter=models.Filter(
            must=[models.FieldCondition(key="doc_id", match=models.MatchValue(value="d/21 é"))]
        ),
    )[0]
    client.close()
    first = next(point.payload for point in found if point.payload and not point.payload["chunk"])
    assert first["year"] == 1921
    assert first["seen"] == "2021-02-03T21:05:06.000789Z"
    assert first["odd_name_"] == "v0"
    assert set(first) == {"doc_id", "chunk", "title", "text", "year", "seen", "odd_name_"}


KILLED = """
from sbert_search.exchange import export, upload
from pathlib import Path
import os, signal

folder = Path(sys.argv[1])
sent = []
send = export.qdrant.QdrantReceiver.send
def counted(self, batch):
    send(self, batch)
    sent.append(batch)
    if len(sent) == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
export.qdrant.QdrantReceiver.send = counted
upload.BATCH_ROWS = 32
export.export_index(folder / "my.index", "qdrant", url=str(folder / "q"))
"""


@pytest.mark.parametrize("at", [1, 7])
def test_a_killed_upload_goes_on_and_doubles_nothing(at: int, tmp_path: Path) -> None:
    index = sample(tmp_path / "my.index", n=200)
    run_and_kill(KILLED.format(at=at), tmp_path)
    assert (tmp_path / "my.index.qdrant.cursor.json").is_file()
    report = export_index(index, "qdrant", url=str(tmp_path / "q"))
    assert report.resumed == (at - 1) * 32
    client = QdrantClient(path=str(tmp_path / "q"))
    found = {point.id for point in client.scroll("my", limit=100_000)[0]}
    client.close()
    assert len(found) == index.state.n_rows
    assert not (tmp_path / "my.index.qdrant.cursor.json").exists()


def test_a_collection_of_others_is_kept_unless_it_is_replaced(tmp_path: Path) -> None:
    index = sample(tmp_path / "my.index")
    url = str(tmp_path / "q")
    export_index(index, "qdrant", url=url)
    with pytest.raises(ConfigError, match="holds 'my' already"):
        export_index(index, "qdrant", url=url)
    export_index(index, "qdrant", url=url, name="other")
    index.delete("late")
    report = export_index(index, "qdrant", url=url, replace=True)
    client = QdrantClient(path=url)
    assert client.count("my").count == report.passages == index.state.n_rows
    assert client.count("other").count == index.state.n_rows + 1
    client.close()


def test_what_cannot_be_uploaded_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = sample(tmp_path / "my.index")
    with pytest.raises(ConfigError, match="qdrant needs either out, a new folder"):
        export_index(index, "qdrant")
    with pytest.raises(ConfigError, match="qdrant imports no files; upload with url"):
        export_index(index, "qdrant", tmp_path / "x")
    monkeypatch.setattr("sbert_search.exchange.upload.TRIES", 2)
    monkeypatch.setattr("sbert_search.exchange.upload.FIRST_WAIT_S", 0.01)
    with pytest.raises(ExchangeError, match="did not answer as it should 2 times"):
        export_index(index, "qdrant", url="http://localhost:1")
