"""Exports to files: complete, with the ranking of the index, and refused by name."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import get_args

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest

from sbert_search.base.files import use_disk
from sbert_search.errors import ConfigError
from sbert_search.exchange.export import export_index
from sbert_search.exchange.file_targets import sidecar
from sbert_search.exchange.plan import Target
from sbert_search.index.index import Index
from sbert_search.index.storage.manifest import Metric
from sbert_search.search.engine import SearchEngine
from tests.exchange.samples import QUESTION, require_same_ranking, run, sample
from tests.faults import FaultDisk, Killed


@pytest.fixture(scope="module", params=get_args(Metric))
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Index:
    return sample(tmp_path_factory.mktemp("a") / "i", metric=request.param)


@pytest.mark.thorough
@pytest.mark.parametrize("to", ["parquet", "faiss"])
def test_the_printed_code_gives_the_ranking_of_the_index(
    index: Index, to: Target, tmp_path: Path
) -> None:
    report = export_index(index, to, tmp_path / f"x.{to}")
    assert (report.documents, report.passages) == (len(index), index.state.n_rows)
    printed = run(report.query.replace("your question", QUESTION), tmp_path)
    engine = SearchEngine(index)
    require_same_ranking(printed, engine, engine.embedder.encode_query([QUESTION])[0])


def test_a_parquet_file_has_each_passage_with_typed_columns(index: Index, tmp_path: Path) -> None:
    report = export_index(index, "parquet", tmp_path / "x.parquet")
    assert report.fields["chunk"] == "meta.chunk"
    table = pq.read_table(tmp_path / "x.parquet")
    rows = index.state.live_rows()
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    assert np.array_equal(vectors, index.state.vectors(rows))
    assert table["doc_id"].to_pylist() == index.state.doc_ids(rows)
    assert str(table.schema.field("seen").type) == "timestamp[us, tz=UTC]"
    assert not {"d/3 é", "d/12 é"} & set(table["doc_id"].to_pylist())


def test_a_faiss_file_has_the_bytes_that_faiss_writes(index: Index, tmp_path: Path) -> None:
    export_index(index, "faiss", tmp_path / "x.faiss", columns=["year"])
    kind = faiss.IndexFlatL2 if index.state.settings.metric == "euclidean" else faiss.IndexFlatIP
    whole = kind(32)
    whole.add(index.state.vectors(index.state.live_rows()))
    assert (tmp_path / "x.faiss").read_bytes() == faiss.serialize_index(whole).tobytes()
    table = pq.read_table(sidecar(tmp_path / "x.faiss"))
    assert table.num_rows == index.state.n_rows
    assert table.column_names[-1] == "year"
    assert "vector" not in table.column_names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "word", "out": "x"}, "to is 'word'; it must be one of parquet"),
        ({"to": "parquet"}, "An export to parquet writes a file"),
        ({"to": "faiss", "out": "absent/x"}, "is not a folder. Create it first"),
        ({"to": "parquet", "out": "i/x"}, "which is read. Name a path outside"),
        ({"to": "parquet", "out": "x", "columns": ["yaer"]}, "did you mean 'year'"),
    ],
)
def test_what_cannot_be_exported_is_refused_by_name(
    arguments: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Index.build([{"_id": "a", "text": "t", "year": 1}], out="i", model="hashing")
    with pytest.raises(ConfigError, match=message):
        export_index("i", **arguments)  # type: ignore[arg-type]
    assert os.listdir() == ["i"]


def test_a_folder_of_the_temporary_name_is_kept(index: Index, tmp_path: Path) -> None:
    (tmp_path / "x.tmp").mkdir()
    (tmp_path / "x.tmp" / "mine").write_text("mine")
    with pytest.raises(ConfigError, match=r"x\.tmp exists"):
        export_index(index, "opensearch", tmp_path / "x")
    assert (tmp_path / "x.tmp" / "mine").read_text() == "mine"
    assert not (tmp_path / "x").exists()


def test_a_killed_export_leaves_no_vectors_with_other_ids(index: Index, tmp_path: Path) -> None:
    out = tmp_path / "x.faiss"
    for step in count(1):
        out.write_bytes(b"old")
        sidecar(out).write_bytes(b"old")
        disk = FaultDisk(step, "kill")
        try:
            with use_disk(disk):
                export_index(index, "faiss", out)
            break
        except Killed:
            if out.exists():
                is_old = out.read_bytes() == b"old"
                assert is_old == (sidecar(out).read_bytes() == b"old")
    assert step > 4
    assert faiss.read_index(str(out)).ntotal == index.state.n_rows


@pytest.mark.thorough
@pytest.mark.parametrize("n", [0, 3])
def test_the_printed_code_shows_no_more_passages_than_there_are(n: int, tmp_path: Path) -> None:
    rows = [{"_id": f"d{i}", "text": f"word{i}"} for i in range(n + 1)]
    index = Index.build(rows, out=tmp_path / "i", model="hashing:8")
    index.delete(f"d{n}")
    report = export_index(index, "faiss", tmp_path / "x.faiss")
    printed = run(report.query, tmp_path)
    assert sorted(line[0] for line in printed) == [f"d{i}" for i in range(n)]


def test_an_integer_beyond_2_to_the_53_is_exported_from_a_column_that_became_float(
    tmp_path: Path,
) -> None:
    index = Index.build(
        [{"_id": "a", "text": "x", "n": 2**60}], out=tmp_path / "i", model="hashing"
    )
    index.add([{"_id": "b", "text": "y", "n": 0.5}])
    export_index(index, "parquet", tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet")["n"].to_pylist() == [2.0**60, 0.5]
