"""The access log holds texts of requests only if they are asked for."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.types import Message

from sbert_search.serve.access import AccessTokens
from sbert_search.serve.access_log import AccessLog
from sbert_search.serve.endpoint import Call, Endpoint, Operation, Reply
from sbert_search.serve.state import Served, ServeSettings, open_served
from tests.cli.process import sbert_search
from tests.serve.live import WRITE, Live, live_server

MARK = "zebrafish"


def _ask_everything(live: Live) -> None:
    """Put a word at every place of a request that can hold texts, right and wrong."""
    sent = {"authorization": f"Bearer {WRITE}"}
    document = {"id": MARK, "text": f"A {MARK}.", "metadata": {"year": 2000}}
    for method, path, body in (
        ("PUT", "/documents", {"documents": [document]}),
        ("PUT", "/documents", {"documents": [{**document, "metadata": {"year": MARK}}]}),
        ("POST", "/documents", {"documents": [{**document, "text": f"Another {MARK}."}]}),
        ("POST", "/search", {"query": MARK, "facets": [MARK]}),
        ("POST", "/search", {"query": "fish", "where": f"year > '{MARK}'"}),
        ("POST", "/search", {"query": "fish", MARK: 1}),
        ("POST", "/search", f'{{"query": "{MARK}"'.encode()),
        ("POST", "/embeddings", {"input": [MARK], "prompt_name": MARK}),
        ("POST", "/rerank", {"query": MARK, "documents": [MARK]}),
        ("GET", f"/search?q={MARK}&where={MARK}%20%3E%201", None),
        ("GET", f"/documents/{MARK}/similar?where={MARK}%20%3E%201", None),
        ("GET", f"/documents/no-{MARK}?index={MARK}", None),
        ("GET", f"/{MARK}", None),
        ("POST", "/documents/delete", {"where": f"{MARK} > 1"}),
        ("POST", "/documents/delete", {"ids": [MARK]}),
    ):
        live.ask(method, path, body, {**sent, "user-agent": MARK, "x-request-id": MARK})


@pytest.mark.thorough
def test_no_text_is_logged_by_default(folder: Path, token_file: Path) -> None:
    with live_server(folder, "--token-file", token_file, "--writable") as live:
        before = list(live.notes)
        _ask_everything(live)
        with live.socket() as client:
            client.sendall(f"{MARK} no HTTP\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 400")
        assert live.stop() == 0
    assert len(live.log) == 15
    assert [entry["route"] for entry in live.log].count("") == 1
    assert MARK not in json.dumps(live.log)
    # Nor does a wrong request write anything else. A slow machine shows the progress of a write.
    assert [note for note in live.notes if not note.startswith("Copying rows: ")] == before


@pytest.mark.thorough
def test_texts_are_logged_on_request(folder: Path, token_file: Path) -> None:
    arguments = (folder, "--token-file", token_file, "--writable", "--log-texts")
    with live_server(*arguments) as live:
        _ask_everything(live)
        live.ask("POST", "/search", {"query": "x" * 20_000}, {"authorization": f"Bearer {WRITE}"})
        assert live.stop() == 0
    *marked, long = live.log
    assert all(MARK in json.dumps(entry) for entry in marked)
    assert json.loads(marked[3]["body"]) == {"query": MARK, "facets": [MARK]}
    assert marked[10]["address"] == f"/documents/{MARK}/similar?where={MARK}%20%3E%201"
    assert len(long["body"]) == 10_000


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "client"),
    [((), "127.0.0.1"), (("--trust-proxy", "10.0.0.5", "--trust-proxy", "127.0.0.0/8"), "8.8.8.8")],
)
def test_only_a_trusted_proxy_names_the_client(
    built: Path, options: tuple[str, ...], client: str
) -> None:
    with live_server(built, *options, env={"FORWARDED_ALLOW_IPS": "*"}) as live:
        made_up = {"x-forwarded-for": "6.6.6.6, 8.8.8.8, 10.0.0.5"}
        assert live.ask("GET", "/indexes", headers=made_up).status == 200
        assert live.stop() == 0
    assert [entry["client"] for entry in live.log] == [client]


@pytest.mark.thorough
def test_questions_without_an_answer_can_be_listed(built: Path) -> None:
    with live_server(built, "--log-texts") as live:
        live.post("/search", query="vacines", mode="lexical")
        found = live.post("/search", queries=["dough", "moon"], mode="lexical").json["results"]
        live.post("/search", where="year > 1900")  # no question
        assert live.stop() == 0
    first, second, listing = live.log
    assert first["searches"] == [
        {
            "index": "my.index",
            "query": "vacines",
            "hits": 0,
            "total": 0,
            "best_score": None,
            "suggestion": "vaccines",
        }
    ]
    best = found[0]["hits"][0]["score"]
    assert [[*one.values()] for one in second["searches"]] == [
        ["my.index", "dough", len(found[0]["hits"]), None, best, None],
        ["my.index", "moon", 0, None, None, None],
    ]
    assert "searches" not in listing
    (line,) = re.findall(r"jq -r '(.*)' access\.log", Path("docs/serving.md").read_text())
    if jq := shutil.which("jq"):
        log = "".join(json.dumps(entry) + "\n" for entry in live.log)
        done = subprocess.run(
            [jq, "-r", line], input=log, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["vacines", "moon"]


@pytest.mark.parametrize("texts", [False, True])
def test_an_error_of_the_server_is_logged_with_its_message_only_on_request(texts: bool) -> None:
    async def fail(served: Served, call: Call[None]) -> Reply:
        try:
            raise KeyError(MARK)
        except KeyError as error:
            raise ValueError(f"cannot read {MARK}") from error

    records: list[Mapping[str, object]] = []
    answer: list[Message] = []

    async def ask() -> None:
        async def receive() -> Message:
            await asyncio.Event().wait()  # the client stays
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            answer.append(message)

        scope = {"method": "GET", "path": "/fail", "query_string": b"", "headers": []}
        await endpoint(scope, receive, send)

    settings = ServeSettings(indexes={}, models=["hashing"], tokens=AccessTokens({}), host="::")
    served = open_served(settings)
    failing: Operation[None] = Operation(method="GET", path="/fail", answer=fail)
    endpoint = Endpoint(failing, served, AccessLog(records.append, texts=texts))
    try:
        asyncio.run(ask())
    finally:
        for one in served.models:
            one.queue.close()
    assert answer[0]["status"] == 500
    assert MARK not in str(answer)
    [record] = records
    shown = str(record["error"])
    assert "in fail" in shown
    assert shown.index("KeyError") < shown.index("ValueError")
    assert (MARK in shown) == texts


def test_texts_need_the_log(built: Path) -> None:
    done = sbert_search("serve", built, "--log-texts", "--no-access-log")
    assert done.code == 2
    assert "--log-texts and --no-access-log exclude each other" in done.err
