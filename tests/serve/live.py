"""A live server: the command `serve` as a process, on a free port."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.process import OURS, command, environment

READ, WRITE = "read-" + "r" * 20, "write-" + "w" * 20


@dataclass(frozen=True)
class Answer:
    """An answer: its status, its headers with lower-case names, and its body."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Live:
    """A server that runs."""

    process: subprocess.Popen[bytes]
    port: int
    notes: list[str]
    log: list[dict[str, Any]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> Answer:
        """Send a request over a connection of its own; bytes are sent as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json"} if raw is not None else {}
        try:
            connection.request(method, path, raw, {**sent, **(headers or {})})
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, named, answer.read())
        finally:
            connection.close()

    def post(self, path: str, **body: object) -> Answer:
        return self.ask("POST", path, body)

    def search(self, query: str, **options: object) -> list[dict[str, Any]]:
        """Return the hits of a query, which is answered."""
        answer = self.post("/v1/search", query=query, **options)
        assert answer.status == 200, answer.raw
        hits: list[dict[str, Any]] = answer.json["results"][0]["hits"]
        return hits

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def live_server(
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    launcher: Sequence[str] = OURS,
) -> Iterator[Live]:
    """Start a server, wait until it serves, and kill it at the end if it still runs."""
    process = subprocess.Popen(
        command("serve", *arguments, "--port", 0, launcher=launcher),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=environment(env),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    notes: list[str] = []
    log: list[dict[str, Any]] = []
    live = None
    try:
        for line in process.stderr:
            notes.append(line.decode().rstrip())
            if found := re.search(r"^Serving .* at http://\S*:(\d+)$", notes[-1]):
                live = Live(process, int(found[1]), notes, log)
                break
        assert live is not None, "\n".join(notes)
        readers = [
            threading.Thread(target=lambda: notes.extend(map(_line, process.stderr or ()))),
            threading.Thread(target=lambda: log.extend(map(json.loads, process.stdout or ()))),
        ]
        for reader in readers:
            reader.start()
        yield live
    finally:
        process.kill()
        process.wait()
        if live is not None:
            for reader in readers:
                reader.join()
        process.stdout.close()
        process.stderr.close()


def _line(raw: bytes) -> str:
    return raw.decode().rstrip()
