"""The mission's row of other engines; see `tests/test_mission.py`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import sbert_search
from sbert_search import ExchangeError, Index, SearchEngine
from tests.cli.process import sbert_search as run
from tests.cli.process import told
from tests.world import World, ids

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def index(world: World) -> Index:
    """All documents, embedded by hashed words."""
    return world.index()


def test_exports_are_imported_again(index: Index, tmp_path: Path) -> None:
    wanted = ids(SearchEngine(index, "hashing").search("the moon meets", mode="dense"))
    for form, file in (("parquet", "v.parquet"), ("faiss", "v.faiss")):
        told("index", "export", index.path, "--to", form, "--out", tmp_path / file)
        line = ("index", "import", tmp_path / file, "--model", "hashing")
        told(*line, "--out", tmp_path / form)
        found = told("search", tmp_path / form, "the moon meets", "--mode", "dense")
        assert [hit["doc_id"] for hit in found] == wanted
    for engine in ("opensearch", "milvus"):
        told("index", "export", index.path, "--to", engine, "--out", tmp_path / engine)
        assert (tmp_path / engine / "query.py").exists()
    done = run("index", "export", index.path, "--to", "qdrant", "--url", str(tmp_path / "q"))
    if importlib.util.find_spec("qdrant_client") is None:
        assert done.code != 0
        assert "pip install -e '.[qdrant]'" in done.err
    assert issubclass(ExchangeError, sbert_search.SbertSearchError)
