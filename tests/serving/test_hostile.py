"""Hostile requests by the thousand: the server answers 4xx, keeps its memory, and serves others."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from tests.faults import FULL, keep_result
from tests.serving.live import Live, live_server

REQUESTS, IDLE, WARM_UP = (100_000, 10_000, 10_000) if FULL else (1_200, 300, 1_200)
SEED = 41
PATHS = ["/search", "/v1/embeddings", "/rerank", "/embed", "/tokenize", "/similarity", "/documents"]
VALUES: list[object] = [
    *(None, True, -1, 0, 10**30, -(10**400), 1e308, 0.1, "", " ", "\x00", "\u202e", "x" * 5000),
    *([], {}, [[]], [[[]]], [None], ["a"] * 3000, {"a": {"b": {"c": []}}}, [10**20], "../../etc"),
    *("year > " * 500, "http://127.0.0.1/", "file:///etc/passwd", "'; DROP TABLE x; --"),
]
FIELDS = [
    *("query", "queries", "k", "offset", "where", "mode", "fusion", "index", "facets", "input"),
    *(
        "model",
        "inputs",
        "documents",
        "texts",
        "top_n",
        "dimensions",
        "encoding_format",
        "group_by",
    ),
]


def _body(draw: random.Random) -> bytes:
    kind = draw.randrange(8)
    if kind == 0:
        return draw.randbytes(draw.randrange(200))
    if kind == 1:
        return draw.choice([b"[", b'{"a":', b'{"query":[']) * draw.choice([10, 1000, 50_000])
    if kind == 2:
        return b'{"query": ' + b"9" * draw.choice([10, 400, 20_000]) + b"}"
    body = {draw.choice(FIELDS): draw.choice(VALUES) for _ in range(draw.randrange(1, 5))}
    raw = json.dumps(body).encode()
    if kind == 3:
        at = draw.randrange(len(raw))
        raw = raw[:at] + draw.randbytes(1) + raw[at + 1 :]
    return raw[: draw.randrange(len(raw))] if kind == 4 else raw


def _request(draw: random.Random) -> bytes:
    """Make the bytes of a request, sound or not."""
    if draw.random() < 0.05:
        return draw.randbytes(draw.randrange(1, 400))
    body = _body(draw)
    method = draw.choice(["POST", "POST", "POST", "GET", "PUT", "DELETE", "OPTIONS", "X" * 30])
    path = draw.choice([*PATHS, *PATHS, "/documents/%00", "/../../etc/passwd", "//", "/\xff", "*"])
    length = len(body) if draw.random() < 0.9 else draw.choice([0, 10**12, -1, len(body) - 1])
    headers = [f"host: {draw.choice(['localhost', 'localhost', 'evil.example', ''])}"]
    headers += [f"content-length: {length}", "connection: close"]
    if draw.random() < 0.1:
        headers.append(f"{draw.choice(['x', 'authorization', 'expect'])}: {'y' * 3000}")
    head = f"{method} {path} HTTP/1.1\r\n" + "\r\n".join(headers) + "\r\n\r\n"
    return head.encode("latin-1") + body


def _send(live: Live, raw: bytes, draw: random.Random) -> str:
    """Send bytes, in one of several rude ways; return the status, or how it ended without one."""
    with live.socket() as client:
        client.settimeout(20)
        with contextlib.suppress(OSError):
            if draw.random() < 0.05:
                client.sendall(raw[: len(raw) // 2])
                return "hung up"
            client.sendall(raw)
            if draw.random() < 0.05:
                client.shutdown(socket.SHUT_WR)
            if draw.random() < 0.03:
                return "hung up"
            answer = client.recv(200)
            if answer.startswith(b"HTTP/1.1 "):
                return answer[9:12].decode()
    return "closed"


def _anonymous(live: Live) -> int:
    lines = Path(f"/proc/{live.process.pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def _latencies(live: Live, n: int) -> list[float]:
    seconds = []
    for _ in range(n):
        started = time.perf_counter()
        assert live.search("wheel")
        seconds.append(time.perf_counter() - started)
    return seconds


def test_hostile_requests_harm_nobody(built: Path) -> None:
    arguments = ("--max-connections", IDLE // 2 + 200, "--no-access-log")
    with live_server(built, *arguments) as live:
        counts: Counter[str] = Counter()

        def attack(seed: int, n: int) -> None:
            draw = random.Random(seed)
            for _ in range(n):
                counts[_send(live, _request(draw), draw)] += 1

        def attack_together(first: int, n: int) -> None:
            threads = [threading.Thread(target=attack, args=(first + i, n // 4)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        def connect_idly() -> list[socket.socket]:
            opened = []
            for _ in range(IDLE):
                with contextlib.suppress(OSError):
                    opened.append(live.socket())
            return opened

        idle = connect_idly()
        attack_together(SEED, WARM_UP)
        for client in idle:
            client.close()
        quiet = _latencies(live, 50)
        before = _anonymous(live)
        attackers = threading.Thread(target=attack_together, args=(SEED + 100, REQUESTS))
        idle = connect_idly()
        attackers.start()
        loud = _latencies(live, 50)
        attackers.join()
        for client in idle:
            client.close()
        assert live.ask("GET", "/ready").status == 200
        assert live.search("wheel")
        grown = _anonymous(live) / before
        p99 = [float(np.percentile(some, 99)) for some in (quiet, loud)]
        assert not [status for status in counts if status.startswith("5")], counts
        assert counts["400"] > REQUESTS // 10
        assert grown < 1.05, (before, _anonymous(live))
        assert live.stop() == 0
    keep_result(
        "serving_hostile",
        {
            "requests": REQUESTS + WARM_UP,
            "idle_connections": IDLE,
            "answers": dict(sorted(counts.items())),
            "anonymous_memory_grew_to": round(grown, 4),
            "p99_of_others_ms": [round(one * 1e3, 1) for one in p99],
        },
    )
