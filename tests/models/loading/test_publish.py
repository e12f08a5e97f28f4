"""Models are published with measured scores, against a local server that speaks the hub's API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Unpack

import hf_xet
import pytest

from sbert_search.embed.embedder import Embedder
from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.loading.publish import PushOptions, read_scores, section_of
from sbert_search.search.rerankers import Reranker
from tests.models.loading.hub_server import TOKEN, serve
from tests.models.tiny import tiny_bi_encoder, tiny_cross_encoder

# The hub's client uploads by an argument of its HTTP library that is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=")

REPO = "someone/tiny"

OPEN = """
import sys
from sbert_search import Embedder
for name in sys.argv[1:]:
    embedder = Embedder(name, device="cpu", precision="fp32")
    print(embedder.opened.name, embedder.identity.weights_sha256, embedder.encode(["a cat"]).sum())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    (tmp_path / "saved" / "notes.log").write_text("private")
    (tmp_path / "saved" / ".cache").mkdir()
    (tmp_path / "saved" / ".cache" / "x.json").write_text("{}")
    return tmp_path / "saved"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Publish a folder on a server, and return the name."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)

    def publish(folder: Path, address: str, **options: Unpack[PushOptions]) -> str:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        options.setdefault("token", TOKEN)
        return Embedder(folder, device="cpu", precision="fp32").push_to_hub(REPO, **options)

    return publish


def _opened(names: list[str], address: str, cache: Path, *, xet: bool = False) -> list[list[str]]:
    """Open models in a process of its own, and return name, hash and a sum of a vector of each."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(cache)}
    if not xet:
        environment["HF_HUB_DISABLE_XET"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", OPEN, *names],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def _sha256(folder: Path) -> str:
    return Embedder(folder, device="cpu").identity.weights_sha256


def _scores(folder: Path, sha256: str, **more: object) -> Path:
    row = {
        "task": "stsb",
        "kind": "sts",
        "split": "test",
        "model_sha256": sha256,
        "scores": {"spearman": 0.8321, "pearson": 0.8210, "uniformity": float("nan")},
    }
    path = folder.parent / "sts.json"
    path.write_text(json.dumps({**row, **more}) + "\n")
    return path


def test_a_task_without_a_defined_score_has_no_table(folder: Path) -> None:
    scores = _scores(folder, _sha256(folder), scores={"spearman": float("nan")})
    section = section_of(read_scores([scores]))
    assert "|" not in section


@pytest.mark.thorough
def test_a_published_model_is_opened_by_its_commit(
    folder: Path, published: Callable[..., str]
) -> None:
    scores = _scores(folder, _sha256(folder))
    with serve(REPO) as hub:
        name = published(folder, hub.address, private=True, scores=[scores])
        assert name == f"{REPO}@{hub.names['main']}"
        assert hub.private is True
        uploads = [each for each in hub.requests if each.startswith("PUT")]
        fetched, local = _opened([name, str(folder)], hub.address, folder.parent)
    assert fetched == [name, *local[1:]]
    assert len(uploads) == 1
    assert hub.newest.keys() == {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("notes.log", "x.json")
    } | {"README.md"}
    card = hub.newest["README.md"].decode()
    assert f'SentenceTransformer("{REPO}")' in card
    assert "| task | split | spearman | pearson |" in card
    assert "| stsb | test | 0.8321 | 0.8210 |" in card
    assert "type: semantic-similarity" in card
    assert "uniformity" not in card  # it was not a number


@pytest.fixture
def xet(folder: Path, published: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Let large files go through Xet, and return the hash of the weights there."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    (info,) = hf_xet.hash_files([str(folder / "model.safetensors")])
    return str(info.hash)


@pytest.mark.thorough
def test_the_weights_go_through_xet(
    folder: Path, published: Callable[..., str], xet: str, tmp_path: Path
) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    with serve(REPO) as hub:
        hub.xet, hub.xet_hashes = tmp_path / "storage", {sha256(weights).hexdigest(): xet}
        name = published(folder, hub.address)
        fetched, local = _opened([name, str(folder)], hub.address, folder.parent, xet=True)
    assert fetched == [name, *local[1:]]
    assert hub.newest["model.safetensors"] == weights
    asked = {line.partition(" ")[0] for line in hub.requests if "model.safetensors" in line}
    assert asked == {"HEAD"}
    assert not any("PUT" in line or "lfs" in line for line in hub.requests)


@pytest.mark.usefixtures("xet")
def test_a_refused_upload_through_xet_publishes_nothing(
    folder: Path, published: Callable[..., str]
) -> None:
    commit, files = "1" * 40, {"README.md": b"before"}
    with (
        serve(REPO, {commit: files}, {"main": commit}) as hub,
        pytest.raises(ModelError, match=f"{REPO} cannot be published: .*; nothing was published"),
    ):
        published(folder, hub.address)  # the server has no Xet storage
    assert hub.commits == {commit: files}


def test_a_second_upload_replaces_the_scores_and_keeps_the_rest(
    folder: Path, published: Callable[..., str]
) -> None:
    own = "---\nlicense: mit\n---\n# Mine\n\n## Measured scores\n\nold\n\n## Data\n\nmine\n"
    (folder / "README.md").write_text(own)
    with serve(REPO) as hub:
        for value in (0.25, 0.75):
            path = _scores(folder, _sha256(folder), scores={"spearman": value})
            published(folder, hub.address, scores=[path])
        assert sum(each.startswith("PUT") for each in hub.requests) == 1  # the weights are there
        assert len(hub.commits) == 2
    card = hub.newest["README.md"].decode()
    assert "license: mit" in card
    assert "old" not in card
    assert "## Data\n\nmine" in card
    assert "| stsb | test | 0.7500 |" in card
    assert "0.25" not in card


@pytest.mark.parametrize("refuses", ["/repos/create", "/preupload/", "/large/", "/commit/"])
def test_a_refused_upload_publishes_nothing(
    folder: Path, refuses: str, published: Callable[..., str]
) -> None:
    commit, files = "1" * 40, {"README.md": b"before"}
    with serve(REPO, {commit: files}, {"main": commit}) as hub:
        hub.refuses = refuses
        with pytest.raises(ModelError, match=f"{REPO} cannot be published: .*403") as refused:
            published(folder, hub.address)
    assert hub.commits == {commit: files}
    assert "nothing was published" in str(refused.value)


def test_a_wrong_token_and_an_absent_hub_are_named(
    folder: Path, published: Callable[..., str]
) -> None:
    with serve(REPO) as hub, pytest.raises(ModelError, match=r"401.*Log in with `hf auth login`"):
        published(folder, hub.address, token="hf_wrong")
    with pytest.raises(ModelError, match=f"{REPO} cannot be published: .*refused"):
        published(folder, "http://127.0.0.1:9")  # nothing listens there


def test_scores_of_another_model_are_refused(folder: Path) -> None:
    embedder = Embedder(folder, device="cpu")
    with pytest.raises(ConfigError, match="stsb were measured with other weights"):
        embedder.push_to_hub(REPO, scores=[_scores(folder, "0" * 64)])
    for text in ("", '{"task": "stsb"}\n', "0.83\n", '{"task": 1, "scores": {}}\n'):
        path = folder.parent / "bad.json"
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"bad\.json.*sbert-search eval \.\.\. --json"):
            embedder.push_to_hub(REPO, scores=[path])
    with pytest.raises(ConfigError, match=r"absent\.json cannot be read"):
        embedder.push_to_hub(REPO, scores=["absent.json"])


def test_a_model_without_a_folder_or_a_name_is_refused(folder: Path, tmp_path: Path) -> None:
    model = tiny_bi_encoder(tmp_path / "other")
    with pytest.raises(ModelError, match="in memory; save it to a folder"):
        Embedder(model, device="cpu").push_to_hub(REPO)
    with pytest.raises(ModelError, match="'a/b/c' is no name of the hub; write owner/model"):
        Embedder(folder, device="cpu").push_to_hub("a/b/c")
    tiny_cross_encoder(tmp_path / "more").save(tmp_path / "cross")
    with pytest.raises(ModelError, match="'a/b/c' is no name of the hub"):
        Reranker(tmp_path / "cross", device="cpu").push_to_hub("a/b/c")
