"""The process of a server: its start, its end, and what it says about both."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import resource
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest
import uvicorn

from sbert_search.index.index import Index
from sbert_search.serve import server
from sbert_search.serve.access import AccessTokens, ServerLimits
from sbert_search.serve.app import build_app
from sbert_search.serve.state import ServeSettings, open_served
from tests.cli.process import in_a_process, sbert_search
from tests.serve.live import READ, WRITE, Live, live_server


def test_a_bound_port_is_named(live: Live, built: Path) -> None:
    done = in_a_process("serve", built, "--port", live.port)
    assert done.code == 2
    assert f"--host 127.0.0.1 --port {live.port} cannot be bound" in done.err


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_0(built: Path, number: int) -> None:
    with live_server(built) as one:
        assert one.search("wheel")
        assert one.stop(number) == 0
    assert [entry["status"] for entry in one.log] == [200]


def test_a_server_that_says_that_it_serves_can_be_ended_at_once(built: Path) -> None:
    with live_server(built) as one:
        assert one.stop() == 0


@pytest.mark.thorough
def test_a_request_that_has_begun_gets_its_answer(models: Path) -> None:
    """The body of the request is complete only after the signal."""
    with live_server(models / "tiny.index", "--precision", "fp32", cwd=models) as one:
        raw = json.dumps({"input": ["the cat sat"] * 500}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=60)
        connection.putrequest("POST", "/v1/embeddings")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", str(len(raw)))
        connection.endheaders(raw[:100])
        while (
            one.ask("GET", "/metrics").raw.count(b'te_request_count{method="/embeddings"} 1') == 0
        ):
            pass
        one.process.send_signal(signal.SIGTERM)
        while True:  # the server is not ready, and then does not listen any more
            try:
                ready = one.ask("GET", "/ready")
                assert ready.status in (200, 503)
                if ready.status == 503:
                    assert "shutting down" in ready.json["error"]["message"]
                    assert ready.headers["connection"] == "close"
                    assert one.search("cat")
            except ConnectionError:
                break
        connection.send(raw[100:])
        answer = connection.getresponse()
        assert answer.status == 200
        assert len(json.loads(answer.read())["data"]) == 500
        connection.close()
        assert one.process.wait(60) == 0


@pytest.mark.thorough
def test_requests_that_wait_to_be_accepted_get_their_answers(built: Path) -> None:
    program = (
        "from sbert_search.cli.main import main; from sbert_search.serve import server; "
        "server.NOTICE_S = 0; main()"
    )
    launcher = (sys.executable, "-c", program)
    with live_server(built, launcher=launcher) as one, contextlib.ExitStack() as stack:
        assert one.ask("GET", "/health").status == 200
        one.process.send_signal(signal.SIGSTOP)  # as on a machine that is too busy to accept
        clients = [stack.enter_context(one.socket()) for _ in range(200)]
        for client in clients:
            client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        one.process.send_signal(signal.SIGTERM)
        one.process.send_signal(signal.SIGCONT)
        for client in clients:
            assert client.recv(65_536).startswith(b"HTTP/1.1 200 ")
        assert one.process.wait(60) == 0


@pytest.mark.thorough
def test_what_takes_longer_than_the_drain_is_cut(built: Path) -> None:
    with live_server(built, "--drain", 1) as one, one.socket() as client:
        client.sendall(b"POST /search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n")
        assert one.ask("GET", "/health").status == 200
        assert one.stop() == 0
        assert client.recv(65_536).startswith(b"HTTP/1.1 503 ")
    assert not [line for line in one.notes if "Traceback" in line]
    assert [(entry["route"], entry["status"]) for entry in one.log][1:] == [("/search", 503)]


@pytest.mark.thorough
def test_a_second_signal_ends_the_server_although_an_update_is_under_way(
    folder: Path, token_file: Path
) -> None:
    """The update waits for another writer."""
    arguments = (folder, "--writable", "--token-file", token_file, "--wait", 3000)
    body = json.dumps({"documents": [{"id": "new", "text": "new"}]})
    head = f"PUT /documents HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {WRITE}\r\n"
    with live_server(*arguments) as one, one.socket() as client, Index.open(folder).store.writer():
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        reader = {"authorization": f"Bearer {READ}"}
        while b'{method="/documents"} 1' not in one.ask("GET", "/metrics", headers=reader).raw:
            pass
        one.process.send_signal(signal.SIGINT)
        with contextlib.suppress(ConnectionError):  # after the notice, it does not listen any more
            while one.ask("GET", "/ready").status == 200:
                pass
        assert one.stop(signal.SIGINT) == 0
    assert not [line for line in one.notes if "Traceback" in line]


@pytest.mark.thorough
def test_requests_of_a_client_that_hangs_up_are_noted_and_harm_nobody(models: Path) -> None:
    with live_server(models / "tiny.index", "--precision", "fp32", cwd=models) as one:
        raw = json.dumps({"input": ["the cat sat on the mat"] * 2000}).encode()
        for _ in range(5):
            with one.socket() as client:
                head = f"POST /embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(raw)}"
                client.sendall(head.encode() + b"\r\n\r\n" + raw)
        assert one.search("cat")
        assert one.stop() == 0
    statuses = [entry["status"] for entry in one.log]
    assert statuses.count(499) >= 1
    assert set(statuses) <= {200, 499}


@pytest.mark.thorough
def test_requests_above_the_limit_get_429_at_once(models: Path) -> None:
    arguments = (models / "tiny.index", "--precision", "fp32", "--max-queue", 3000)
    with live_server(*arguments, cwd=models) as one:
        body = {"input": ["the cat sat on the mat and the dog ran far away"] * 200}
        answers = []

        def ask() -> None:
            answers.append(one.ask("POST", "/v1/embeddings", body))

        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = {answer.status for answer in answers}
        assert statuses == {200, 429}
        for answer in answers:
            if answer.status == 429:
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json["error"]["type"] == "overloaded"
        assert one.ask("POST", "/v1/embeddings", body).status == 200


def test_the_limit_on_open_files_bounds_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 300))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    assert server.within_open_files(ServerLimits(connections=1000)).connections == 44
    assert raised == [(300, 300)]
    assert server.within_open_files(ServerLimits(connections=20)).connections == 20


def test_options_that_are_wrong_are_named(built: Path, token_file: Path, tmp_path: Path) -> None:
    def error(*arguments: object, env: dict[str, str] | None = None) -> str:
        done = sbert_search("serve", *arguments, env=env)
        assert done.code == 2, done.err
        assert "Traceback" not in done.err
        return done.err

    assert "There is nothing to serve" in error()
    assert "can be reached by other machines" in error(built, "--host", "0.0.0.0")
    assert "Two indexes are called 'my.index'" in error(built, built)
    assert "--writable needs a token" in error(built, "--writable")
    assert "holds no token" in error(built, "--token-file", "/dev/null")
    assert "leave one of the two out" in error(built, "--no-token", "--token-file", token_file)
    assert "at least 16" in error(built, env={"SBERT_SEARCH_TOKENS": "short"})
    done = sbert_search("serve", tmp_path)
    assert done.code == 1
    assert "holds no index" in done.err


@pytest.mark.thorough
def test_a_token_of_the_environment_opens_another_address(built: Path) -> None:
    with live_server(built, "--host", "0.0.0.0", env={"SBERT_SEARCH_TOKENS": READ}) as one:
        assert one.ask("GET", "/indexes").status == 401
        sent = {"authorization": f"Bearer {READ}", "host": "any.example"}
        assert one.ask("GET", "/indexes", headers=sent).status == 200


@pytest.mark.thorough
def test_two_indexes_have_names(built: Path, models: Path) -> None:
    with live_server(f"words={built}", models / "tiny.index", cwd=models) as one:
        cards = one.ask("GET", "/indexes").json["indexes"]
        assert [(card["name"], card["model"]) for card in cards] == [
            ("words", "hashing"),
            ("tiny.index", "bi"),
        ]
        dims = {
            name: len(one.post("/embeddings", input="x", model=name).json["data"][0]["embedding"])
            for name in ("bi", "hashing", "other")
        }
        assert dims == {"bi": 16, "hashing": 384, "other": 384}
        assert one.search("wheel", index="tiny.index")
        assert one.post("/search", query="x", index="none").status == 404


def test_many_connections_may_wait_and_few_are_accepted_at_once() -> None:
    async def backlog() -> int:
        config = uvicorn.Config(served_app, backlog=16, log_config=None)
        config.load()
        one = server.DrainingServer(config, served)
        one.lifespan = config.lifespan_class(config)
        with server.open_socket("127.0.0.1", 0) as bound:
            await one.startup([bound])
            facts = bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
            await one.shutdown()
        return int.from_bytes(facts[28:32], sys.byteorder)  # of a listening socket, its backlog

    settings = ServeSettings(indexes={}, models=["hashing"], tokens=AccessTokens({}))
    served = open_served(settings)
    served_app = build_app(served)
    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    assert asyncio.run(backlog()) == min(2048, most)
    for one in served.models:
        one.queue.close()
