"""Clients read and write while the server is killed and ended again and again.

Nothing acknowledged is lost, each answer is checked against the commit that it names, too many
requests are refused at once, and a server that is told to end answers what it was asked before.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sbert_search.index.index import Index
from tests.faults import FULL, keep_result
from tests.serve.live import WRITE, live_server

CLIENTS, KILLS, ENDS, SECONDS = (64, 20, 10, 600.0) if FULL else (8, 2, 2, 6.0)
MOST_REQUESTS = CLIENTS // 2  # at the same time, so that some are refused
SEED = 23
SENT = {"authorization": f"Bearer {WRITE}", "content-type": "application/json"}


@dataclass
class Server:
    """A server that runs; ``told_s`` is when it was told to end by SIGTERM."""

    port: int
    told_s: float | None = None


@dataclass
class World:
    """What clients sent and what they were told.

    Attributes:
        stored: The commit by which each acknowledged document was there at the latest.
        known: The documents in ``stored``.
        n_sent: Number of documents that were sent; their ids are doc0, doc1 and so on.
        checked: Number of documents that searches had to find, and found.
    """

    stored: dict[str, int] = field(default_factory=dict)
    known: list[str] = field(default_factory=list)
    n_sent: int = 0
    checked: int = 0
    server: Server | None = None
    done: bool = False
    wrong: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, method: str, path: str, body: object) -> tuple[int, Any]:
        """Send a request to the server that runs; return status 0 if there is no answer."""
        server = self.server
        if server is None:
            time.sleep(0.02)
            return 0, None
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        sent_s = None
        try:
            connection.request(method, path, json.dumps(body).encode(), SENT)
            sent_s = time.monotonic()
            answer = connection.getresponse()
            status, value = answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            before_end = sent_s and server.told_s and sent_s < server.told_s
            if isinstance(error, TimeoutError) or before_end:
                self.blame(f"{method} {path}: no answer, {error!r}")
            self.count("no answer")
            return 0, None
        finally:
            connection.close()
        self.count(str(status))
        if status not in (200, 429):
            self.blame(f"{method} {path}: {status} {value}")
        if status == 429:
            if not int(answer.headers["retry-after"]) >= 1:
                self.blame("429 without Retry-After")
            time.sleep(0.02)
        return status, value

    def count(self, what: str) -> None:
        with self.guard:
            self.statuses[what] += 1

    def blame(self, what: str) -> None:
        with self.guard:
            self.wrong.append(what)


def write(world: World) -> None:
    """Add documents, a few at a time; an unanswered request may or may not have been done."""
    while not world.done:
        first = world.n_sent
        ids = [f"doc{first + i}" for i in range(3)]
        world.n_sent += 3
        body = {"documents": [{"id": one, "text": f"token {one}"} for one in ids]}
        status, value = world.ask("PUT", "/v1/documents", body)
        if status == 200:
            with world.guard:
                world.stored.update(dict.fromkeys(ids, value["commit"]))
                world.known += ids


def read(world: World, seed: int) -> None:
    """Search for documents by a word of theirs; compare each answer with the commit it names."""
    draw = random.Random(seed)
    while not world.done:
        with world.guard:
            due = draw.sample(world.known, min(10, len(world.known)))
        queries = [*due, f"doc{world.n_sent + 1_000_000}"]
        body = {"queries": queries, "mode": "lexical", "k": 20}
        status, value = world.ask("POST", "/v1/search", body)
        if status != 200:
            continue
        *found, nothing = value["results"]
        for one, result in zip(due, found, strict=True):
            ids = [hit["id"] for hit in result["hits"]]
            if ids != [one] and world.stored[one] <= result["commit"]:
                world.blame(f"commit {result['commit']} answers {ids} for {one}")
        if nothing["hits"]:
            world.blame(f"{nothing['hits'][0]['id']} was found by a word that nobody sent")
        with world.guard:
            world.checked += len(due)


@pytest.mark.thorough
def test_servers_that_end_lose_nothing_and_answer_nothing_wrong(
    folder: Path, token_file: Path
) -> None:
    draw, world = random.Random(SEED), World()
    endings = [signal.SIGKILL] * KILLS + [signal.SIGTERM] * ENDS
    draw.shuffle(endings)
    clients = [threading.Thread(target=write, args=(world,))]
    clients += [threading.Thread(target=read, args=(world, i)) for i in range(1, CLIENTS)]
    for client in clients:
        client.start()
    arguments = (folder, "--token-file", token_file, "--writable", "--max-requests", MOST_REQUESTS)
    lost: list[str] = []
    try:
        for ending in endings:
            with live_server(*arguments, "--no-access-log") as live:
                server = world.server = Server(live.port)
                time.sleep(SECONDS / len(endings) * draw.uniform(0.6, 1.4))
                if ending is signal.SIGTERM:
                    server.told_s = time.monotonic()
                    assert live.stop() == 0
                else:
                    live.stop(ending)
                world.server = None
            index = Index.open(folder)
            with world.guard:
                known = list(world.known)
            lost += [one for one in known if one not in index]
            assert not lost
    finally:
        world.done = True
        for client in clients:
            client.join()
    assert not world.wrong, world.wrong[:10]
    assert world.checked
    assert world.statuses["200"] > len(endings)
    assert not Index.open(folder).check().problems
    keep_result(
        "serving_kills",
        {
            "clients": CLIENTS,
            "killed": KILLS,
            "told_to_end": ENDS,
            "seconds": SECONDS,
            "answers": dict(sorted(world.statuses.items())),
            "acknowledged_documents": len(world.stored),
            "lost": len(lost),
            "documents_checked_in_answers": world.checked,
            "wrong_answers_and_timeouts": len(world.wrong),
        },
    )
