"""Imports: exports come back, files of other programs are read, and faults are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError, CorpusError, ModelMismatch
from sbert_search.exchange.export import export_index
from sbert_search.exchange.import_index import import_index
from sbert_search.exchange.plan import Target
from sbert_search.index.building.model_check import as_embedder
from sbert_search.index.building.parquet import embed_to_parquet
from sbert_search.index.building.settings import ReadSettings
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.text.fields import FieldNames
from tests.exchange.samples import rows, sample
from tests.limits import memory_limited

VECTORS = np.array([[1, 0], [0, 2], [3, 4]], np.float32)


@pytest.mark.parametrize("to", ["parquet", "faiss"])
def test_documents_of_one_passage_come_back_as_they_were(to: Target, tmp_path: Path) -> None:
    first = Index.build(rows(40), out=tmp_path / "i", model="hashing:32", metric="dot")
    first.delete("d/7 é")
    export_index(first, to, tmp_path / f"x.{to}")
    again = import_index(tmp_path / f"x.{to}", tmp_path / "j", model="hashing:32")
    assert again.state.settings.metric == "dot"
    assert again.state.columns == {
        **{f"meta.{n}" if n in OWN else n: kind for n, kind in first.state.columns.items()}
    }
    for before, after in zip(first, again, strict=True):
        named = {f"meta.{n}" if n in OWN else n: v for n, v in before.metadata.items()}
        assert (after.doc_id, after.title, after.text) == (before.doc_id, before.title, before.text)
        assert dict(after.metadata) == named
    live = first.state.live_rows()
    assert np.array_equal(again.state.vectors(again.state.live_rows()), first.state.vectors(live))
    assert [hit.doc_id for hit in SearchEngine(again).search("river mill")] == [
        hit.doc_id for hit in SearchEngine(first).search("river mill")
    ]


OWN = ("chunk",)


@pytest.mark.parametrize("to", ["parquet", "faiss"])
def test_passages_of_long_documents_become_documents(to: Target, tmp_path: Path) -> None:
    first = sample(tmp_path / "i")
    export_index(first, to, tmp_path / f"x.{to}")
    again = import_index(tmp_path / f"x.{to}", tmp_path / "j")
    live = first.state.live_rows()
    assert len(again) == len(live)
    wanted = [f"{p.document.doc_id}#{p.chunk}" for p in first.state.fetch(live)]
    assert [document.doc_id for document in again] == wanted
    assert [d.metadata["document"] for d in again] == first.state.doc_ids(live)
    assert np.allclose(again.state.vectors(again.state.live_rows()), first.state.vectors(live))
    assert not again.identity.is_model


@pytest.mark.parametrize(
    ("columns", "doc_ids"),
    [
        (["doc_id", "text", "vector", "year"], ["a", "b"]),
        (["text", "vector", "year"], ["x.parquet#1", "x.parquet#2"]),
        (["chunk", "text", "vector", "year"], ["x.parquet#1", "x.parquet#2"]),
    ],
)
def test_some_columns_of_an_export_are_imported(
    columns: list[str], doc_ids: list[str], tmp_path: Path
) -> None:
    documents = [{"_id": name, "text": name * 3, "year": 1} for name in "ab"]
    first = Index.build(documents, out=tmp_path / "i", model="hashing:32")
    export_index(first, "parquet", tmp_path / "all.parquet")
    pq.write_table(pq.read_table(tmp_path / "all.parquet").select(columns), tmp_path / "x.parquet")
    again = import_index(tmp_path / "x.parquet")
    chunk = {"chunk": 0} if "chunk" in columns else {}
    assert [(d.doc_id, d.text, dict(d.metadata)) for d in again] == [
        (doc_ids[0], "aaa", {**chunk, "year": 1}),
        (doc_ids[1], "bbb", {**chunk, "year": 1}),
    ]


LONG = " ".join(f"The wheel of mill {number} turns." for number in range(20))


@pytest.mark.parametrize("text", ["One passage.", LONG])
def test_a_file_of_embed_is_imported_with_its_ids_and_metadata(text: str, tmp_path: Path) -> None:
    rows = [
        {"key": "a", "title": "Mills", "body": text, "_id": 7, "document": "d", "char_start": 5},
        {"key": "b", "title": "", "body": "short", "_id": 8, "document": "e", "char_start": 6},
    ]
    settings = ReadSettings(
        fields=FieldNames(id="key", text="body"), on_truncate="chunk", chunk_tokens=32
    )
    out = tmp_path / "e.parquet"
    embed_to_parquet(rows, out, lambda: as_embedder("hashing:32"), settings)
    stored = pq.read_table(out)
    index = import_index(out, tmp_path / "i", model="hashing:32")
    live = index.state.live_rows()
    assert np.allclose(index.state.vectors(live), stored["vector"].to_pylist(), atol=1e-6)
    passages = list(index)
    assert [document.text for document in passages] == stored["text"].to_pylist()
    ids, chunks = stored["doc_id"].to_pylist(), stored["chunk"].to_pylist()
    if text == LONG:
        assert max(chunks) >= 1
        named = [f"{doc_id}#{chunk}" for doc_id, chunk in zip(ids, chunks, strict=True)]
        assert [document.doc_id for document in passages] == named
        wanted = {"document": "a", "chunk": 1, "meta._id": 7, "meta.document": "d"}
        wanted["char_start"] = 5
        assert dict(passages[1].metadata) == wanted
    else:
        assert [(d.doc_id, dict(d.metadata)) for d in passages] == [
            ("a", {"_id": 7, "document": "d", "char_start": 5}),
            ("b", {"_id": 8, "document": "e", "char_start": 6}),
        ]


@pytest.mark.parametrize("beside", ["a.npy.ids.txt", "a.ids.txt", "a.ids.npy", "named", None])
def test_an_array_has_the_ids_of_the_file_beside_it(
    beside: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", VECTORS)
    if beside and beside.endswith(".npy"):
        np.save(tmp_path / beside, np.array(["x", "y", "z"]))
    elif beside:
        (tmp_path / beside).write_text("x\ny\nz\n")
    ids = tmp_path / "named" if beside == "named" else None
    index = import_index(tmp_path / "a.npy", tmp_path / "i", ids=ids)
    assert [document.doc_id for document in index] == (list("xyz") if beside else list("012"))
    told = capsys.readouterr().err
    assert "The vectors are scaled to norm 1" in told
    assert ("the number of a vector from 0 is its id" in told) == (beside is None)


@pytest.mark.parametrize("kind", ["Flat", "HNSW8", "IDMap,Flat"])
@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])
def test_faiss_files_of_other_programs(kind: str, metric: int, tmp_path: Path) -> None:
    index = faiss.index_factory(2, kind, metric)
    if kind.startswith("IDMap"):
        index.add_with_ids(VECTORS, np.array([7, 5, 2**40]))
    else:
        index.add(VECTORS)
    faiss.write_index(index, str(tmp_path / "a.index"))
    found = import_index(tmp_path / "a.index")
    named = ["7", "5", str(2**40)] if kind.startswith("IDMap") else ["0", "1", "2"]
    assert [document.doc_id for document in found] == named
    assert found.state.settings.metric == {0: "dot", 1: "euclidean"}[metric]
    assert np.array_equal(found.state.vectors(found.state.live_rows()), VECTORS)


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        faiss.IndexFlat,
        faiss.IndexFlatIP,
        lambda dim: faiss.IndexFlatIPPanorama(dim, 8),
        lambda dim: faiss.IndexFlatL2Panorama(dim, 8),
        lambda dim: faiss.IndexHNSWFlat(dim, 8),
        lambda dim: faiss.IndexHNSWFlatPanorama(dim, 8, 4),
    ],
)
def test_faiss_files_give_the_rows_that_were_added(
    make: Callable[[int], Any], ids: bool, tmp_path: Path
) -> None:
    """There are rows for one full block of Panorama and for a part of a block."""
    vectors = np.random.default_rng(0).standard_normal((1100, 64)).astype(np.float32)
    made, numbers = make(64), np.arange(1100)
    if ids:
        made, numbers = faiss.IndexIDMap2(made), 3 * numbers
        made.add_with_ids(vectors, numbers)
    else:
        made.add(vectors)
    faiss.write_index(made, str(tmp_path / "a.faiss"))
    index = import_index(tmp_path / "a.faiss", tmp_path / "i")
    assert [document.doc_id for document in index] == list(map(str, numbers.tolist()))
    assert np.array_equal(index.state.vectors(index.state.live_rows()), vectors)


def test_a_parquet_file_of_another_program_is_read_by_its_fields(tmp_path: Path) -> None:
    table = pa.table(
        {
            "key": ["x", "y", "z"],
            "emb": pa.array(VECTORS.astype(np.float64).tolist()),
            "body": ["river", None, "mill"],
            "year": [1, 2, None],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    fields = FieldNames(id="key", text="body")
    index = import_index(tmp_path / "a.parquet", fields=fields, metric="euclidean")
    assert [(d.doc_id, d.text, dict(d.metadata)) for d in index] == [
        ("x", "river", {"year": 1}),
        ("y", "", {"year": 2}),
        ("z", "mill", {}),
    ]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            "a.npy",
            {"fields": FieldNames(id="key")},
            r"id=\S+ has no effect on a.npy wi",
        ),
        ("a.npy", {"table": "t", "ids": "ids.txt"}, "^table has no effect on a.npy without a Pa"),
        ("a.npy", {"table": "t", "ids": "a.parquet"}, "^table has no effect on a.parquet"),
        (
            "a.npy",
            {"fields": FieldNames(vector="v"), "ids": "a.parquet"},
            "vectors has no effect",
        ),
        (
            "a.npy",
            {"metadata_fields": ["year"]},
            "metadata_fields has no effect: a.npy has no",
        ),
        (
            "a.faiss",
            {"column_types": {"n": "int"}},
            "column_types has no effect: a.faiss has n",
        ),
        ("a.parquet", {"ids": "ids.txt"}, "^ids has no effect on a.parquet; leave it out."),
        ("a.parquet", {"table": "t"}, "^table has no effect on a.parquet; leave it out."),
        ("a.faiss", {"fields": FieldNames(text="body")}, r"text=\S+ has .* a.faiss, which has ids"),
        ("l/t.lance", {"table": "t"}, "^table has no effect on the LanceDB folder l/t.lance"),
        ("l", {"ids": "ids.txt"}, "^ids has no effect on the LanceDB folder l; leave it out."),
        ("c", {"ids": "ids.txt"}, "^ids has no effect on the Chroma folder c; leave it out."),
        ("c", {"fields": FieldNames(id="key")}, r"id=\S+ has no effect on the Chroma folder c"),
        ("c", {"fields": FieldNames(vector="v")}, "vectors has no effect on the Chroma folder c"),
    ],
)
def test_options_without_effect_are_refused(
    source: str,
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", VECTORS)
    Path("ids.txt").write_text("x\ny\nz\n")
    pq.write_table(pa.table({"_id": list("xyz"), "vector": VECTORS.tolist()}), "a.parquet")
    index = faiss.index_factory(2, "IDMap,Flat")
    index.add_with_ids(VECTORS, np.arange(3))
    faiss.write_index(index, "a.faiss")
    Path("l/t.lance").mkdir(parents=True)
    Path("c").mkdir()
    Path("c/chroma.sqlite3").touch()
    with pytest.raises(ConfigError, match=message):
        import_index(source, "i", **options)
    assert not Path("i").exists()


def test_a_memory_limit_that_is_not_kept_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", VECTORS)
    table = pa.table({"_id": list("xyz"), "text": ["t"] * 3})
    pq.write_table(table, tmp_path / "ids.parquet")
    for ids, said in ((None, True), (tmp_path / "ids.parquet", False)):
        with memory_limited(1 << 40):
            import_index(tmp_path / "a.npy", ids=ids)
        assert ("--memory does not limit such an import" in capsys.readouterr().err) == said


def write_faults(folder: Path) -> None:
    def parquet(name: str, **columns: object) -> None:
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")

    bad = VECTORS.copy()
    bad[1, 0] = np.nan
    np.save(folder / "nan.npy", bad)
    np.save(folder / "three.npy", VECTORS)
    (folder / "two.txt").write_text("x\ny\n")
    (folder / "three.txt").write_text("x\ny\nz\n")
    (folder / "twice.txt").write_text("x\ny\nx\n")
    np.save(folder / "one.npy", VECTORS[0])
    (folder / "no.npy").write_text("no array")
    (folder / "no.faiss").write_text("no index")
    (folder / "no.parquet").write_text("no parquet")
    (folder / "word.doc").write_text("")
    (folder / "empty").mkdir()
    parquet("none", _id=["a"], text=["b"])
    parquet("several", _id=["a"], v=[[1.0]], w=[[2.0]])
    parquet("ragged", _id=["a", "b"], vector=[[1.0, 2.0], [1.0]])
    compressed = faiss.index_factory(2, "SQ8")
    compressed.train(VECTORS)
    faiss.write_index(compressed, str(folder / "sq.faiss"))
    far = faiss.IndexFlat(2, faiss.METRIC_L1)
    far.add(VECTORS)
    faiss.write_index(far, str(folder / "l1.faiss"))


@pytest.mark.parametrize(
    ("source", "ids", "message"),
    [
        ("absent.npy", None, r"absent.npy: there is no such file"),
        ("nan.npy", None, r"nan.npy:vector 1: the vector .* is not finite in float32 \(id '1'\)"),
        ("nan.npy", "three.txt", r"nan.npy:2: the vector .* not finite in float32 \(id 'y'\)"),
        ("three.npy", "two.txt", r"3 vectors for 2 ids"),
        ("three.npy", "twice.txt", r"three.npy:3: the id also occurs in three.npy:1"),
        ("three.npy", "absent.txt", r"absent.txt: cannot be read"),
        ("one.npy", None, r"has shape \(2,\)"),
        ("no.npy", None, r"no.npy: cannot be read as an .npy file"),
        ("no.faiss", None, r"no.faiss: cannot be read as a FAISS index"),
        ("sq.faiss", None, r"of type IndexScalarQuantizer, which does not store its vectors"),
        ("l1.faiss", None, r"by the FAISS metric 2; only inner product and L2"),
        ("no.parquet", None, r"no.parquet: cannot be read as Parquet"),
        ("none.parquet", None, r"which could be the vectors, there are none"),
        ("several.parquet", None, r"there are several: 'v', 'w'. Name the column"),
        ("ragged.parquet", None, r"'vector' has 1 dimensions, not 2"),
        ("word.doc", None, r"vectors are imported from .parquet, .npy, .faiss"),
        ("empty", None, r"a folder of neither Chroma .* nor LanceDB"),
    ],
)
def test_faults_are_named_and_leave_no_index(
    source: str, ids: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_faults(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match=message):
        import_index(source, "i", ids=ids)
    assert not Path("i").exists()


def test_a_model_of_another_dimension_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VECTORS)
    with pytest.raises(ModelMismatch, match="have 2 dimensions, and hashing:3 makes vectors of 3"):
        import_index(tmp_path / "a.npy", model="hashing:3")


def other_model() -> HashingEmbedder:
    embedder = HashingEmbedder(32)
    embedder.identity = replace(embedder.identity, name="other", weights_sha256="0" * 64)
    return embedder


@pytest.mark.parametrize("text", ["One passage.", LONG])
@pytest.mark.parametrize("made_by", ["parquet", "faiss", "embed"])
def test_another_model_than_the_recorded_one_is_refused(
    made_by: str, text: str, tmp_path: Path
) -> None:
    documents = [{"_id": "a", "text": text}, {"_id": "b", "text": "mill"}]
    source = tmp_path / ("x.faiss" if made_by == "faiss" else "x.parquet")
    if made_by == "embed":
        settings = ReadSettings(on_truncate="chunk", chunk_tokens=32)
        embed_to_parquet(documents, source, other_model, settings)
    else:
        first = Index.build(documents, model=other_model(), chunk_tokens=32)
        export_index(first, "faiss" if made_by == "faiss" else "parquet", source)
    differs = (
        r"says that other made its vectors, and hashing:32 is another model \(weights_sha256: 0"
    )
    with pytest.raises(ModelMismatch, match=differs):
        import_index(source, tmp_path / "i", model="hashing:32")
    assert not (tmp_path / "i").exists()
    assert import_index(source, tmp_path / "j", model=other_model()).identity.name == "other"
    assert not import_index(source, tmp_path / "k").identity.is_model
    if made_by != "faiss" and text != LONG:
        with pytest.raises(ModelMismatch, match=f"{differs}.*Name other as the model, or none"):
            Index.build(source, out=tmp_path / "i", model="hashing:32", vectors="vector")
        assert not (tmp_path / "i").exists()
        index = Index.create(tmp_path / "l", model="hashing:32")
        with pytest.raises(ModelMismatch, match=f"{differs}.*Give vectors that hashing:32 made"):
            index.add(source, vectors="vector")
        assert len(index) == 0


def test_a_record_of_other_vectors_or_of_another_program_is_not_compared(tmp_path: Path) -> None:
    table = pa.table({"_id": list("xyz"), "vector": VECTORS.tolist(), "mine": VECTORS.tolist()})
    for record in (b'{"engine": "none", "dim": 7}', b"[1]", b"no JSON", b'{"new": 1, "dim": 2}'):
        stated = table.replace_schema_metadata({b"sbert_search.model": record})
        pq.write_table(stated, tmp_path / "a.parquet")
        assert len(import_index(tmp_path / "a.parquet", model="hashing:2")) == 3
    damaged = {b"sbert_search.model": b'{"name": "other", "dim": "two"}'}
    pq.write_table(table.replace_schema_metadata(damaged), tmp_path / "a.parquet")
    fields = FieldNames(vector="mine")
    assert len(import_index(tmp_path / "a.parquet", model="hashing:2", fields=fields)) == 3
    with pytest.raises(CorpusError, match=r"a.parquet: its metadata sbert_search.model is damaged"):
        import_index(tmp_path / "a.parquet", model="hashing:2")


def test_a_damaged_parquet_file_and_an_archive_of_ids_are_named(tmp_path: Path) -> None:
    index = Index.build(rows(40), out=tmp_path / "i", model="hashing:8")
    export_index(index, "parquet", tmp_path / "x.parquet")
    file = tmp_path / "x.parquet"
    column = pq.read_metadata(file).row_group(0)
    at = next(c for c in map(column.column, range(99)) if c.path_in_schema == "chunk")
    start = at.dictionary_page_offset or at.data_page_offset
    data = bytearray(file.read_bytes())
    data[start : start + at.total_compressed_size] = at.total_compressed_size * b"\xff"
    file.write_bytes(data)
    with pytest.raises(CorpusError, match=r"x\.parquet: cannot be read as Parquet"):
        import_index(file, tmp_path / "j")
    np.save(tmp_path / "v.npy", VECTORS)
    np.savez(tmp_path / "ids.npz", a=np.arange(3))
    (tmp_path / "ids.npz").rename(tmp_path / "v.npy.ids.npy")
    with pytest.raises(CorpusError, match=r"an \.npz archive; save the ids with numpy\.save"):
        import_index(tmp_path / "v.npy", tmp_path / "j")


@pytest.mark.parametrize("to", ["parquet", "faiss"])
def test_an_import_with_its_model_is_updated_like_a_built_index(to: Target, tmp_path: Path) -> None:
    first = Index.build(rows(6), model="hashing:32")
    export_index(first, to, tmp_path / f"x.{to}")
    index = import_index(tmp_path / f"x.{to}", model="hashing:32")
    ids = [document.doc_id for document in index]

    def vectors() -> dict[str, list[float]]:
        live = index.state.live_rows()
        return dict(zip(index.state.doc_ids(live), index.state.vectors(live).tolist(), strict=True))

    before = vectors()
    report = index.upsert([{"_id": ids[0], "price": 3}], partial=True)
    assert (report.counts.replaced, report.reused, report.passages) == (1, 1, 0)
    assert vectors() == before
    found = {document.doc_id: document for document in index}
    whole = [{"_id": n, "text": d.text, "title": d.title, "stock": 1} for n, d in found.items()]
    whole[1]["text"] = "another text"
    report = index.upsert(whole, fields=FieldNames(id="_id"))
    assert (report.counts.replaced, report.reused, report.passages) == (6, 5, 1)
    assert [n for n, vector in vectors().items() if vector != before[n]] == [whole[1]["_id"]]
