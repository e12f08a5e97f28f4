"""Imports from the folders of Chroma and LanceDB, which these libraries wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chromadb
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lancedb.index import IvfFlat

from sbert_search.errors import CorpusError
from sbert_search.exchange import sources
from sbert_search.exchange.import_index import import_index
from sbert_search.text.fields import FieldNames

DRAW = np.random.default_rng(5)
VECTORS = DRAW.normal(size=(2500, 8)).astype(np.float32)  # three pages of Chroma
IDS = [f"é{n}" for n in range(len(VECTORS))]
TEXTS = [f"river mill w{n}" for n in range(len(VECTORS))]
METRICS = {"cosine": "cosine", "ip": "dot", "l2": "euclidean"}


def write_chroma(folder: Path, space: str) -> Any:
    settings = chromadb.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(folder), settings=settings)
    made = client.create_collection(
        "notes", configuration={"hnsw": {"space": space}}, embedding_function=None
    )
    metadata = [{"year": n, **({"kind": "a"} if n % 2 else {})} for n in range(len(IDS))]
    made.add(ids=IDS, embeddings=VECTORS, documents=TEXTS, metadatas=metadata)
    made.delete(ids=[IDS[17]])
    return client


@pytest.mark.parametrize("space", METRICS)
def test_a_chroma_collection_comes_over_whole(space: str, tmp_path: Path) -> None:
    client = write_chroma(tmp_path / "c", space)
    index = import_index(tmp_path / "c", tmp_path / "i")
    kept = [n for n in range(len(IDS)) if n != 17]
    assert sorted(document.doc_id for document in index) == sorted(IDS[n] for n in kept)
    assert index.state.settings.metric == METRICS[space]
    document = index.get(IDS[5])
    assert document is not None
    assert (document.text, dict(document.metadata)) == (TEXTS[5], {"year": 5, "kind": "a"})
    vectors = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    wanted = vectors if space == "cosine" else VECTORS
    stored = index.state.vectors(index.state.lookup([IDS[n] for n in kept]))
    assert np.allclose(stored, wanted[kept], atol=1e-6)
    client.create_collection("more", embedding_function=None)
    with pytest.raises(CorpusError, match="name the collection with table; there are: 'more'"):
        import_index(tmp_path / "c", tmp_path / "j")
    with pytest.raises(CorpusError, match="no collection 'nots'; there are: 'more', 'notes'"):
        import_index(tmp_path / "c", tmp_path / "j", table="nots")
    assert len(import_index(tmp_path / "c", tmp_path / "j", table="notes")) == len(kept)


def test_chroma_uris_come_over_and_an_empty_collection_is_named(tmp_path: Path) -> None:
    settings = chromadb.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(tmp_path / "c"), settings=settings)
    made = client.create_collection("pictures", embedding_function=None)
    with pytest.raises(CorpusError, match=r"'pictures' holds no records.*there are: pictures"):
        import_index(tmp_path / "c", tmp_path / "i")
    made.add(ids=["a", "b"], embeddings=VECTORS[:2], uris=["file:///a.png", "file:///b.png"])
    index = import_index(tmp_path / "c", tmp_path / "i")
    assert [dict(document.metadata) for document in index] == [
        {"uri": "file:///a.png"},
        {"uri": "file:///b.png"},
    ]


def test_chroma_metadata_with_the_names_of_other_fields_are_kept(tmp_path: Path) -> None:
    settings = chromadb.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(tmp_path / "c"), settings=settings)
    made = client.create_collection("notes", embedding_function=None)
    taken = {"_id": 1, "text": "mine", "vector": 2, "meta.text": 3, "body": "other", "meta.n": 4}
    made.add(ids=["a"], embeddings=VECTORS[:1], documents=["river"], metadatas=[taken])
    made.add(ids=["b"], embeddings=VECTORS[1:2], metadatas=[{"text": "mill", "n": 5}])
    made.add(ids=["c"], embeddings=VECTORS[2:3], metadatas=[{"n": 6}])
    kept = {"meta._id": 1, "meta.text": "mine", "meta.vector": 2, "meta.meta.text": 3, "meta.n": 4}
    index = import_index(tmp_path / "c", tmp_path / "i")
    assert {d.doc_id: (d.text, dict(d.metadata)) for d in index} == {
        "a": ("river", {**kept, "body": "other"}),
        "b": ("mill", {"n": 5}),
        "c": ("", {"n": 6}),
    }
    named = import_index(tmp_path / "c", tmp_path / "j", fields=FieldNames(text="body"))
    assert {d.doc_id: (d.text, dict(d.metadata)) for d in named} == {
        "a": ("other", {**kept, "text": "river"}),
        "b": ("", {"text": "mill", "n": 5}),
        "c": ("", {"n": 6}),
    }


@pytest.mark.parametrize("metric", [None, "cosine", "dot", "l2"])
def test_a_lance_table_comes_over_whole(metric: str | None, tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": IDS,
            "text": TEXTS,
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.reshape(-1)), 8),
            "year": np.arange(len(IDS)),
            "tags": [["a", "b"]] * len(IDS),
        }
    )
    made = lancedb.connect(str(tmp_path / "l")).create_table("notes", table)
    made.delete("year = 17")
    if metric:
        made.create_index("vector", config=IvfFlat(distance_type=metric, num_partitions=2))
    for source in (tmp_path / "l", tmp_path / "l" / "notes.lance"):
        index = import_index(source)
        assert len(index) == len(IDS) - 1
        assert index.state.settings.metric == METRICS.get(metric or "l2", metric)
        document = index.get(IDS[5])
        assert document is not None
        assert dict(document.metadata) == {"year": 5, "tags": ["a", "b"]}
        stored = index.state.vectors(index.state.lookup(IDS[:5]))
        unit = np.linalg.norm(VECTORS[:5], axis=1, keepdims=True) if metric == "cosine" else 1
        assert np.allclose(stored, VECTORS[:5] / unit, atol=1e-6)


@pytest.mark.parametrize("engine", ["CHROMA", "LANCE"])
def test_a_metric_that_is_named_takes_the_place_of_an_unknown_one(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "CHROMA":
        write_chroma(tmp_path / "s", "l2")
    else:
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.reshape(-1)), 8)
        table = pa.table({"id": IDS, "text": TEXTS, "vector": vectors})
        made = lancedb.connect(str(tmp_path / "s")).create_table("notes", table)
        made.create_index("vector", config=IvfFlat(distance_type="l2", num_partitions=2))
    monkeypatch.setattr(sources, f"_{engine}_METRICS", {})
    with pytest.raises(CorpusError, match=r"by 'l2', .* Name another metric with metric\."):
        import_index(tmp_path / "s")
    assert import_index(tmp_path / "s", metric="dot").state.settings.metric == "dot"
