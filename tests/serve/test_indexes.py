"""Reloads and updates: what other processes and clients commit is served, and nothing is lost."""

from __future__ import annotations

import asyncio
import errno
import io
import itertools
import os
import random
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.index.index import Index
from sbert_search.index.writer import IndexWriter
from sbert_search.search.engine import SearchEngine
from sbert_search.serve.access import AccessTokens, ServerLimits
from sbert_search.serve.embedder import ServedEmbedder
from sbert_search.serve.endpoint import Call
from sbert_search.serve.indexes import ServedIndex
from sbert_search.serve.metrics import Metrics
from sbert_search.serve.problems import Problem
from sbert_search.serve.routes.operating import ready
from sbert_search.serve.state import Served, ServeSettings, open_served, reloading
from sbert_search.text.fields import FieldNames
from tests.cli.conftest import ROWS
from tests.models.tiny import WORDS, tiny_static
from tests.serve.live import READ, WRITE, Live, live_server

SENT = {"authorization": f"Bearer {WRITE}"}


def eventually(holds: Callable[[], bool]) -> None:
    """Wait up to a minute until something holds."""
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def card(live: Live, headers: dict[str, str] | None = None) -> dict[str, object]:
    [card] = live.ask("GET", "/indexes", headers=headers).json["indexes"]
    assert isinstance(card, dict)
    return card


class _Full(io.BytesIO):
    name = "/full/spool"

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def _no_folder(**_: object) -> _Full:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/full']")


@pytest.mark.parametrize(
    ("make", "told"),
    [(lambda **_: _Full(), "/full/spool: No space"), (_no_folder, "a temporary file: No usable")],
)
def test_a_full_temporary_folder_is_no_fault_of_the_request(
    make: Callable[..., _Full],
    told: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened, metrics = Index.open(folder), Metrics()
    model = ServedEmbedder("hashing", HashingEmbedder(), ServerLimits(), metrics)
    served = ServedIndex("mine", opened, model, SearchEngine(opened, model), None, metrics)
    rows = [{"_id": "cheese", "title": "", "text": "Rennet makes milk curdle."}]
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", make)
    try:
        with pytest.raises(Problem, match=r"^A temporary file of the server cannot ") as refused:
            asyncio.run(served.update(rows, replaces=True))
        assert (refused.value.status, refused.value.param) == (503, "")
        assert refused.value.headers == {"retry-after": "5"}
        assert "/full" not in refused.value.message
        assert f"mine: rows: cannot be copied to {told}" in capsys.readouterr().err
        monkeypatch.undo()
        asyncio.run(served.update(rows, replaces=True))
        assert opened.get("cheese") is not None
    finally:
        served.close()
        model.queue.close()


@pytest.mark.thorough
def test_a_commit_of_another_process_is_served(folder: Path) -> None:
    with live_server(folder) as live:
        assert live.ask("GET", "/documents/cheese").status == 404
        Index.open(folder).add([{"_id": "cheese", "text": "Rennet makes milk curdle."}])
        eventually(lambda: live.ask("GET", "/documents/cheese").status == 200)
        assert [hit["id"] for hit in live.search("rennet", mode="lexical")] == ["cheese"]
        assert card(live)["documents"] == 4
        assert b'sbert_search_reloads{index="my.index"} 1' in live.ask("GET", "/metrics").raw


@pytest.mark.thorough
def test_the_servers_own_commits_are_counted(folder: Path, token_file: Path) -> None:
    with live_server(folder, "--writable", "--token-file", token_file) as live:
        before = card(live, SENT)["loaded_at"]
        live.ask("PUT", "/documents", {"documents": [{"id": "b", "text": "Salt."}]}, SENT)
        eventually(lambda: card(live, SENT)["loaded_at"] != before)
        metrics = live.ask("GET", "/metrics", headers=SENT).raw
        assert b'sbert_search_reloads{index="my.index"} 1' in metrics


def test_an_index_that_is_busy_does_not_delay_the_reloads_of_others(built: Path) -> None:
    class Stub:
        def __init__(self) -> None:
            self.looks, self.free = 0, asyncio.Event()

        async def reload(self) -> None:
            self.looks += 1
            if self is busy:
                await self.free.wait()

        def close(self) -> None:
            self.free.set()

    async def two_looks() -> None:
        async with reloading(cast(Served, SimpleNamespace(indexes={"a": busy, "b": other}))):
            while other.looks < 2:
                await asyncio.sleep(0.01)

    busy, other = Stub(), Stub()
    asyncio.run(asyncio.wait_for(two_looks(), 30))
    assert busy.looks == 1


@pytest.mark.thorough
def test_an_index_of_given_vectors_takes_no_texts(tmp_path: Path, token_file: Path) -> None:
    rows = [{"_id": "a", "text": "Mills turn.", "vector": [1.0, 0.0]}]
    Index.build(rows, out=tmp_path / "my.index", fields=FieldNames(vector="vector"))
    with live_server(tmp_path / "my.index", "--writable", "--token-file", token_file) as live:
        dearer = {"documents": [{"id": "a", "metadata": {"price": 2}}]}
        assert live.ask("PATCH", "/documents", dearer, SENT).json["replaced"] == 1
        for method in ("PUT", "PATCH"):
            new = {"documents": [{"id": "a", "text": "x"}]}
            error = live.ask(method, "/documents", new, SENT).json["error"]
            assert (error["code"], error["param"]) == (400, "documents[0]")
            assert "the index has no model that could embed it (a). Give" in error["message"]


@pytest.mark.thorough
def test_a_sharded_index_is_served_changed_and_reloaded(tmp_path: Path, token_file: Path) -> None:
    Index.build(ROWS, out=tmp_path / "my.shards", model="hashing", n_shards=2)
    with live_server(tmp_path / "my.shards", "--writable", "--token-file", token_file) as live:
        more = {"documents": [{"id": "salt", "text": "Salt keeps herrings for the winter."}]}
        written = live.ask("PUT", "/documents", more, SENT)
        assert written.status == 200, written.raw
        assert live.ask("GET", "/documents/salt", headers=SENT).status == 200
        Index.open(tmp_path / "my.shards").add([{"_id": "cheese", "text": "Rennet makes curd."}])
        eventually(lambda: live.ask("GET", "/documents/cheese", headers=SENT).status == 200)
        asked = {"query": "rennet", "mode": "lexical"}
        answer = live.ask("POST", "/v1/search", asked, SENT)
        assert [hit["id"] for hit in answer.json["results"][0]["hits"]] == ["cheese"]
        assert card(live, SENT)["documents"] == len(ROWS) + 2


@pytest.mark.thorough
def test_a_damaged_commit_is_refused_and_the_old_state_goes_on(folder: Path) -> None:
    with live_server(folder) as live:
        before = live.search("wheel")
        manifest = folder / "MANIFEST.json"
        sound = manifest.read_bytes()
        manifest.write_bytes(sound[:-20])
        eventually(lambda: card(live)["reload_error"] != "")
        assert live.search("wheel") == before
        assert live.ask("GET", "/ready").status == 200
        assert str(folder) not in live.ask("GET", "/indexes").raw.decode()
        assert b"sbert_search_reload_failures" in live.ask("GET", "/metrics").raw
        manifest.unlink()
        manifest.write_bytes(sound)
        eventually(lambda: card(live)["reload_error"] == "")


@pytest.mark.thorough
def test_a_commit_is_served_once_its_files_are_there(folder: Path, tmp_path: Path) -> None:
    newer = shutil.copytree(folder, tmp_path / "newer")
    Index.open(newer).add([{"_id": "cheese", "text": "Rennet makes milk curdle."}])
    with live_server(folder) as live:
        shutil.copy(newer / "MANIFEST.json", folder)
        eventually(lambda: card(live)["reload_error"] != "")
        assert live.ask("GET", "/documents/cheese").status == 404
        others = shutil.ignore_patterns("MANIFEST.json")
        shutil.copytree(newer, folder, ignore=others, dirs_exist_ok=True)
        eventually(lambda: live.ask("GET", "/documents/cheese").status == 200)
        assert card(live)["reload_error"] == ""


def test_a_commit_before_the_first_reload_is_served(folder: Path) -> None:
    opened = Index.open(folder)
    Index.open(folder).add([{"_id": "cheese", "text": "Rennet makes milk curdle."}])
    served = ServedIndex("mine", opened, None, SearchEngine(opened), None, Metrics())
    try:
        asyncio.run(served.reload())
        assert opened.get("cheese") is not None
    finally:
        served.close()


def test_an_error_of_another_kind_does_not_end_the_reloads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(index: Index) -> bool:
        raise MemoryError("no room")

    opened = Index.open(folder)
    served = ServedIndex("mine", opened, None, SearchEngine(opened), None, Metrics())
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Index, "refresh", fails)
            asyncio.run(served.reload())
        assert "MemoryError" in served.reload_error
    finally:
        served.close()


def test_a_refused_commit_is_named_where_the_server_is_watched(folder: Path) -> None:
    settings = ServeSettings(indexes={"mine": folder}, tokens=AccessTokens({}))
    served = open_served(settings)
    index = served.indexes["mine"]

    def watched() -> tuple[int, dict[str, str]]:
        asyncio.run(index.reload())
        reply: Any = asyncio.run(ready(served, cast("Call[None]", None)))
        flag = 'sbert_search_newest_commit_served{index="mine"}'
        good = next(line for line in served.metrics.text().splitlines() if line.startswith(flag))
        assert (reply.status, good[-1]) == (200, "0" if reply.value.refused else "1")
        return index.commit, reply.value.refused

    try:
        newer = shutil.copytree(folder, folder.with_name("newer"))
        assert watched() == (index.commit, {})
        served_commit = index.commit
        Index.open(newer).add([{"_id": "cheese", "text": "Rennet makes milk curdle."}])
        shutil.copy(newer / "MANIFEST.json", folder)
        commit, refused = watched()
        assert commit == served_commit
        assert re.fullmatch(
            rf"Commit {commit + 1} was refused \(CorruptIndex\): [\w/.-]+ is corrupt: expected the "
            r"file, got no such file\. Restore the file from a backup, or build the index again\.",
            refused["mine"],
        )
        (folder / "MANIFEST.json").unlink()
        _, refused = watched()
        assert refused["mine"].startswith(
            "The newest commit was refused (NotAnIndex): mine holds no index: it has no MANIFEST."
        )
        shutil.rmtree(folder)
        shutil.copytree(newer, folder)
        assert watched() == (served_commit + 1, {})
    finally:
        index.close()


def test_a_refusal_shows_no_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(index: Index) -> bool:
        raise PermissionError(13, "Permission denied", "/srv/a b/other/ids-1.bin")

    opened = Index.open(folder)
    served = ServedIndex("mine", opened, None, SearchEngine(opened), None, Metrics())
    try:
        monkeypatch.setattr(Index, "refresh", fails)
        asyncio.run(served.reload())
        assert served.reload_error.endswith("Permission denied: 'ids-1.bin'.")
    finally:
        served.close()


def test_an_unfinished_build_is_reported_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    opened, metrics = Index.open(folder), Metrics()
    served = ServedIndex("mine", opened, None, SearchEngine(opened), None, metrics)
    try:
        for n_builds in (1, 2):
            shutil.rmtree(folder)
            with monkeypatch.context() as patch:
                patch.setattr(IndexWriter, "finish_build", stop)
                with pytest.raises(KeyboardInterrupt):
                    Index.build(ROWS, out=folder, model="hashing")
            for second in (1, 2, 3):  # as if the build had committed again
                os.utime(folder / "MANIFEST.json", (second, second))
                asyncio.run(served.reload())
            assert "UnfinishedBuild" in served.reload_error
            with pytest.raises(Problem, match="builds the index anew") as raised:
                asyncio.run(served.delete(["bread"], None))
            assert (raised.value.status, raised.value.headers) == (409, {"retry-after": "60"})
            assert metrics.reload_failures.total() == n_builds
            Index.build(ROWS, out=folder, model="hashing")
            asyncio.run(served.reload())
            assert (served.reload_error, metrics.reloads.total()) == ("", n_builds)
    finally:
        served.close()


class Noisy(HashingEmbedder):
    """Gives other vectors than those of an index that was built with `HashingEmbedder`."""

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        vectors = super().encode_tokens(tokens)
        noise = np.random.default_rng(0).normal(0, 1e-2, vectors.shape)
        return (vectors + noise).astype(np.float32)


def test_updates_take_the_inexact_model_that_searches_take(folder: Path) -> None:
    opened, metrics = Index.open(folder), Metrics()
    model = ServedEmbedder("noisy", Noisy(), ServerLimits(), metrics)
    engine = SearchEngine(opened, model, allow_inexact=True)
    served = ServedIndex("mine", opened, model, engine, None, metrics, allow_inexact=True)
    try:
        rows = [{"_id": "cheese", "title": "", "text": "Rennet makes milk curdle."}]
        asyncio.run(served.update(rows, replaces=False))
        assert opened.get("cheese") is not None
    finally:
        served.close()
        model.queue.close()


def test_a_model_that_is_not_that_of_the_index_is_named_in_the_log(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened, metrics = Index.open(folder), Metrics()
    model = ServedEmbedder("noisy", Noisy(), ServerLimits(), metrics)
    engine = SearchEngine(opened, model, allow_inexact=True)
    served = ServedIndex("mine", opened, model, engine, None, metrics)
    try:
        rows = [{"_id": "cheese", "title": "", "text": "Rennet makes milk curdle."}]
        with pytest.raises(Problem, match="gives other vectors than the index has") as refused:
            asyncio.run(served.update(rows, replaces=False))
        assert refused.value.status == 503
        assert "mine: " in (said := capsys.readouterr().err)
        assert "on the check texts" in said
    finally:
        served.close()
        model.queue.close()


@pytest.mark.thorough
def test_a_search_by_meaning_without_a_model_is_refused(tmp_path: Path) -> None:
    rows = [{"_id": "a", "text": "Mills turn.", "vector": [1.0, 0.0]}]
    Index.build(rows, out=tmp_path / "my.index", fields=FieldNames(vector="vector"))
    with live_server(tmp_path / "my.index") as live:
        answer = live.ask("POST", "/search", {"query": "mill", "mode": "dense"})
    assert (answer.status, answer.json["error"]["param"]) == (400, "mode")
    assert "has no model; search by words" in answer.json["error"]["message"]


def test_a_removed_index_is_reported_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened, metrics = Index.open(folder), Metrics()
    served = ServedIndex("mine", opened, None, SearchEngine(opened), None, metrics)
    try:
        asyncio.run(served.reload())
        folder.rename(folder.with_name("moved"))
        for _ in range(2):
            served._retry_s = 0.0  # as if `RETRY_S` had passed
            asyncio.run(served.reload())
        assert "NotAnIndex" in served.reload_error
        assert metrics.reload_failures.total() == 1
        assert capsys.readouterr().err.count("the new commit is refused") == 1
        folder.with_name("moved").rename(folder)
        asyncio.run(served.reload())
        assert served.reload_error == ""
    finally:
        served.close()


@pytest.mark.thorough
def test_a_change_of_a_column_that_is_also_text_needs_the_text(
    tmp_path: Path, token_file: Path
) -> None:
    fields, row = FieldNames(text=("about", "brand")), {"about": "grinds", "brand": "Velora"}
    folder = tmp_path / "shop.index"
    source = [{"_id": "m", **row}]
    Index.build(source, out=folder, model="hashing:24", fields=fields, metadata_fields=["brand"])
    with live_server(folder, "--token-file", token_file, "--writable") as live:
        change: dict[str, object] = {"id": "m", "metadata": {"brand": "Urbano"}}
        refused = live.ask("PATCH", "/documents", {"documents": [change]}, SENT)
        assert refused.status == 400
        assert "the text is joined from 'about', 'brand'" in refused.json["error"]["message"]
        change["text"] = "grinds\n\nUrbano"
        done = live.ask("PATCH", "/documents", {"documents": [change]}, SENT)
        assert done.json["replaced"] == 1
    stored = Index.open(folder).get("m")
    assert stored is not None
    assert (stored.text, stored.metadata) == (change["text"], {"brand": "Urbano"})


def test_the_name_of_a_file_leads_to_its_pages(tmp_path: Path) -> None:
    rows = [{"id": f"a.pdf#page={n}", "text": f"mill {n}"} for n in (1, 2)]
    Index.build(rows, out=tmp_path / "i", model="hashing:32")
    with live_server(tmp_path / "i") as live:
        answer = live.ask("POST", "/similar", {"like": ["a.pdf"]})
    said = "'a.pdf'. Each page of it is a document: 'a.pdf#page=1' ... 'a.pdf#page=2'."
    assert (answer.status, said in answer.json["error"]["message"]) == (404, True)


def test_columns_that_hold_the_whole_text_or_title_follow_them(
    tmp_path: Path, token_file: Path
) -> None:
    rows = [{"id": n, "name": n, "answer": f"A {n}.", "price": 1} for n in ("mill", "oven")]
    Index.build(
        rows,
        out=tmp_path / "i",
        model="hashing:32",
        fields=FieldNames(title="name", text=("answer",)),
        metadata_fields=["name", "answer", "price"],
    )
    with live_server(tmp_path / "i", "--writable", "--token-file", token_file) as live:

        def columns(method: str, document: dict[str, str]) -> object:
            body = {"documents": [document]}
            assert live.ask(method, "/documents", body, SENT).status == 200
            return live.ask("GET", f"/documents/{document['id']}", headers=SENT).json["metadata"]

        changed = columns("PATCH", {"id": "mill", "text": "It grinds."})
        assert changed == {"name": "mill", "answer": "It grinds.", "price": 1}
        changed = columns("PATCH", {"id": "mill", "title": "The mill"})
        assert changed == {"name": "The mill", "answer": "It grinds.", "price": 1}
        whole = {"id": "oven", "title": "Oven", "text": "It bakes."}
        assert columns("PUT", whole) == {"name": "Oven", "answer": "It bakes."}


def test_a_change_clears_nulls_and_names_unknown_ids_and_new_columns(
    tmp_path: Path, token_file: Path
) -> None:
    folder = tmp_path / "shop.index"
    rows = [{"_id": name, "text": f"mill {name}", "price": 2, "sale": 1} for name in "ab"]
    Index.build(rows, out=folder, model="hashing:24")
    with live_server(folder, "--token-file", token_file, "--writable") as live:

        def change(metadata: dict[str, dict[str, object]], **more: object) -> Any:
            documents = [{"id": name, "metadata": own} for name, own in metadata.items()]
            return live.ask("PATCH", "/documents", {"documents": documents, **more}, SENT)

        done = change({"a": {"sale": None, "prcie": 3}}).json
        assert (done["replaced"], done["new_columns"], done["skipped"]) == (1, ["prcie"], [])
        stored = Index.open(folder).get("a")
        assert stored is not None
        assert stored.metadata == {"price": 2, "prcie": 3}
        others: dict[str, dict[str, object]] = {f"x{n}": {} for n in range(12)}
        refused = change({**others, "b": {"price": 3}})
        message = refused.json["error"]["message"]
        assert (refused.status, refused.json["error"]["param"]) == (400, "documents")
        assert "'x0', 'x1', 'x2', 'x3', 'x4', 'x5', 'x6', 'x7', 'x8', 'x9' and 2 more" in message
        done = change({**others, "b": {"price": 3}}, skip_unknown=True).json
        assert (done["replaced"], done["skipped"]) == (1, [*others])
        done = change(others, skip_unknown=True).json
        assert (done["replaced"], len(done["skipped"])) == (0, 12)
        assert done["commit"] == Index.open(folder).state.manifest.generation
        wrong = change({**others, "b": {"price": "word"}}, skip_unknown=True).json["error"]
        assert wrong["param"] == "documents[12]"
        asked = {"sort": ["-price", "sale"], "fields": ["price"]}
        listing = live.ask("POST", "/search", asked, SENT).json
        assert listing["took_ms"]["search"] > 0  # also without a query
        (result,) = listing["results"]
        assert [(hit["id"], hit["text"], hit["metadata"]) for hit in result["hits"]] == [
            ("b", "", {"price": 3}),
            ("a", "", {"price": 2}),
        ]
        address = "/search?q=mill&mode=lexical&sort=price,sale&k=1&fields=text"
        (hit,) = live.ask("GET", address, headers=SENT).json["results"][0]["hits"]
        assert (hit["text"], hit["metadata"]) == ("mill a", {})
        done = change({"b": {"price": 3.5}}).json
        assert (done["new_columns"], done["changed_columns"]) == ([], {"price": "float64"})


@pytest.mark.thorough
def test_updates_are_on_disk_when_they_are_answered(folder: Path, token_file: Path) -> None:
    with live_server(folder, "--token-file", token_file, "--writable") as live:

        def send(method: str, path: str, body: object) -> dict[str, object]:
            answer = live.ask(method, path, body, SENT)
            assert answer.status == 200, answer.raw
            done: dict[str, object] = answer.json
            return done

        new = {"id": "cheese", "text": "Rennet makes milk curdle.", "title": "Cheese"}
        added = {**new, "metadata": {"year": 2011, "tags": ["milk", "food"]}}
        done = send("POST", "/v1/documents", {"documents": [added]})
        assert (done["indexed"], done["replaced"], done["duplicate"]) == (1, 0, 0)
        stored = Index.open(folder).get("cheese")
        assert stored is not None
        assert (stored.title, stored.text) == (new["title"], new["text"])
        assert dict(stored.metadata) == {"year": 2011, "tags": ["milk", "food"]}
        assert Index.open(folder).state.manifest.generation == done["commit"]
        assert send("POST", "/documents", {"documents": [added]})["duplicate"] == 1
        other = {"documents": [{**added, "text": "Other words."}]}
        refused = live.ask("POST", "/documents", other, SENT)
        assert refused.status == 409
        assert str(folder) not in refused.raw.decode()
        assert send("PUT", "/documents", other)["replaced"] == 1
        hits = live.ask("POST", "/search", {"query": "other", "mode": "lexical"}, SENT).json
        assert hits["results"][0]["hits"][0]["id"] == "cheese"
        assert send("POST", "/documents/delete", {"ids": ["cheese", "none"]})["deleted"] == 1
        assert send("POST", "/documents/delete", {"where": ["year < ?", [2000]]})["deleted"] == 1
        assert sorted(one.doc_id for one in Index.open(folder)) == ["bread", "vaccines"]
        for body, status in (
            ({"documents": []}, 400),
            ({"documents": [{"id": "", "text": "x"}]}, 400),
            ({"documents": [{"id": "a", "text": ""}]}, 400),
            ({"documents": [{"id": "a", "text": "x", "metadata": {"_id": "b"}}]}, 400),
            ({"documents": [{"id": "a", "text": "x", "metadata": {"year": "word"}}]}, 400),
            ({"documents": [{"id": "a", "text": "x", "url": "/etc/passwd"}]}, 400),
        ):
            wrong = live.ask("PUT", "/documents", body, SENT)
            assert wrong.status == status, wrong.raw
            assert str(folder.parent) not in wrong.raw.decode()
            assert "/tmp" not in wrong.raw.decode()
        long = {"where": "x" * 10_001}
        for path, sent in (("/documents/delete", long), ("/search", {"query": "a", **long})):
            wrong = live.ask("POST", path, sent, SENT)
            assert wrong.status == 413
            assert b"A filter may have at most 10,000 characters." in wrong.raw
        reading = {"authorization": f"Bearer {READ}"}
        assert card(live, reading)["documents"] == 2


@pytest.mark.thorough
def test_the_fields_of_the_indexed_files_are_not_those_of_a_request(
    tmp_path: Path, token_file: Path
) -> None:
    rows = [{"key": "a", "title": "T", "body": "Rennet makes curd.", "year": 2001, "kind": "x"}]
    fields = FieldNames(id="key", text=("title", "body"))
    Index.build(
        rows, out=tmp_path / "my.index", model="hashing", fields=fields, metadata_fields=["year"]
    )
    new = {"id": "a", "title": "Curd", "text": "New.", "metadata": {"year": 2002, "tag": "t"}}
    with live_server(tmp_path / "my.index", "--token-file", token_file, "--writable") as live:
        done = live.ask("PUT", "/documents", {"documents": [new]}, SENT)
        assert done.status == 200, done.raw
        assert done.json["replaced"] == 1
    index = Index.open(tmp_path / "my.index")
    stored = index.get("a")
    assert stored is not None
    assert (stored.title, stored.text) == ("Curd", "New.")
    assert dict(stored.metadata) == {"year": 2002, "tag": "t"}
    assert index.read_settings.fields == fields
    assert index.read_settings.metadata_fields == ("year",)


@pytest.mark.thorough
def test_readers_see_whole_commits_while_writers_write(folder: Path, token_file: Path) -> None:
    """Two documents are always replaced together; no search sees one new and one old."""
    with live_server(folder, "--token-file", token_file, "--writable") as live:

        def put(n: int) -> None:
            documents = [
                {"id": name, "text": f"token state{n}", "metadata": {"n": n}} for name in ("a", "b")
            ]
            assert live.ask("PUT", "/documents", {"documents": documents}, SENT).status == 200

        put(0)
        torn, failed, done = [], [], threading.Event()

        def read() -> None:
            while not done.is_set():
                body = {"query": "token", "mode": "lexical"}
                answer = live.ask("POST", "/search", body, SENT)
                if answer.status != 200:
                    failed.append(answer.raw)
                    continue
                [result] = answer.json["results"]
                versions = {hit["metadata"]["n"] for hit in result["hits"]}
                if len(result["hits"]) != 2 or len(versions) != 1:
                    torn.append(result)

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        for n in range(1, 11):
            put(n)
        done.set()
        for reader in readers:
            reader.join()
        assert not torn
        assert not failed
        stored = live.ask("GET", "/documents/a", headers=SENT).json
        assert stored["metadata"]["n"] == 10


@pytest.mark.thorough
def test_a_migration_is_followed_without_a_failed_or_mixed_answer(
    tmp_path: Path, token_file: Path
) -> None:
    """Clients search and write while the index is switched, and each answer is of one model."""
    path, asked = tmp_path / "my.index", {"query": "mill wheel", "mode": "dense", "k": 500}
    texts = {f"d{i}": f"mill {i} wheel {i % 7} river" for i in range(60)}
    rows = [{"_id": name, "text": text} for name, text in texts.items()]
    Index.build(rows, out=path, model="hashing:24")
    searched, written, done = [], [], threading.Event()
    with live_server(path, "--writable", "--token-file", token_file) as live:

        def search() -> None:
            while not done.is_set():
                searched.append(live.ask("POST", "/v1/search", asked, SENT))

        def write() -> None:
            for number in itertools.count():
                if done.is_set():
                    return
                texts[f"n{number}"] = f"a mill by river {number}"
                more = [{"id": f"n{number}", "text": texts[f"n{number}"]}]
                written.append(live.ask("PUT", "/documents", {"documents": more}, SENT))

        Index.open(path).migrate("hashing:40", max_minutes=0)  # begins
        eventually(lambda: card(live, SENT)["migrating_to"] == "hashing:40")
        assert card(live, SENT)["migration_left"] == 60
        with ThreadPoolExecutor(3) as clients:
            running = [clients.submit(work) for work in (search, search, write)]
            Index.open(path, wait_s=60).migrate("hashing:40")
            eventually(lambda: card(live, SENT)["model"] == "hashing:40")
            assert card(live, SENT)["migrating_to"] == ""
            so_far = len(searched), len(written)
            eventually(lambda: len(searched) > so_far[0] + 5 and len(written) > so_far[1] + 5)
            done.set()
            for one in running:
                one.result()
        failed = [answer.raw for answer in (*searched, *written) if answer.status != 200]
        assert failed == []
    scores = {}
    for dim in (24, 40):
        engine = SearchEngine(Index.from_texts(texts.values(), ids=texts, model=f"hashing:{dim}"))
        scores[dim] = {
            hit.doc_id: hit.score for hit in engine.search("mill wheel", 500, mode="dense")
        }
    kinds = []
    for answer in searched:
        hits = answer.json["results"][0]["hits"]
        dims = [
            dim
            for dim, known in scores.items()
            if all(abs(hit["score"] - known[hit["id"]]) < 1e-6 for hit in hits)
        ]
        assert len(dims) == 1
        kinds.append(dims[0])
    assert set(kinds) == {24, 40}
    assert Index.open(path).state.n_docs == len(texts)


@pytest.mark.thorough
def test_a_query_model_embeds_the_queries_until_a_migration_drops_it(tmp_path: Path) -> None:
    path, full = tmp_path / "my.index", str(tiny_static(tmp_path / "full"))
    texts = [" ".join(random.Random(n).choices(WORDS, k=6)) for n in range(20)]
    Index.from_texts(texts, model=full, out=path)
    Index.open(path).add_query_model(tiny_static(tmp_path / "near", noise=0.05))
    with live_server(path, "--query-model", "fast") as live:

        def score() -> float:
            asked = {"query": texts[3], "mode": "dense", "k": 1, "highlight": True}
            (hit,) = live.ask("POST", "/v1/search", asked).json["results"][0]["hits"]
            assert hit["id"] == "3"
            return float(hit["score"])

        assert 0.9 < (first := score()) < 0.9999
        assert (card(live)["model"], card(live)["query_model"]) == ("full", "near")
        Index.open(path).add_query_model(tiny_static(tmp_path / "other", noise=0.1))
        eventually(lambda: card(live)["commit"] == Index.open(path).state.manifest.generation)
        assert score() == first  # the server goes on with the model that it opened
        Index.open(path).migrate(str(tiny_static(tmp_path / "new", seed=4)))
        eventually(lambda: card(live)["model"] == "new")
        assert score() > 0.9999  # by the new model itself
        assert card(live)["query_model"] is None


def test_the_answer_to_whole_documents_names_what_others_lost(
    tmp_path: Path, token_file: Path
) -> None:
    folder = tmp_path / "shop.index"
    rows = [{"_id": n, "text": f"mill {n}", "title": n, "price": 2} for n in "abc"]
    Index.build(rows, out=folder, model="hashing:24")
    with live_server(folder, "--token-file", token_file, "--writable") as live:
        new: list[dict[str, object]] = [{"id": "a", "text": "mill"}, {"id": "b", "text": "mill"}]
        done = live.ask("PUT", "/documents", {"documents": new}, SENT).json
        assert (done["replaced"], done["lost"]) == (
            2,
            [
                "No row has the column 'price', so 2 documents lose values.",
                "No row has the title field 'title', so 2 documents lose titles.",
            ],
        )
        new = [{"id": "c", "text": "mill", "title": "C", "metadata": {"price": 3}}]
        assert live.ask("PUT", "/documents", {"documents": new}, SENT).json["lost"] == []
        change = {"documents": [{"id": "c", "text": "mills"}]}
        assert live.ask("PATCH", "/documents", change, SENT).json["lost"] == []
