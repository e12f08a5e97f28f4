"""Models of the hub by revision, against a local server that speaks its API."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sbert_search.errors import ModelError
from sbert_search.models.loading.resolve import resolve_model
from tests.models.loading.hub_server import serve
from tests.models.tiny import tiny_bi_encoder

REPO = "someone/tiny"
FIRST, SECOND = "1" * 40, "2" * 40

SCRIPT = """
import sys
from sbert_search.errors import ModelError
from sbert_search.models.loading.resolve import resolve_model
try:
    found = resolve_model(sys.argv[1])
except ModelError as error:
    sys.exit(str(error))
print(found.name, found.path.name, (found.path / "which.json").read_text())
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    base = tmp_path_factory.mktemp("model")
    tiny_bi_encoder(base / "tokens").save(base / "saved")
    folder = base / "saved"
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _resolve(model: str, address: str, cache: Path, **more: str) -> tuple[str, str]:
    environment = {name: v for name, v in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, model],
        env=environment | more,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout, done.stderr


@pytest.mark.thorough
def test_a_revision_is_fetched_checked_and_used_offline(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    commits = {
        commit: {**files, "which.json": name}
        for commit, name in ((FIRST, b'"first"'), (SECOND, b'"second"'))
    }
    with serve(REPO, commits, {"main": SECOND, "v1": FIRST}) as hub:
        address = hub.address
        out, err = _resolve(REPO, address, tmp_path)
        assert out.split() == [REPO, SECOND, '"second"'], err
        out, err = _resolve(f"{REPO}@v1", address, tmp_path)
        assert out.split() == [f"{REPO}@v1", FIRST, '"first"'], err
        out, err = _resolve(f"{REPO}@{FIRST}", address, tmp_path)
        assert out.split() == [f"{REPO}@{FIRST}", FIRST, '"first"'], err
        out, err = _resolve(f"{REPO}@v9", address, tmp_path)
        assert f"The model {REPO}@v9 is not on this machine" in err
    out, err = _resolve(f"{REPO}@v1", address, tmp_path, HF_HUB_OFFLINE="1")
    assert out.split() == [f"{REPO}@v1", FIRST, '"first"'], err
    out, err = _resolve(f"{REPO}@v2", address, tmp_path, HF_HUB_OFFLINE="1")
    assert f"The model {REPO}@v2 is not on this machine" in err
    (weights,) = tmp_path.rglob(f"snapshots/{FIRST}/model.safetensors")
    with weights.resolve().open("r+b") as blob:
        blob.seek(100)
        blob.write(b"\xff\xff")
    out, err = _resolve(f"{REPO}@v1", address, tmp_path, HF_HUB_OFFLINE="1")
    assert "is damaged: expected sha256" in err
    assert "which downloads it" in err


def test_a_revision_needs_a_name() -> None:
    with pytest.raises(ModelError, match="owner/model@ names no revision"):
        resolve_model("owner/model@")
    with pytest.raises(ModelError, match=r"There is no model folder \./here@v1"):
        resolve_model("./here@v1")
