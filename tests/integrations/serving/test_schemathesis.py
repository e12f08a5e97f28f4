"""Schemathesis invents requests from the OpenAPI document; each answer must be a documented one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.faults import FULL
from tests.serve.live import READ, WRITE, live_server

SECONDS = 600 if FULL else 60
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
pytest_plugins = ("tests.serve.conftest",)


def test_every_answer_is_documented(
    folder: Path, models: Path, token_file: Path, tmp_path: Path
) -> None:
    arguments = (folder, models / "tiny.index", "--rerank", models / "cross", "--precision", "fp32")
    with live_server(
        *arguments, "--token-file", token_file, "--writable", "--mcp", cwd=models
    ) as live:
        document = tmp_path / "openapi.json"
        sent = {"authorization": f"Bearer {READ}"}
        document.write_bytes(live.ask("GET", "/openapi.json", headers=sent).raw)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", str(document)),
                *("--url", live.url, "--checks", ",".join(CHECKS), "--max-time", str(SECONDS)),
                *("--header", f"Authorization: Bearer {WRITE}", "--continue-on-failure"),
                *("--seed", "23", "--request-timeout", "30", "--no-color", "--workers", "1"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS * 5,
        )
        bugs = "".join(str(entry["error"]) for entry in live.log if "error" in entry)
        assert done.returncode == 0, bugs[-8000:] + done.stdout[-8000:] + done.stderr[-2000:]
        assert live.ask("GET", "/ready").status == 200
        assert not [entry for entry in live.log if entry["status"] >= 500]
        assert len(live.log) > 200
