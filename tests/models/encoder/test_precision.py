"""The precision of a CPU's layers is measured on one block, and does not depend on flags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sbert_search.base import verdicts
from sbert_search.embed.engines.int8 import calibrate
from sbert_search.models.encoder import precision
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.precision import (
    fastest_with_int8,
    inference_precision,
    training_precision,
)
from tests.models.tiny import tiny_encoder

SMALL = EncoderConfig(hidden_size=128, intermediate_size=512, heads=4, layers=2, vocab_size=100)
ELSEWHERE = """
import json, sys
import numpy as np
from sbert_search import Embedder
from sbert_search.base.verdicts import stored_verdicts
embedder = Embedder(sys.argv[1], device="cpu")
vectors = embedder.encode(["the cat sat", "a dog ran"])
verdict = embedder.opened.verdict
print(json.dumps([embedder.identity.precision, vectors.tolist(), verdict.costs, verdict.threads]))
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(verdicts, "_measured", {})


@pytest.mark.thorough
def test_the_encoder_is_not_changed_and_all_precisions_are_timed() -> None:
    encoder = Encoder(SMALL)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    verdict = inference_precision(encoder)
    assert verdict is not None
    assert list(verdict.costs) == ["fp32", "bf16"]
    assert verdict.choice in verdict.costs
    assert not encoder.frozen
    assert encoder.state_dict().keys() == before.keys()
    for name, tensor in encoder.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name])


@pytest.mark.thorough
def test_int8_is_timed_beside_the_faster_exact_precision() -> None:
    encoder = Encoder(SMALL).eval()
    tokens = PackedTokens.from_lists([[1, 2, 3], [4, 5, 6, 7]])
    found = fastest_with_int8(encoder, calibrate(encoder, [tokens]))
    exact = inference_precision(encoder)
    assert found is not None
    assert exact is not None
    assert list(found.costs) == [exact.choice, "int8"]
    assert not encoder.frozen


def test_int8_of_tiny_layers_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "verdict_on", None)
    encoder = tiny_encoder().eval()
    calibration = calibrate(encoder, [PackedTokens.from_lists([[1, 2, 3]])])
    assert fastest_with_int8(encoder, calibration) is None


@pytest.mark.thorough
def test_a_precision_without_kernels_of_its_own_is_measured_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "has_onednn", lambda dtype: dtype == torch.float32)
    packed = []
    monkeypatch.setattr(precision, "pack", lambda block, activation: packed.append(block))
    verdict = inference_precision(Encoder(SMALL))
    assert verdict is not None
    assert list(verdict.costs) == ["fp32", "bf16"]
    assert {p.dtype for block in packed for p in block.parameters()} == {torch.float32}


@pytest.mark.thorough
def test_the_random_numbers_of_the_caller_are_not_drawn() -> None:
    encoder = Encoder(SMALL)
    state = torch.get_rng_state()
    inference_precision(encoder)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.thorough
def test_relative_positions_are_measured_too() -> None:
    config = EncoderConfig(
        hidden_size=128,
        intermediate_size=512,
        heads=4,
        layers=1,
        vocab_size=100,
        attention_terms=("c2c", "c2p", "p2c"),
        relative_positions=32,
        key_bias=False,
    )
    assert inference_precision(Encoder(config)) is not None


def test_tiny_layers_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "verdict_on", None)
    assert inference_precision(tiny_encoder()) is None


@pytest.mark.parametrize(("hidden", "expected"), [(128, 1024), (384, 226), (1024, 64)])
def test_the_work_of_a_trial_is_bounded(hidden: int, expected: int) -> None:
    config = EncoderConfig(hidden_size=hidden, intermediate_size=4 * hidden, heads=4, layers=1)
    with torch.device("meta"):
        encoder = Encoder(config)
    tokens = precision._tokens(encoder, precision._OPERATIONS)
    assert tokens == expected
    assert sum(precision._cut(precision._PASSAGES, tokens)) == tokens
    assert max(precision._cut(precision._SENTENCES, tokens)) <= 32


def test_training_is_measured_without_a_trace() -> None:
    encoder = Encoder(SMALL).train()
    state = torch.get_rng_state()
    verdict = training_precision(encoder, tokens=300, length=20)
    assert verdict is not None
    assert verdict.choice in verdict.costs
    assert list(verdict.costs) == ["fp32", "bf16"]
    assert verdict.work.endswith("a step of 256 tokens, texts of up to 16")
    assert torch.equal(torch.get_rng_state(), state)
    assert encoder.training
    assert all(p.grad is None and p.dtype == torch.float32 for p in encoder.parameters())


def test_tiny_layers_are_trained_in_fp32() -> None:
    assert training_precision(tiny_encoder(), tokens=300, length=20) is None


def test_similar_steps_share_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(SMALL)
    first = training_precision(encoder, tokens=256, length=16)
    monkeypatch.setattr(verdicts, "measure", None)
    assert training_precision(encoder, tokens=500, length=31) is first


def test_gradients_in_bf16_are_those_in_fp32() -> None:
    """Weights and their gradients stay in float32, so small updates are not lost."""
    encoder = Encoder(replace(SMALL, hidden_dropout=0.0, attention_dropout=0.0)).train()
    ids = torch.randint(100, (64,), generator=torch.Generator().manual_seed(1))
    tokens = PackedTokens(ids, (30, 24, 10))
    found = {}
    for name, dtype in precision.EXACT.items():
        encoder.zero_grad()
        with torch.autocast("cpu", dtype, enabled=name != "fp32"):
            states = encoder(tokens).hidden_states
        weights = torch.linspace(-1, 1, states.numel()).view(states.shape)
        torch.autograd.backward((states * weights).sum())
        found[name] = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
    for exact, rounded in zip(found["fp32"], found["bf16"], strict=True):
        assert rounded.dtype == torch.float32
        cosine = torch.cosine_similarity(exact.flatten(), rounded.flatten(), dim=0)
        assert cosine > 0.99 or exact.norm() < 1e-3


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sbert_search.models.bi_encoder import BiEncoder
    from tests.models.tiny import tiny_bi_encoder

    base = tmp_path_factory.mktemp("model")
    tiny = tiny_bi_encoder(base / "tokens")
    shape = EncoderConfig(
        hidden_size=256,
        intermediate_size=1024,
        heads=4,
        layers=2,
        vocab_size=tiny.tokenizer.vocab_size,
        max_positions=64,
    )
    torch.manual_seed(0)
    BiEncoder(Encoder(shape), tiny.tokenizer).save(base / "model")
    return base / "model"


def elsewhere(model: Path, cache: Path, **switches: str) -> tuple[str, list[list[float]], int]:
    """Embed on another processor, as the switches of oneDNN and torch simulate it."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", **switches}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(model)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    chosen, vectors, costs, threads = json.loads(done.stdout)
    assert chosen == verdicts.choose({name: costs[name] for name in ("fp32", "bf16")})
    return chosen, vectors, threads


@pytest.mark.thorough
@pytest.mark.parametrize(
    "switches",
    [
        {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
        {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},  # neither avx512_vnni nor avx512_bf16
    ],
)
def test_a_cpu_without_bf16_instructions_computes_in_fp32_and_right(
    saved: Path, tmp_path: Path, switches: dict[str, str]
) -> None:
    from sbert_search import Embedder

    exact = Embedder(saved, device="cpu", precision="fp32").encode(["the cat sat", "a dog ran"])
    _, here, _ = elsewhere(saved, tmp_path)  # whatever is fastest here; its verdict is kept
    chosen, vectors, threads = elsewhere(saved, tmp_path, **switches)
    assert chosen == "fp32"
    assert threads == 1
    torch.testing.assert_close(torch.tensor(vectors), torch.from_numpy(exact), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(torch.tensor(here), torch.from_numpy(exact), atol=0.05, rtol=0.05)
