"""Exports for Milvus: uploads to Milvus Lite, and the files of a bulk import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from milvus_lite.server_manager import server_manager_instance
from pymilvus import MilvusClient

from sbert_search.errors import ConfigError, ExchangeError
from sbert_search.exchange.export import export_index
from sbert_search.exchange.milvus import METRICS
from sbert_search.index.index import Index
from sbert_search.index.storage.manifest import Metric
from sbert_search.search.engine import SearchEngine
from tests.exchange.queries import N_QUERIES, best_rows, require_same, vectors_of
from tests.exchange.samples import QUESTION, require_same_ranking, run, sample
from tests.integrations.killed import run_and_kill


@pytest.fixture(scope="module", params=get_args(Metric))
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Index:
    return sample(tmp_path_factory.mktemp("a") / "my.index", n=300, metric=request.param)


def test_milvus_ranks_as_the_index_does(index: Index, tmp_path: Path) -> None:
    url = str(tmp_path / "m.db")
    report = export_index(index, "milvus", url=url)
    assert (report.name, report.passages) == ("my", index.state.n_rows)
    client = MilvusClient(url)
    client.load_collection("my")
    where = "year >= 1910 and array_contains(tags, 'river')"
    n_queries = N_QUERIES if index.state.settings.metric == "cosine" else 100
    for condition, there in (("year >= 1910 AND 'river' IN tags", where), (None, "")):
        queries = vectors_of(index, n_queries)
        best = best_rows(index, queries, condition)
        for start in range(0, n_queries, 100):
            found = client.search(
                "my",
                data=queries[start : start + 100].tolist(),
                filter=there,
                limit=10,
                search_params={"metric_type": METRICS[index.state.settings.metric]},
                output_fields=["doc_id", "chunk"],
            )
            for hits, wanted in zip(found, best[start : start + 100], strict=True):
                named = [(hit["entity"]["doc_id"], hit["entity"]["chunk"]) for hit in hits]
                require_same(named, wanted)
    stored = client.query("my", filter="doc_id == 'd/21 é' and chunk == 0", output_fields=["*"])[0]
    assert (stored["seen"], stored["day"]) == ("2021-02-03T21:05:06.000789Z", "2020-01-22")
    assert stored["odd_name_"] == "v0"
    assert stored["late_column"] is None
    client.close()
    server_manager_instance.release_all()
    printed = run(report.query.replace("your question", QUESTION), tmp_path)
    engine = SearchEngine(index)
    vector = engine.embedder.encode_query([QUESTION])[0]
    if index.state.settings.metric == "euclidean":  # Milvus prints the squared distance
        printed = [[doc, chunk, "0"] for doc, chunk, _ in printed]
    require_same_ranking(printed, engine, vector)


def test_the_files_hold_the_fields_of_their_schema(index: Index, tmp_path: Path) -> None:
    report = export_index(index, "milvus", tmp_path / "m")
    assert [path.name for path in report.files] == ["schema.json", "part-00000.parquet", "query.py"]
    described = json.loads((tmp_path / "m" / "schema.json").read_text())
    table = pq.read_table(tmp_path / "m" / "part-00000.parquet")
    assert table.column_names == [field["name"] for field in described["fields"]]
    assert table.schema.field("year").type == pa.int64()
    assert table.schema.field("tags").type == pa.list_(pa.string())
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    assert np.array_equal(vectors, index.state.vectors(index.state.live_rows()))
    assert described["index"]["metric_type"] == METRICS[index.state.settings.metric]
    with pytest.raises(ConfigError, match="exists already; name a new folder"):
        export_index(index, "milvus", tmp_path / "m")


def test_a_text_that_milvus_cannot_hold_is_named(tmp_path: Path) -> None:
    row = {"_id": "long", "text": "mill", "note": "é" * 40_000}
    index = Index.build([row], out=tmp_path / "i", model="hashing")
    with pytest.raises(ExchangeError, match="Document 'long': 'note' has 80,000 bytes"):
        export_index(index, "milvus", tmp_path / "m")
    assert not (tmp_path / "m").exists()
    assert not (tmp_path / "m.tmp").exists()
    export_index(index, "milvus", tmp_path / "m", columns=[])


KILLED = """
from sbert_search.exchange import export, upload
from pathlib import Path
import os, signal

folder = Path(sys.argv[1])
send = export.milvus.MilvusReceiver.send
sent = []
def counted(self, batch):
    send(self, batch)
    sent.append(batch)
    if len(sent) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
export.milvus.MilvusReceiver.send = counted
upload.BATCH_ROWS = 50
export.export_index(folder / "my.index", "milvus", url=str(folder / "m.db"))
"""


def test_a_killed_upload_goes_on_and_doubles_nothing(tmp_path: Path) -> None:
    index = sample(tmp_path / "my.index", n=200)
    run_and_kill(KILLED, tmp_path)
    report = export_index(index, "milvus", url=str(tmp_path / "m.db"))
    assert report.resumed == 100
    client = MilvusClient(str(tmp_path / "m.db"))
    client.load_collection("my")
    rows = client.query("my", filter="", output_fields=["id"], limit=10_000)
    client.close()
    assert len({row["id"] for row in rows}) == len(rows) == index.state.n_rows
