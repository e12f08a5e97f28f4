"""The examples in the docstrings of public names give what they show."""

from __future__ import annotations

import doctest
import inspect
import shutil
from importlib import import_module
from pathlib import Path

import pytest

import sbert_search
from tests.cli.process import told
from tests.models import tiny
from tests.world import small_world

NAMES: list[str] = import_module("sbert_search").__all__
DOCUMENTS = [
    {"_id": "mill", "text": "A river turns the wheel.", "year": 1850},
    {"_id": "bread", "text": "Yeast makes the dough rise.", "year": 1960},
    {"_id": "moon", "text": "The moon turns around the earth.", "year": 1969},
]
WITHOUT = {
    # Types, which have no docstring at run time.
    *("ModelLike", "ProgressCallback", "ProgressDisplay"),
    # A cluster, another process, a broken disk or minutes of training would be needed.
    *("RayRunner", "ClusterError", "LostShards", "ExchangeError", "IndexLocked", "CommitUnknown"),
    *("UnfinishedBuild", "CorruptIndex", "IndexStoreError", "WeightsError", "CheckpointError"),
    *("TrainingError", "VariantsReport", "analyze_variants", "FineTuned"),
    "EvaluationError",  # raised by names outside the core
}
FINDER = doctest.DocTestFinder(recurse=False)


def examples_of(name: str) -> list[doctest.DocTest]:
    known = {other: getattr(sbert_search, other) for other in NAMES} | {"Path": Path}
    item = known[name]
    members = vars(item).items() if inspect.isclass(item) else ()
    functions = [(part, member) for part, member in members if callable(member) and part[0] != "_"]
    found = [FINDER.find(each, f"{name}.{part}", globs=known) for part, each in functions]
    own = FINDER.find(item, name, globs=known) if inspect.isroutine(item) or members else []
    return [test for tests in (own, *found) for test in tests if test.examples]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with the data, the index and the models that examples name."""
    folder: Path = small_world().write_world(tmp_path_factory.mktemp("examples"))
    source = small_world().write_rows(folder / "docs.jsonl", DOCUMENTS)
    told("index", "build", source, "--model", "hashing", "--out", folder / "my.index")
    told("embed", source, "--model", "hashing", "--out", folder / "vectors.parquet")
    told("eval", "sts", folder / "sts.jsonl", "--model", "hashing", "--out", folder / "my-run")
    (folder / "notes").mkdir()
    (folder / "notes" / "mill.txt").write_text("A river turns the wheel.")
    models = {"model": "bi_encoder", "reranker": "cross_encoder", "classifier": "classifier"}
    for name, kind in (models | {"tagger": "tagger", "answerer": "answerer"}).items():
        getattr(tiny, f"tiny_{kind}")(folder / "tokens").save(folder / f"my-{name}")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_examples_give_what_they_show(
    name: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shutil.copytree(prepared, tmp_path / "examples"))
    for test in examples_of(name):
        said: list[str] = []
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
        assert result.failed == 0, "".join(said)


def test_other_public_names_have_examples() -> None:
    assert {name for name in NAMES if not examples_of(name)} <= WITHOUT
