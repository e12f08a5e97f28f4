"""Several worker processes: one ends and the others answer, and all end together."""

from __future__ import annotations

import http.client
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sbert_search.base import processor
from sbert_search.serve import workers
from sbert_search.serve.access import AccessTokens
from sbert_search.serve.server import open_socket
from sbert_search.serve.state import ServeSettings
from tests.cli.process import sbert_search
from tests.serve.live import Live, live_server

HUNG_AFTER_2_S = (
    "from sbert_search.serve import workers; from sbert_search.cli.main import main; "
    "workers.HUNG_S = 2; main()"
)


def _workers(live: Live) -> set[int]:
    """Return the processes that answer."""
    parent = live.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return {int(pid) for pid in children if b"spawn_main" in _command(int(pid))}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _count(live: Live, line: str) -> int:
    """Return the number in a line of the metrics; 0: there is no such line."""
    lines = live.ask("GET", "/metrics").raw.decode().splitlines()
    return sum(int(one.rpartition(" ")[2]) for one in lines if one.startswith(f"{line} "))


def _await(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.thorough
def test_a_killed_worker_is_replaced_and_the_others_answer(built: Path) -> None:
    with live_server(built, "--workers", 2) as live:
        before = _workers(live)
        assert len(before) == 2
        killed = min(before)
        answers, cut, done = [], [], threading.Event()

        def ask() -> None:
            while not done.is_set():
                try:
                    answers.append(live.post("/search", query="wheel").status)
                except (OSError, http.client.HTTPException) as error:
                    cut.append(error)

        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        _await(lambda: len(answers) > 20)
        os.kill(killed, signal.SIGKILL)
        _await(lambda: _count(live, "sbert_search_worker_restarts") == 1)
        _await(lambda: len(_workers(live)) == 2)
        done.set()
        for client in clients:
            client.join()
        assert killed not in _workers(live)
        assert len(cut) <= len(clients)  # the requests that the killed worker had begun
        assert set(answers) == {200}
        assert live.stop() == 0
    assert any(f"ended by signal {int(signal.SIGKILL)}" in note for note in live.notes)
    assert {entry["worker"] for entry in live.log} >= {1, 2}


@pytest.mark.thorough
def test_metrics_are_those_of_all_workers(built: Path) -> None:
    with live_server(built, "--workers", 2) as live:
        for _ in range(40):
            live.search("wheel")
        line = 'te_request_count{method="/search"}'
        _await(lambda: _count(live, line) == 40)
        _await(lambda: [_count(live, line) for _ in range(20)] == [40] * 20)
        assert _count(live, 'sbert_search_documents{index="my.index"}') == 3
        assert live.stop() == 0
    assert {entry["worker"] for entry in live.log} == {1, 2}


@pytest.mark.thorough
def test_a_request_that_has_begun_gets_its_answer(built: Path) -> None:
    with live_server(built, "--workers", 2) as live:
        children = _workers(live)
        body = b'{"query": "wheel"}'
        client = http.client.HTTPConnection("127.0.0.1", live.port, timeout=60)
        client.putrequest("POST", "/search")
        client.putheader("content-length", str(len(body)))
        client.endheaders(body[:5])
        _await(lambda: _count(live, 'te_request_count{method="/search"}') == 1)
        for pid in (*children, live.process.pid):  # as from systemd
            os.kill(pid, signal.SIGTERM)
        _await(lambda: _refused(live))
        client.send(body[5:])
        assert client.getresponse().status == 200
        client.close()
        assert live.process.wait(60) == 0
        assert not any(_command(pid) for pid in children)


@pytest.mark.thorough
def test_a_second_ctrl_c_ends_all_at_once(built: Path) -> None:
    with live_server(built, "--workers", 2) as live, live.socket() as client:
        children = _workers(live)
        client.sendall(b"POST /search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n")
        _await(lambda: _count(live, 'te_request_count{method="/search"}') == 1)
        for pid in (*children, live.process.pid):  # as from a terminal
            os.kill(pid, signal.SIGINT)
        _await(lambda: _refused(live))
        assert any(_command(pid) for pid in children)  # the one that has the request
        assert live.stop(signal.SIGINT) == 0
        assert not any(_command(pid) for pid in children)


def test_workers_end_with_their_parent(built: Path) -> None:
    with live_server(built, "--workers", 2) as live:
        children = _workers(live)
        live.process.kill()
        _await(lambda: _refused(live) and not any(_command(pid) for pid in children))


@pytest.mark.thorough
def test_a_worker_that_hangs_is_replaced(built: Path) -> None:
    launcher = (sys.executable, "-c", HUNG_AFTER_2_S)
    with live_server(built, "--workers", 2, launcher=launcher) as live:
        stopped = min(_workers(live))
        os.kill(stopped, signal.SIGSTOP)
        _await(lambda: stopped not in _workers(live) and len(_workers(live)) == 2)
        _await(lambda: any("has not answered for 2 s" in note for note in live.notes))
        assert live.search("wheel")
        assert live.stop() == 0


@pytest.mark.thorough
def test_what_keeps_workers_from_starting_is_said_once(built: Path, tmp_path: Path) -> None:
    done = sbert_search("serve", tmp_path, "--workers", 2)
    assert done.code == 1
    assert done.err.count("holds no index") == 1
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef write\n")
    done = sbert_search("serve", built, "--workers", 2, "--writable", "--token-file", tokens)
    assert done.code == 2
    assert "--workers 2 and --writable exclude each other" in done.err


@pytest.mark.parametrize(("set_to", "threads"), [(None, "2"), ("5", "5")])
def test_workers_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, built: Path, set_to: str | None, threads: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", set_to or "")
    if set_to is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(processor, "usable_cores", lambda: 8)
    monkeypatch.setattr(processor, "_own_threads", "")
    monkeypatch.setattr(workers._Supervisor, "run", lambda *_: None)
    settings = ServeSettings(indexes={"a": built}, tokens=AccessTokens({}))
    with open_socket("127.0.0.1", 0) as bound:
        workers.run_workers(settings, bound, 3, None)
    assert os.environ["OMP_NUM_THREADS"] == threads


def _refused(live: Live) -> bool:
    try:
        live.socket().close()
    except ConnectionError:
        return True
    return False
