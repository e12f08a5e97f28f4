"""A server on this machine that speaks the part of the hub's API that a download uses."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

Revisions = Mapping[str, Mapping[str, bytes]]
"""The files of each commit, by name."""


class _Server(ThreadingHTTPServer):
    def __init__(self, repo: str, commits: Revisions, names: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo, self.commits, self.names = repo, commits, names


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        server = cast(_Server, self.server)
        kind, _, rest = self.path.partition("?")[0].partition(f"{server.repo}/")
        parts = rest.split("/")
        commit = server.names.get(parts[1], parts[1]) if len(parts) > 1 else ""
        if commit not in server.commits:
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        files = server.commits[commit]
        if kind == "/api/models/":
            self._answer(200, _described(server.repo, commit, files, parts[0]), {})
            return
        data = files.get("/".join(parts[2:]))
        if data is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        self._answer(200, data, {"ETag": f'"{_hash(data)}"', "X-Repo-Commit": commit})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def hub(repo: str, commits: Revisions, names: Mapping[str, str]) -> Iterator[str]:
    """Serve a model and yield the address.

    Args:
        repo: Its name, ``owner/model``.
        commits: Its files by commit, 40 hexadecimal digits.
        names: Commits by branch and tag.
    """
    server = _Server(repo, commits, names)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _described(repo: str, commit: str, files: Mapping[str, bytes], what: str) -> bytes:
    if what == "tree":
        listing = [
            {"type": "file", "path": name, "size": len(data), "oid": _hash(data)}
            for name, data in files.items()
        ]
        return json.dumps(listing).encode()
    siblings = [{"rfilename": name} for name in files]
    return json.dumps({"id": repo, "sha": commit, "siblings": siblings}).encode()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
