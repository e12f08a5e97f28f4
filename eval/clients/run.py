"""Call a server by the newest clients of other services, each in an environment of its own.

    python eval/clients/run.py [NAME ...]

The clients are those of clients.toml. Each is installed in its newest version into a new folder and
calls `sbert-search serve` through a proxy that records its requests; what a client needs beside it
is in the version that it allows. What passed is printed and
written to eval/reports/clients/README.md; the requests go to eval/reports/clients/requests.jsonl.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from sbert_search import Embedder, Index  # noqa: E402 (the clone's own, whatever is installed)
from tests.models.tiny import tiny_classifier, tiny_cross_encoder  # noqa: E402
from tests.serve.live import live_server  # noqa: E402

REPORTS = ROOT / "eval" / "reports" / "clients"
TOLERANCE = 1e-5  # of a vector that a client got, against `Embedder`
PYTHON = """import json, sys
URL = sys.argv[1]
def show(call, **values):
    print("RESULT " + json.dumps({"call": call, **values}), flush=True)
"""
NODE = """const URL_ = process.argv[2];
const show = (call, values) => console.log("RESULT " + JSON.stringify({ call, ...values }));
"""


@dataclass
class Tried:
    """How one client did."""

    name: str
    versions: list[str]
    note: str
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def recording(target: str, kept: list[dict[str, Any]]) -> Iterator[str]:
    """Pass requests on to a server and keep each with its status; yield the address."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def do_DELETE(self) -> None:
            self._pass_on()

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0)) or None
            left_out = ("host", "connection", "content-length", "accept-encoding")
            headers = {k: v for k, v in self.headers.items() if k.lower() not in left_out}
            asked = urllib.request.Request(target + self.path, body, headers, method=self.command)
            try:
                answer = urllib.request.urlopen(asked)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                raw = answer.read()
                entry = {"method": self.command, "path": self.path, "status": answer.status}
                kept.append(entry | ({"body": json.loads(body)} if body else {}))
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def newest(package: str, *, node: bool) -> str:
    """Return the newest version of a package on its registry."""
    if node:
        return output("npm", "view", package, "version").strip()
    listed = output(sys.executable, "-m", "pip", "index", "versions", package)
    found = re.search(r"\(([^)]+)\)", listed)
    assert found, listed
    return found[1]


def output(*command: str, cwd: Path | None = None) -> str:
    """Run a command and return what it prints."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def program_of(client: dict[str, Any], versions: list[str], folder: Path) -> list[str]:
    """Install a client into a folder; return the command of its program."""
    if client.get("node"):
        (folder / "package.json").write_text('{"type": "module"}')
        output("npm", "install", "--silent", "--no-fund", *versions, cwd=folder)
        (folder / "program.mjs").write_text(NODE + client["program"])
        return ["node", "program.mjs"]
    output(sys.executable, "-m", "venv", str(folder / "v"))
    python = str(folder / "v" / "bin" / "python")
    output(python, "-m", "pip", "install", "-q", *versions)
    for place, package in enumerate(versions[1:], start=1):
        found = re.search(r"^Version: (.*)$", output(python, "-m", "pip", "show", package), re.M)
        versions[place] = f"{package}=={found[1]}" if found else package
    (folder / "program.py").write_text(PYTHON + client["program"])
    return [python, "program.py"]


def tried(client: dict[str, Any], url: str, expected: np.ndarray[Any, Any]) -> Tried:
    """Run the program of a client and judge what it shows."""
    node, at = bool(client.get("node")), "@" if client.get("node") else "=="
    if node and shutil.which("npm") is None:
        return Tried(client["name"], [], "", failed=["npm is not on this machine"])
    first, *others = client["packages"]
    versions = [f"{first}{at}{newest(first, node=node)}", *others]
    result = Tried(client["name"], versions, client.get("note", ""))
    with tempfile.TemporaryDirectory() as name, recording(url, result.requests) as address:
        try:
            command = program_of(client, versions, Path(name))
        except RuntimeError as error:
            result.failed.append(f"cannot be installed: {error}")
            return result
        done = subprocess.run(
            [*command, address], cwd=name, capture_output=True, text=True, timeout=300
        )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            shown = json.loads(line.removeprefix("RESULT "))
            right = (
                np.allclose(shown["vector"], expected, atol=TOLERANCE)
                if "vector" in shown
                else shown["n"] == shown["expected"]
            )
            (result.passed if right else result.failed).append(shown["call"])
    if done.returncode:
        result.failed.append((done.stderr.strip().splitlines() or ["no output"])[-1][:300])
    return result


def report(found: list[Tried]) -> str:
    """Return the table of the results."""
    lines = [
        "# Clients of other services",
        "",
        f"Written by `python eval/clients/run.py` on {datetime.now(UTC):%Y-%m-%d}: each client in",
        "its newest version, in an environment of its own. A call passed if its vector is that of",
        f"`Embedder` (within {TOLERANCE:g}), or its answer has the expected form. The requests are",
        "in `requests.jsonl`; `tests/integrations/serving/test_clients.py` sends them again.",
        "",
        "| client | passed | failed |",
        "|---|---|---|",
    ]
    for one in found:
        versions = ", ".join(one.versions) + (f" ({one.note})" if one.note else "")
        lines.append(
            f"| **{one.name}**: {versions} | {', '.join(one.passed)} | {'; '.join(one.failed)} |"
        )
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> int:
    """Try the named clients, or all; return 1 if a call failed."""
    clients = tomllib.loads(Path(__file__).with_name("clients.toml").read_text("utf-8"))["client"]
    chosen = [one for one in clients if not names or one["name"] in names]
    found: list[Tried] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Index.build([{"id": "cat", "text": "a cat"}], out=folder / "my.index").close()
        tiny_cross_encoder(folder / "of-cross").save(folder / "cross")
        tiny_classifier(folder / "of-classes").save(folder / "classes")
        options = ("--rerank", folder / "cross", "--predict", folder / "classes", "--mcp")
        expected = Embedder(precision="fp32").encode(["a cat"])[0]
        with live_server(folder / "my.index", *options, "--precision", "fp32") as server:
            for client in chosen:
                one = tried(client, server.url, expected)
                found.append(one)
                said = [f"{one.name}: {len(one.passed)} passed", *one.failed]
                sys.stdout.write("; ".join(said) + "\n")
                sys.stdout.flush()
    if not names:
        REPORTS.mkdir(exist_ok=True)
        (REPORTS / "README.md").write_text(report(found), "utf-8")
        requests = "\n".join(
            json.dumps({"client": one.name, **each}, ensure_ascii=False)
            for one in found
            for each in one.requests
        )
        (REPORTS / "requests.jsonl").write_text(requests + "\n", "utf-8")
    return int(any(one.failed for one in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
