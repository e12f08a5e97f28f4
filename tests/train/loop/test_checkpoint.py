import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sbert_search.errors import CheckpointError, ConfigError
from sbert_search.train.loop.checkpoint import (
    Checkpoint,
    CheckpointConfig,
    checkpoint_path,
    checkpoints,
    newest_checkpoint,
    read_checkpoint,
    remove_old_checkpoints,
    save_checkpoint,
)
from tests.faults import FAULTS, Fault, Killed, every_step
from tests.train.small import TokenModel


def tensors(step: int) -> dict[str, Tensor]:
    return {"model/weight": torch.full((3, 2), float(step)), "optim/step/weight": torch.tensor(1.0)}


def save(out: Path, step: int) -> Path:
    model = TokenModel()
    return save_checkpoint(out, step, tensors(step), {"at": step}, "seed = 1\n", model.save)


def whole(checkpoint: Checkpoint, step: int) -> bool:
    weight = checkpoint.tensors("model")["weight"]
    return checkpoint.step == checkpoint.state["at"] == step and bool((weight == step).all())


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    assert path.name == "ckpt-00000007"
    assert sorted(p.name for p in path.iterdir()) == [
        "model",
        "recipe.toml",
        "state.json",
        "state.safetensors",
    ]
    assert whole(newest_checkpoint(tmp_path), 7)
    assert list(newest_checkpoint(tmp_path).tensors("optim")) == ["step/weight"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_step_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, fault: Fault
) -> None:
    before, out = tmp_path / "before", tmp_path / "out"
    before.mkdir()
    save(before, 1)
    save(before, 2)

    def prepare() -> None:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(before, out)

    def work() -> None:
        save(out, 3)
        remove_old_checkpoints(out, 2, 10**6, best_step=None)

    steps, outcomes = 0, set()
    for steps, raised in enumerate(every_step(fault, prepare, work), 1):  # noqa: B007
        found = newest_checkpoint(out)
        assert whole(found, 2) or whole(found, 3)
        outcomes.add((type(raised), found.step))
        save(out, 4)  # the next one works, and clears what was left half done
        assert whole(newest_checkpoint(out), 4)
        assert not list(out.glob("*.tmp"))
    assert steps > 20
    error = Killed if fault == "kill" else CheckpointError
    done = {(type(None), 3)}
    assert {(error, 2)} <= outcomes <= {(error, 2), (error, 3)} | done


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit of a tensor": lambda c: _flip(c / "state.safetensors", -3),
    "a flipped bit of a header": lambda c: _flip(c / "state.safetensors", 9),
    "a flipped bit of the published model": lambda c: _flip(c / "model/model.safetensors", -3),
    "a flipped bit of the state": lambda c: _flip(c / "state.json", 200),
    "a cut file": lambda c: (c / "state.safetensors").write_bytes(b"12345"),
    "a cut state": lambda c: (c / "state.json").write_bytes(b'{"xxh3_128": "0'),
    "a state of another shape": lambda c: (c / "state.json").write_text("[]"),
    "an absent file": lambda c: (c / "recipe.toml").unlink(),
    "an absent state": lambda c: (c / "state.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_newest_one_falls_back_and_says_so(
    tmp_path: Path, damage: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    damage(newest)
    assert whole(newest_checkpoint(tmp_path), 1)
    said = capsys.readouterr().err
    assert "ckpt-00000002" in said
    assert "damaged" in said
    assert whole(read_checkpoint(save(tmp_path, 2)), 2)  # going on replaces the damaged one


def test_flipped_bytes_of_the_state_are_found(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    state = path / "state.json"
    before = state.read_bytes()
    passed = 0
    for at in range(0, len(before), 5):
        _flip(state, at)
        with contextlib.suppress(CheckpointError):
            read_checkpoint(path)
            passed += 1
            assert json.loads(state.read_bytes()) == json.loads(before)  # it was white space
        state.write_bytes(before)
    assert passed < 0.2 * len(before) / 5


def test_without_a_usable_checkpoint_nothing_goes_on(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        newest_checkpoint(tmp_path)
    for step in (1, 2):
        _flip(save(tmp_path, step) / "state.safetensors", -1)
    with pytest.raises(CheckpointError, match=r"ckpt-00000002.*ckpt-00000001"):
        newest_checkpoint(tmp_path)


def test_a_newer_format_is_refused_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sbert_search.train.loop.checkpoint.FORMAT", 2)
        path = save(tmp_path, 1)
    with pytest.raises(CheckpointError, match="has format 2; this version reads 1"):
        read_checkpoint(path)


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        save(tmp_path, step)
    (tmp_path / "ckpt-1.txt").touch()
    remove_old_checkpoints(tmp_path, 2, 5, best_step=2)
    assert [path.name[-1] for path in checkpoints(tmp_path)] == ["2", "4", "5"]


def test_a_damaged_checkpoint_of_a_later_step_is_not_the_newest(tmp_path: Path) -> None:
    for step in (50, 100):
        save(tmp_path, step)
    _flip(checkpoint_path(tmp_path, 100) / "state.safetensors", -1)
    save(tmp_path, 70)  # the run resumed from 50, since 100 is damaged
    remove_old_checkpoints(tmp_path, 1, 70, best_step=None)
    assert newest_checkpoint(tmp_path).step == 70
    assert not checkpoint_path(tmp_path, 50).exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"every": 0}, r"^checkpoint.every is 0; it must be at least 1\.$"),
        ({"keep": 0}, r"^checkpoint.keep is 0; it must be at least 1\.$"),
    ],
)
def test_settings_out_of_range_are_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CheckpointConfig(**setting)
