"""`sbert-search serve` against a plain server: FastAPI and `SentenceTransformer.encode`.

Both serve the same weights on this machine, one after the other in turn, to 1, 8 and 64 clients
that send one text of mixed length at a time, each over its own open connection. Further figures:
tokens a second in requests of 32 texts against a bare `Embedder.encode`; the round trip of a lone
search against the time of `SearchEngine.search` in this process; and the start of the server and
its memory. The peer needs the package fastapi; the texts are those of SBERT_SEARCH_DATA, or
docstrings.

--infinity names the program `infinity_emb` of an environment of its own, since `infinity-emb` needs
older versions of numpy and sentence-transformers. It serves the same weights in fp32 by torch, with
its default settings, and is measured in the same turns.

--serve adds options to the server that is compared with the peers, for example "--workers 2".
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from common import Figure, Results, arguments, paired, repeats_of
from texts import documents, sentences

from sbert_search.embed.embedder import Embedder
from sbert_search.index.index import Index
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.search.engine import SearchEngine

CLIENTS = (1, 8, 64)
PEER = """
import sys
from typing import Annotated
import uvicorn
from fastapi import Body, FastAPI
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
app = FastAPI()
@app.get("/ready")
def ready():
    return {"status": "ok"}
@app.post("/v1/embeddings")
def embeddings(body: Annotated[dict, Body()]):
    vectors = model.encode(body["input"])
    return {"data": [{"index": i, "embedding": v.tolist()} for i, v in enumerate(vectors)]}
uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""


class Server:
    """A server process: its port, the seconds of its start, and its memory.

    The server is ready when it answers a GET of `ready` with status 200.
    """

    def __init__(self, command: Sequence[str], port: int, ready: str) -> None:
        self.port = port
        self.started = time.perf_counter()
        environment = {**os.environ, "DO_NOT_TRACK": "1"}  # for infinity_emb: no usage statistics
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        while True:
            try:
                if self.ask("GET", ready)[0] == 200:
                    return
            except OSError:
                if self._process.poll() is not None:
                    raise SystemExit(f"{command} ended.") from None
                time.sleep(0.02)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = self.connect()
        try:
            return ask(connection, method, path, body)
        finally:
            connection.close()

    @property
    def anonymous_mib(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        lines = (line.split() for line in status.splitlines())
        return sum(int(f[1]) for f in lines if f[0] in ("RssAnon:", "RssShmem:")) / 1024

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: object = None
) -> tuple[int, Any]:
    """Send a request over an open connection; return the status and the decoded body."""
    raw = None if body is None else json.dumps(body).encode()
    connection.request(method, path, raw, {"content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@contextmanager
def serving(command: Sequence[str], ready: str = "/ready") -> Iterator[Server]:
    """Start a server on a free port; PORT in the command is replaced by it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = Server([part.replace("PORT", str(port)) for part in command], port, ready)
    try:
        yield server
    finally:
        server.stop()


def load(server: Server, texts: Sequence[str], clients: int, n: int) -> tuple[float, float]:
    """Send n requests of one text each; return requests a second, and the p99 in ms."""
    waiting = iter(list(islice(cycle(texts), n)))
    guard, latencies = threading.Lock(), []

    def client() -> None:
        connection = server.connect()
        while True:
            with guard:
                text = next(waiting, None)
            if text is None:
                break
            started = time.perf_counter()
            status, _ = ask(connection, "POST", "/v1/embeddings", {"input": [text]})
            assert status == 200, status
            latencies.append(time.perf_counter() - started)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    return n / seconds, float(np.percentile(latencies, 99)) * 1e3


def await_torch(server: Server, texts: Sequence[str]) -> None:
    """Send batches until every worker process of the server has loaded torch."""
    short = sorted(texts, key=len)[:64]  # enough tokens for a worker to load it
    n_ready = 0  # answers one after the other; each connection may reach another worker
    while n_ready < 20:
        is_ready = server.ask("GET", "/info")[1]["models"][0]["engine"] != "onnx"
        n_ready = n_ready + 1 if is_ready else 0
        if not is_ready:
            server.ask("POST", "/v1/embeddings", {"input": short})
            time.sleep(0.2)


def compare_servers(
    results: Results, ours: Server, peers: dict[str, Server], texts: Sequence[str], quick: bool
) -> None:
    """Measure all servers in turn at each number of clients.

    The figures of a peer end with its key in `peers`.
    """
    for clients in CLIENTS:
        n = (40 if clients == 1 else 160) if quick else (200 if clients == 1 else 1000)
        servers = {"ours": ours, **peers}
        for server in servers.values():
            load(server, texts, clients, n // 4)
        rounds = [
            {name: load(server, texts, clients, n) for name, server in servers.items()}
            for _ in range(repeats_of(results.options))
        ]
        for peer in peers:
            for at, name, unit in ((0, "requests", "1/s"), (1, "p99", "ms")):
                mine = [measured["ours"][at] for measured in rounds]
                theirs = [measured[peer][at] for measured in rounds]
                results.add(f"{name}_{clients}_clients{peer}", paired(mine, theirs, unit=unit))


def compare_encode(results: Results, ours: Server, texts: Sequence[str], quick: bool) -> None:
    """Compare tokens a second of 8 clients with 32 texts a request and of `Embedder.encode`."""
    embedder = Embedder()
    some = list(islice(cycle(texts), 512 if quick else 2048))
    tokens = int(embedder.tokenize(some).lengths.sum())
    parts = [some[at : at + 32] for at in range(0, len(some), 32)]

    def served() -> float:
        waiting, guard = iter(parts), threading.Lock()

        def client() -> None:
            connection = server_connection()
            while True:
                with guard:
                    part = next(waiting, None)
                if part is None:
                    return
                body = {"input": part, "encoding_format": "base64"}
                assert ask(connection, "POST", "/v1/embeddings", body)[0] == 200

        server_connection = ours.connect
        threads = [threading.Thread(target=client) for _ in range(8)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return tokens / (time.perf_counter() - started)

    def bare() -> float:
        started = time.perf_counter()
        embedder.encode(some)
        return tokens / (time.perf_counter() - started)

    served(), bare()
    rounds = [(served(), bare()) for _ in range(repeats_of(results.options))]
    mine, theirs = [one for one, _ in rounds], [two for _, two in rounds]
    results.add("tokens_in_requests_of_32", paired(mine, theirs, unit="tokens/s"))


def lone_search(results: Results, command: Sequence[str], index: Path, queries: list[str]) -> None:
    """Compare the round trip of a search with `SearchEngine.search` in this process."""
    engine = SearchEngine(index, precision="fp32")
    with serving([*command, "--precision", "fp32"]) as server:
        connection = server.connect()
        served, alone = [], []
        for query in [*queries[:10], *queries]:
            started = time.perf_counter()
            status, _ = ask(connection, "POST", "/v1/search", {"query": query})
            served.append((time.perf_counter() - started) * 1e3)
            assert status == 200
            started = time.perf_counter()
            engine.search(query)
            alone.append((time.perf_counter() - started) * 1e3)
        connection.close()
    served, alone = served[10:], alone[10:]
    results.add(
        "lone_search",
        Figure(
            statistics.median(served),
            "ms",
            statistics.median(alone),
            statistics.median(served) / statistics.median(alone),
        ),
    )
    above = statistics.median(mine - engine for mine, engine in zip(served, alone, strict=True))
    results.add("lone_search_above_the_engine", Figure(above, "ms"))


def cold(results: Results, command: Sequence[str], texts: Sequence[str]) -> None:
    """Measure the start up to the first answer, and the memory before and after torch."""
    with serving(command) as server:
        results.add("memory_idle", Figure(server.anonymous_mib, "MiB"))
        assert server.ask("POST", "/v1/search", {"query": "first"})[0] == 200
        results.add("cold_first_search", Figure(time.perf_counter() - server.started, "s"))
        for _ in range(100):
            server.ask("POST", "/v1/embeddings", {"input": sorted(texts, key=len)[:64]})
            engine = server.ask("GET", "/info")[1]["models"][0]["engine"]
            if engine == "native":
                break
            time.sleep(1)
        results.add("memory_after_torch", Figure(server.anonymous_mib, "MiB"))


def main() -> None:
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--infinity", metavar="PROGRAM", help="also compare with this infinity_emb")
    parser.add_argument(
        "--serve", default="", metavar="OPTIONS", help="further options of the compared server"
    )
    options = parser.parse_args()
    results = Results(options)
    model = str(resolve_model(None).path)
    long = [document.full_text for document in documents(300)[1]]
    texts = [*sentences(1200)[1], *long]
    random.Random(options.seed).shuffle(texts)
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "my.index"
        rows = [{"_id": str(i), "text": text} for i, text in enumerate(long)]
        Index.build(rows[: 60 if options.quick else None], out=index, model=model)
        ours = [sys.executable, "-m", "sbert_search", "serve", str(index), "--port", "PORT"]
        ours += ["--no-access-log"]
        peer = [sys.executable, "-c", PEER, model, "PORT"]
        infinity = [options.infinity, "v2", "--model-id", model, "--device", "cpu"]
        infinity += ["--dtype", "float32", "--url-prefix", "/v1", "--port", "PORT"]
        infinity += ["--host", "127.0.0.1", "--log-level", "error"]
        with serving([*ours, *options.serve.split()]) as our_server:
            await_torch(our_server, texts)
            with ExitStack() as stack:
                peers = {"": stack.enter_context(serving(peer))}
                if options.infinity:
                    peers["_infinity"] = stack.enter_context(serving(infinity, "/health"))
                compare_servers(results, our_server, peers, texts, options.quick)
            compare_encode(results, our_server, texts, options.quick)
        queries = sentences(60 if options.quick else 200)[1]
        lone_search(results, ours, index, queries)
        cold(results, ours, texts)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
