"""A server on this machine that speaks the part of the hub's API that models need.

Downloads: the description of a revision, its list of files, and files. Uploads, in this order:
creation of a repository, check of the card's metadata, choice of the kind of each upload, git-lfs's
batch, upload and check of large files, and the commit. With a Xet storage, large files go to that
storage and not through this server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from hf_xet import XetFileInfo, XetSession

TOKEN = "hf_right"


class Hub(ThreadingHTTPServer):
    """A repository of a model.

    Attributes:
        repo: Its name, ``owner/model``.
        commits: The files of each commit, by name. A commit is named by 40 hexadecimal digits.
        names: Commits by branch and tag.
        requests: Methods and paths of all requests, in order.
        refuses: Part of a path that is answered with 403.
        private: Whether the repository was created as a private one; None: it was not created.
        large: The contents of large files by SHA-256.
        xet: Folder of the Xet storage; None: there is none.
        xet_hashes: Xet's hash of each large file that the storage holds, by SHA-256.
    """

    def __init__(
        self, repo: str, commits: Mapping[str, Mapping[str, bytes]], names: Mapping[str, str]
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo, self.commits, self.names = repo, dict(commits), dict(names)
        self.requests: list[str] = []
        self.refuses = "(nothing)"
        self.private: bool | None = None
        self.large: dict[str, bytes] = {}
        self.xet: Path | None = None
        self.xet_hashes: dict[str, str] = {}
        self.address = f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def newest(self) -> Mapping[str, bytes]:
        """The files of the branch main."""
        return self.commits[self.names["main"]]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return cast(Hub, self.server)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        kind, _, rest = self.path.partition("?")[0].partition(f"{self.hub.repo}/")
        parts = rest.split("/")
        if parts[0] in ("xet-read-token", "xet-write-token"):
            self._give_xet_token(writes=parts[0] == "xet-write-token")
            return
        commit = self.hub.names.get(parts[1], parts[1]) if len(parts) > 1 else ""
        if commit not in self.hub.commits:
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        files = self.hub.commits[commit]
        if kind == "/api/models/":
            self._answer(200, _described(self.hub.repo, commit, files, parts[0]))
            return
        data = files.get("/".join(parts[2:]))
        if data is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        headers = {"ETag": f'"{_hash(data)}"', "X-Repo-Commit": commit}
        if (xet_hash := self.hub.xet_hashes.get(_hash(data))) is not None:
            headers["X-Xet-Hash"] = xet_hash
            token = f"/api/models/{self.hub.repo}/xet-read-token/{commit}"
            headers["X-Xet-Refresh-Route"] = f"{self.hub.address}{token}"
        self._answer(200, data, headers)

    def _give_xet_token(self, *, writes: bool) -> None:
        if self.hub.xet is None or (writes and not self._is_allowed):
            self._answer(401, b"{}", {"X-Error-Message": "Invalid credentials"})
            return
        address, expires = f"local://{self.hub.xet}", int(time.time()) + 3600
        headers = {
            "X-Xet-Cas-Url": address,
            "X-Xet-Access-Token": "xet",
            "X-Xet-Token-Expiration": str(expires),
        }
        body = {"casUrl": address, "accessToken": "xet", "exp": expires}
        self._answer(200, json.dumps(body).encode(), headers)

    def do_PUT(self) -> None:
        data = self._received()
        if not self._refused():
            assert self.path == f"/large/{_hash(data)}"
            self.hub.large[_hash(data)] = data
            self._answer(200, b"")

    def do_POST(self) -> None:
        data = self._received()
        if self._refused():
            return
        path = self.path.partition("?")[0]
        if path == "/api/repos/create":
            self._create(json.loads(data))
        elif path == "/api/validate-yaml":
            assert json.loads(data)["content"].startswith("---\n")
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(data)["files"]
            ]
            self._json({"files": modes})
        elif path.endswith("/info/lfs/objects/batch"):
            self._json({"objects": [self._batch(each) for each in json.loads(data)["objects"]]})
        elif path == "/verify":
            stored = self.hub.large[json.loads(data)["oid"]]
            self._answer(200 if len(stored) == json.loads(data)["size"] else 400, b"{}")
        else:
            self._commit(path.rsplit("/", 1)[1], data)

    def _refused(self) -> bool:
        """Answer requests without the token, and those that the test wants to fail."""
        self.hub.requests.append(f"{self.command} {self.path}")
        if self.hub.refuses in self.path:
            self._answer(403, b"{}", {"X-Error-Message": "refused by the test"})
            return True
        # An upload address is signed in itself.
        allowed = self.command == "PUT" or self._is_allowed
        if not allowed:
            self._answer(401, b"{}", {"X-Error-Message": "Invalid credentials"})
        return not allowed

    @property
    def _is_allowed(self) -> bool:
        return self.headers["Authorization"] == f"Bearer {TOKEN}"

    def _create(self, asked: Mapping[str, Any]) -> None:
        assert f"{asked['organization']}/{asked['name']}" == self.hub.repo
        if self.hub.private is not None or self.hub.commits:
            self._answer(409, json.dumps({"url": self._url}).encode())
            return
        self.hub.private = asked.get("private") is True or asked.get("visibility") == "private"
        self._json({"url": self._url})

    @property
    def _url(self) -> str:
        return f"{self.hub.address}/{self.hub.repo}"

    def _batch(self, asked: Mapping[str, Any]) -> dict[str, object]:
        if asked["oid"] in self.hub.large:
            return dict(asked)
        actions = {
            "upload": {"href": f"{self.hub.address}/large/{asked['oid']}"},
            "verify": {"href": f"{self.hub.address}/verify"},
        }
        return {**asked, "actions": actions}

    def _commit(self, branch: str, data: bytes) -> None:
        files = dict(self.hub.commits.get(self.hub.names.get(branch, ""), {}))
        for line in map(json.loads, data.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self._large(value["oid"], value["size"])
        commit = hashlib.sha1(data).hexdigest()
        self.hub.commits[commit], self.hub.names[branch] = files, commit
        self._json({"commitUrl": f"{self._url}/commit/{commit}", "commitOid": commit})

    def _large(self, oid: str, size: int) -> bytes:
        if oid not in self.hub.large:
            assert self.hub.xet is not None
            info, copy = XetFileInfo(self.hub.xet_hashes[oid], size), self.hub.xet / oid
            with XetSession().new_file_download_group(endpoint=f"local://{self.hub.xet}") as group:
                group.start_download_file(info, str(copy))
            self.hub.large[oid] = copy.read_bytes()
            assert _hash(self.hub.large[oid]) == oid
        return self.hub.large[oid]

    def _received(self) -> bytes:
        if self.headers["Transfer-Encoding"] == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def serve(
    repo: str,
    commits: Mapping[str, Mapping[str, bytes]] | None = None,
    names: Mapping[str, str] | None = None,
) -> Iterator[Hub]:
    """Serve a repository; without commits, it does not exist before it is created."""
    hub = Hub(repo, commits or {}, names or {})
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
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
