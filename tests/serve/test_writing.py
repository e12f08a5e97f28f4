"""Every way to make an index, with every way to write to it: a row of plain text is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sbert_search import (
    Index,
    SearchEngine,
)
from sbert_search.cli.index.update import add, upsert
from sbert_search.errors import CorpusError
from sbert_search.text.fields import FieldNames
from tests.serve.live import WRITE, live_server

MODEL = "hashing:32"
ROWS: list[dict[str, object]] = [
    {"_id": "a", "text": "the mill stands", "year": 1999},
    {"_id": "b", "text": "bread rises"},
]
VECTORS = np.eye(2, 32, dtype=np.float32)
WITH_VECTORS: list[dict[str, object]] = [
    {**row, "vec": v.tolist()} for row, v in zip(ROWS, VECTORS, strict=True)
]


def _build(folder: Path, out: Path) -> None:
    Index.build(ROWS, out=out, model=MODEL)


def _vector_field(folder: Path, out: Path) -> None:
    Index.build(WITH_VECTORS, out=out, model=MODEL, vectors="vec")


def _vectors(folder: Path, out: Path) -> None:
    Index.build(ROWS, out=out, model=MODEL, vectors=VECTORS)


def _from_vectors(folder: Path, out: Path) -> None:
    Index.from_vectors(VECTORS, ids=["a", "b"], out=out, model=MODEL)


def _create(folder: Path, out: Path) -> None:
    Index.create(out, model=MODEL)


def _sync(folder: Path, out: Path) -> None:
    (folder / "notes").mkdir(exist_ok=True)
    (folder / "notes" / "a.md").write_text("the mill")
    Index.create(out, model=MODEL).sync(folder / "notes")


def _shards(folder: Path, out: Path) -> None:
    Index.build(WITH_VECTORS, out=out, model=MODEL, vectors="vec", n_shards=2)


Way = Callable[[Path, Path], None]

WAYS: dict[str, Way] = {
    "build": _build,
    "vector-field": _vector_field,
    "vectors": _vectors,
    "from-vectors": _from_vectors,
    "create": _create,
    "sync": _sync,
    "shards": _shards,
}


def make_all(ways: Mapping[str, Way], factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make one index of each kind."""
    paths = {}
    for name, make in ways.items():
        folder = factory.mktemp(name)
        paths[name] = folder / f"{name}.index"
        make(folder, paths[name])
    return paths


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_all(WAYS, tmp_path_factory)


def found(path: Path, doc_id: str, text: str) -> bool:
    """Whether a search finds a document by its own text, as the model embeds it, at the top."""
    [hit] = SearchEngine(Index.open(path)).search(text, 1, mode="dense")
    assert hit.score == pytest.approx(1, abs=1e-5)
    return hit.doc_id == doc_id


def assert_rows_and_files_are_accepted(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "new.jsonl"
    writes = {"add": Index.add, "upsert": Index.upsert}
    for name, write in writes.items():
        write(Index.open(path), [{"_id": name, "text": f"row by {name}", "pages": 7}])
        assert found(path, name, f"row by {name}")
        file.write_text(json.dumps({"_id": f"{name} file", "text": f"file by {name}", "year": 2}))
        done = CliRunner().invoke(add if name == "add" else upsert, [str(path), str(file), "-q"])
        assert done.exit_code == 0, done.output
        assert found(path, f"{name} file", f"file by {name}")
    assert Index.open(path).get("add").metadata["pages"] == 7  # type: ignore[union-attr]
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "c.md").write_text("# A file\n\nof a folder")
    Index.open(path).add(folder)
    assert found(path, "c.md", "A file\n\n# A file\n\nof a folder")
    if path.stem != "sync":  # its root is another folder
        Index.open(path).sync(folder, moved=True)
        assert found(path, "c.md", "A file\n\n# A file\n\nof a folder")


def assert_rows_of_requests_are_accepted(made: Mapping[str, Path], token_file: Path) -> None:
    sent = {"authorization": f"Bearer {WRITE}"}
    arguments = (*made.values(), "--writable", "--token-file", token_file)
    with live_server(*arguments) as live:
        for way, path in made.items():
            for method in ("POST", "PUT"):
                row = {"id": method, "text": f"row by {method}"}
                body = {"index": path.name, "documents": [row]}
                answer = live.ask(method, "/documents", body, sent)
                assert answer.status == 200, (way, answer.raw)
                assert found(path, method, f"row by {method}")
            change = {"index": path.name, "documents": [{"id": "PUT", "title": "By PATCH"}]}
            assert live.ask("PATCH", "/documents", change, sent).json["replaced"] == 1
            assert found(path, "PUT", "By PATCH row by PUT")
            change["documents"] = [{"id": "none", "title": "By PATCH"}]
            assert live.ask("PATCH", "/documents", change, sent).status == 400


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_rows_and_files_of_plain_texts_are_accepted(
    way: str, made: dict[str, Path], tmp_path: Path
) -> None:
    assert_rows_and_files_are_accepted(made[way], tmp_path)


@pytest.mark.thorough
def test_rows_of_requests_are_accepted(made: dict[str, Path], token_file: Path) -> None:
    assert_rows_of_requests_are_accepted(made, token_file)


@pytest.mark.thorough
def test_rows_with_and_without_a_vector_may_alternate(tmp_path: Path) -> None:
    index = Index.build(WITH_VECTORS, out=tmp_path / "i", model=MODEL, vectors="vec")
    vectors = np.random.default_rng(0).standard_normal((40, 32)).astype(np.float32)
    rows: list[dict[str, object]] = [{"_id": str(n), "text": f"w{n} mill"} for n in range(40)]
    mixed: list[dict[str, object]] = [
        {**row, "vec": vectors[n].tolist()} if n % 5 else row for n, row in enumerate(rows)
    ]
    report = index.add(mixed)
    assert (report.counts.indexed, index.add(mixed).counts.duplicate) == (40, 40)
    alone = Index.build(rows, out=tmp_path / "j", model=MODEL)
    ids = [str(n) for n in range(40)]
    held = index.state.vectors(index.state.lookup(ids))
    embedded = alone.state.vectors(alone.state.lookup(ids))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for n in range(40):
        np.testing.assert_allclose(held[n], units[n] if n % 5 else embedded[n], atol=1e-6)
    with pytest.raises(CorpusError, match="neither a text nor a vector"):
        index.add([*rows[:1], {"_id": "z", "year": 5}])


@pytest.mark.thorough
def test_names_that_an_update_gives_must_exist(tmp_path: Path) -> None:
    index = Index.build(WITH_VECTORS, out=tmp_path / "i", model=MODEL, vectors="vec")
    with pytest.raises(CorpusError, match="Unknown vector field 'v'"):
        index.add(ROWS, vectors="v")
    with pytest.raises(CorpusError, match="Unknown id field 'id'"):
        index.add([{"_id": "x", "text": "y"}], fields=FieldNames(id="id"))
    other = Index.build(WITH_VECTORS, out=tmp_path / "j", vectors="vec")  # without a model
    with pytest.raises(CorpusError, match="Unknown vector field 'vec'"):
        other.add([{"_id": "x", "text": "y"}])
