"""`doctor` describes the machine without torch, and measures on request."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder
from tests.cli.process import in_a_process, sbert_search
from tests.models.tiny import tiny_bi_encoder

LISTING = """
import json, sys
from sbert_search.cli.main import run
code = run()
print("MODULES", "torch" in sys.modules, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("model")
    tiny = tiny_bi_encoder(base / "tokens")
    tiny.save(base / "tiny")
    shape = EncoderConfig(
        hidden_size=128,
        intermediate_size=512,
        heads=2,
        layers=1,
        vocab_size=tiny.tokenizer.vocab_size,
        max_positions=64,
    )
    torch.manual_seed(0)
    BiEncoder(Encoder(shape), tiny.tokenizer).save(base / "model")
    return base


def test_the_machine_is_described_without_torch(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    done = in_a_process("doctor", launcher=(sys.executable, "-c", LISTING), env=env)
    assert done.code == 0, done.err
    assert done.err.endswith("MODULES False\n")
    for part in (
        "processor ",
        "threads ",
        "extras ",
        "Measured:\n  nothing yet",
        "--measure MODEL",
    ):
        assert part in done.out


@pytest.mark.thorough
def test_what_is_measured_is_told_and_measured_anew_on_request(model: Path, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    first = sbert_search("doctor", "--measure", model / "model", "--json", env=env)
    assert first.code == 0, first.err
    (facts,) = first.records
    subjects = [verdict["subject"] for verdict in facts["verdicts"]]
    assert subjects == ["precision of inference", "precision of training"]
    assert not any("--measure" in line for line in facts["advice"])
    folder = tmp_path / "sbert-search" / "verdicts"
    for file in folder.glob("*.json"):
        verdict = json.loads(file.read_text())
        verdict["costs"] = {"fp32": 1e9, "bf16": 1e-9}
        file.write_text(json.dumps({**verdict, "choice": "bf16"}))
    again = sbert_search("doctor", "--measure", model / "model", env=env)
    assert again.code == 0, again.err
    costs = [json.loads(file.read_text())["costs"]["fp32"] for file in folder.glob("*.json")]
    assert len(costs) == 2
    assert max(costs) < 1e9
    assert again.out.count("a layer of 128 x 512 with 2 heads") == 2


def test_small_layers_and_absent_models_are_told(model: Path, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    done = sbert_search("doctor", "--measure", model / "tiny", env=env)
    assert done.code == 0
    assert "so small that the precision does not matter" in done.err
    done = sbert_search("doctor", "--measure", tmp_path / "absent", env=env)
    assert done.code == 1
    assert "There is no model folder" in done.err
