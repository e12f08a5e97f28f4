"""A server of three documents without a model's weights, and one with tiny models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbert_search.index.index import Index
from tests.cli.conftest import ROWS
from tests.models.tiny import tiny_bi_encoder, tiny_classifier, tiny_cross_encoder
from tests.serve.live import READ, WRITE, Live, live_server


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of three documents, compared by words only."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Index.build(folder / "rows.jsonl", out=folder / "my.index", model="hashing")
    return folder / "my.index"


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(built, tmp_path / "my.index"))


@pytest.fixture(scope="package")
def live(built: Path) -> Iterator[Live]:
    """A server that only reads, without tokens."""
    with live_server(built) as server:
        yield server


@pytest.fixture(scope="session")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.txt"
    path.write_text(f"# of this test\n{READ}\n{WRITE} write\n")
    return path


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny models bi, cross and classes, and with the index tiny.index."""
    folder = tmp_path_factory.mktemp("models")
    tiny_bi_encoder(folder / "of-bi").save(folder / "bi")
    tiny_cross_encoder(folder / "of-cross").save(folder / "cross")
    tiny_classifier(folder / "of-classes").save(folder / "classes")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Index.build(
        folder / "rows.jsonl", out=folder / "tiny.index", model=folder / "bi", precision="fp32"
    )
    return folder


@pytest.fixture(scope="package")
def tiny(models: Path) -> Iterator[Live]:
    """A server with the tiny models in fp32, whose queue is small."""
    with live_server(
        models / "tiny.index", "--rerank", models / "cross", "--precision", "fp32", cwd=models
    ) as server:
        yield server
