"""Clients read and write while the server is killed again and again: nothing acknowledged is lost.

Each answer is checked against the commit that it names.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbert_search.index.index import Index
from tests.faults import FULL, keep_result
from tests.serving.live import WRITE, live_server

CLIENTS, KILLS, SECONDS = (64, 20, 600.0) if FULL else (6, 3, 6.0)
SEED = 23
SENT = {"authorization": f"Bearer {WRITE}", "content-type": "application/json"}


@dataclass
class World:
    """What clients sent and what they were told.

    Attributes:
        sent: Ids of documents that were sent.
        stored: The commit by which each acknowledged document was there at the latest.
        port: Port of the server that runs; None: there is none.
    """

    sent: set[str] = field(default_factory=set)
    stored: dict[str, int] = field(default_factory=dict)
    port: int | None = None
    done: bool = False
    wrong: list[str] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, method: str, path: str, body: object) -> tuple[int, Any]:
        """Send a request to the server that runs; OSError if it does not answer."""
        if self.port is None:
            raise ConnectionError
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, json.dumps(body).encode(), SENT)
            answer = connection.getresponse()
            status, value = answer.status, json.loads(answer.read())
        finally:
            connection.close()
        with self.guard:
            self.statuses[status] = self.statuses.get(status, 0) + 1
            if status not in (200, 429, 503):
                self.wrong.append(f"{method} {path}: {status} {value}")
        return status, value


def write(world: World) -> None:
    """Add documents, a few at a time; an unanswered request may or may not have been done."""
    n = 0
    while not world.done:
        ids = [f"doc{n + i}" for i in range(3)]
        n += 3
        with world.guard:
            world.sent.update(ids)
        body = {"documents": [{"id": one, "text": f"token {one}"} for one in ids]}
        try:
            status, value = world.ask("PUT", "/v1/documents", body)
        except (OSError, http.client.HTTPException):
            time.sleep(0.02)
            continue
        if status == 200:
            with world.guard:
                world.stored.update(dict.fromkeys(ids, value["commit"]))


def read(world: World) -> None:
    """Search for all documents, and compare the answer with its commit."""
    while not world.done:
        with world.guard:
            known = dict(world.stored)
        try:
            body = {"query": "token", "mode": "lexical", "k": 1000}
            status, value = world.ask("POST", "/v1/search", body)
        except (OSError, http.client.HTTPException):
            time.sleep(0.02)
            continue
        if status != 200:
            continue
        [result] = value["results"]
        found = {hit["id"] for hit in result["hits"]}
        due = {one for one, commit in known.items() if commit <= result["commit"]}
        with world.guard:
            if len(found) < 1000 and due - found:
                world.wrong.append(f"commit {result['commit']} lacks {sorted(due - found)[:5]}")
            if found - world.sent:
                world.wrong.append(f"nobody sent {sorted(found - world.sent)[:5]}")


def test_killed_servers_lose_nothing_and_answer_nothing_wrong(
    folder: Path, token_file: Path
) -> None:
    draw, world = random.Random(SEED), World()
    clients = [threading.Thread(target=write, args=(world,))]
    clients += [threading.Thread(target=read, args=(world,)) for _ in range(CLIENTS - 1)]
    for client in clients:
        client.start()
    lost = 0
    try:
        for round in range(KILLS + 1):
            with live_server(folder, "--token-file", token_file, "--writable") as live:
                world.port = live.port
                time.sleep(SECONDS / (KILLS + 1) * draw.uniform(0.6, 1.4))
                if round == KILLS:
                    world.done = True
                    for client in clients:
                        client.join()
                    assert live.stop() == 0
                else:
                    live.process.send_signal(signal.SIGKILL)
                    live.process.wait()
                world.port = None
            index = Index.open(folder)
            with world.guard:
                absent = [one for one in world.stored if one not in index]
            lost += len(absent)
            assert not absent
    finally:
        world.done = True
        for client in clients:
            client.join()
    assert not world.wrong, world.wrong[:10]
    assert world.statuses.get(200, 0) > KILLS
    assert world.stored
    assert not Index.open(folder).check().problems
    keep_result(
        "serving_kills",
        {
            "clients": CLIENTS,
            "kills": KILLS,
            "seconds": SECONDS,
            "answers": dict(sorted(world.statuses.items())),
            "acknowledged_documents": len(world.stored),
            "lost": lost,
            "wrong_answers": len(world.wrong),
        },
    )
