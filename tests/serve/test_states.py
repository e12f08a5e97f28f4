"""Every state of an index, with every route: the status says whose matter it is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from sbert_search import Index
from sbert_search.index.writer import IndexWriter
from tests.cli.conftest import ROWS
from tests.serve.live import WRITE, Answer, Live, live_server

SENT = {"authorization": f"Bearer {WRITE}"}
READS: dict[str, tuple[str, str, object]] = {
    "search": ("POST", "/search", {"query": "mill"}),
    "lexical": ("POST", "/search", {"query": "mill", "mode": "lexical"}),
    "facets": ("POST", "/facets", {"columns": ["year"]}),
    "document": ("GET", "/documents/mill", None),
    "similar": ("GET", "/documents/mill/similar", None),
    "indexes": ("GET", "/indexes", None),
    "ready": ("GET", "/ready", None),
}
WRITES: dict[str, tuple[str, str, object]] = {
    "add": ("POST", "/documents", {"documents": [{"id": "new", "text": "Salt."}]}),
    "upsert": ("PUT", "/documents", {"documents": [{"id": "mill", "text": "Salt."}]}),
    "delete": ("POST", "/documents/delete", {"ids": ["mill"]}),
}


def _empty(folder: Path) -> None:
    Index.open(folder).delete([str(row["_id"]) for row in ROWS])


def _away(folder: Path) -> None:
    folder.rename(folder.with_name("away"))


def _other_metric(folder: Path) -> None:
    shutil.rmtree(folder)
    Index.build(ROWS, out=folder, model="hashing", metric="dot")


def _other_model(folder: Path) -> None:
    shutil.rmtree(folder)
    Index.build(ROWS, out=folder, model="hashing:64")


def _sharded(folder: Path) -> None:
    shutil.rmtree(folder)
    Index.build(ROWS, out=folder, model="hashing", n_shards=2)


def _unfinished(folder: Path) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    shutil.rmtree(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexWriter, "finish_build", stop)
        with pytest.raises(KeyboardInterrupt):
            Index.build(ROWS, out=folder, model="hashing")


def _damaged(folder: Path) -> None:
    manifest = folder / "MANIFEST.json"
    data = manifest.read_bytes()
    manifest.unlink()
    manifest.write_bytes(data[:-20])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with Index.open(folder).store.writer():
        yield


def _changed(change: Callable[[Path], None]) -> Callable[[Path], AbstractContextManager[None]]:
    def entered(folder: Path) -> AbstractContextManager[None]:
        change(folder)
        return nullcontext()

    return entered


# The status of a write in each state; reads are answered from the last state that was opened.
STATES: dict[str, tuple[Callable[[Path], AbstractContextManager[None]], int]] = {
    "sound": (lambda folder: nullcontext(), 200),
    "empty": (_changed(_empty), 200),
    "locked": (_locked, 409),
    "unfinished": (_changed(_unfinished), 409),
    "away": (_changed(_away), 503),
    "other metric": (_changed(_other_metric), 503),
    "other model": (_changed(_other_model), 503),
    "sharded": (_changed(_sharded), 503),
    "damaged": (_changed(_damaged), 503),
}


def asked(live: Live, route: tuple[str, str, object]) -> Answer:
    method, path, body = route
    return live.ask(method, path, body, SENT)


@pytest.mark.thorough
@pytest.mark.parametrize("state", STATES)
def test_each_route_answers_in_each_state(state: str, folder: Path, token_file: Path) -> None:
    enter, wanted = STATES[state]
    with live_server(folder, "--token-file", token_file, "--writable") as live, enter(folder):
        time.sleep(1.5)  # the server looks for a new commit
        deadline = time.monotonic() + 60
        while state == "empty" and time.monotonic() < deadline:
            if not asked(live, READS["search"]).json["results"][0]["hits"]:
                break
            time.sleep(0.2)
        for name, route in READS.items():
            answer = asked(live, route)
            absent = state == "empty" and name in ("document", "similar")
            assert answer.status == (404 if absent else 200), (name, answer.raw)
            if name in ("search", "lexical"):
                [result] = answer.json["results"]
                assert bool(result["hits"]) == (state != "empty")
        for name, route in WRITES.items():
            answer = asked(live, route)
            assert answer.status == wanted, (name, answer.raw)
            if wanted != 200:
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json["error"]["message"].endswith(".")
                assert str(folder.parent) not in answer.raw.decode()
                assert "An error of the server" not in answer.json["error"]["message"]
    if state == "away":
        assert not folder.exists()
