"""The exported graph: the native engine's numbers, from a cache that is never believed blindly."""

import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from sbert_search.embed.embedder import Embedder
from sbert_search.embed.engines import graph
from sbert_search.embed.engines.export import PaddedBiEncoder, export_graph
from sbert_search.embed.engines.graph import (
    MANIFEST,
    WEIGHTS,
    cached_graph,
    keep_graph,
    require_graph,
)
from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.heads import POOLINGS, Dense, Normalize
from sbert_search.models.loading.folder import ModelFolder, read_folder
from tests.models.tiny import TEXTS, tiny_bi_encoder, tiny_encoder, tiny_tokenizer
from tests.parity.folders import bare

MODES = [mode for mode in POOLINGS if mode != "sum"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("model")
    head = [Dense(16 * len(MODES), 8, activation=nn.Tanh()), Normalize()]
    prompts = {"query": "cat "}
    order = sorted(MODES, key=list(POOLINGS).index)
    tiny_bi_encoder(base / "tokens", pooling=order, head=head, prompts=prompts).save(base / "saved")
    return base / "saved"


@pytest.fixture(scope="module")
def exported(folder: Path) -> Embedder:
    return Embedder(folder, engine="onnx")


@pytest.fixture
def no_export(monkeypatch: Any) -> None:
    def refuse(folder: Any) -> Path:
        raise AssertionError("exported again")

    monkeypatch.setattr(graph, "make_graph", refuse)


@pytest.mark.thorough
def test_every_pooling_dense_and_prompt_as_native(folder: Path, exported: Embedder) -> None:
    native = Embedder(folder, device="cpu", precision="fp32")
    assert exported.identity.differences(native.identity) == []
    assert exported.identity.engine == "onnx"
    texts = [*TEXTS, *(" ".join(["cat", "dog", "far"] * n) for n in range(9))]
    np.testing.assert_allclose(exported.encode(texts), native.encode(texts), atol=1e-5)
    np.testing.assert_allclose(
        exported.encode_query(["dog"]), native.encode(["cat dog"]), atol=1e-5
    )


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["mpnet", "modernbert"])
def test_positions_inside_attention_are_in_the_graph(tmp_path: Path, family: str) -> None:
    folder = bare(tmp_path, family)
    graph = Embedder(folder, engine="onnx")
    native = Embedder(folder, device="cpu", precision="fp32")
    texts = [" ".join(["cat", "dog", "far"] * n) for n in range(1, 9)]
    np.testing.assert_allclose(graph.encode(texts), native.encode(texts), atol=1e-5)


@pytest.mark.thorough
def test_minilm_equals_native_on_real_texts(real_data: Path) -> None:
    with gzip.open(real_data / "stsb" / "test.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(next(lines))["sentence1"] for _ in range(100)]
    with gzip.open(real_data / "scifact" / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts += [json.loads(next(lines))["text"] for _ in range(6)]
    texts += ["", "x" * 5000]
    ours = Embedder(engine="onnx").encode(texts)
    native = Embedder(device="cpu", precision="fp32").encode(texts)
    np.testing.assert_allclose(ours, native, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.usefixtures("no_export")
def test_a_graph_is_made_once(folder: Path, exported: Embedder) -> None:
    require_graph(folder)
    keep_graph(read_folder(folder))
    again = Embedder(folder, engine="onnx")
    np.testing.assert_array_equal(again.encode(TEXTS), exported.encode(TEXTS))


@pytest.mark.thorough
def test_a_damaged_graph_is_never_opened_but_made_again(folder: Path, exported: Embedder) -> None:
    before = exported.encode(TEXTS)
    described = read_folder(folder)
    place = cached_graph(described)
    assert place is not None
    damaged = bytearray((place / WEIGHTS).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (place / WEIGHTS).write_bytes(damaged)
    assert cached_graph(described) is None
    with pytest.raises(ModelError, match="has no valid graph"):
        require_graph(folder)
    np.testing.assert_array_equal(Embedder(folder, engine="onnx").encode(TEXTS), before)
    assert cached_graph(described) == place
    assert [path.name for path in place.parent.iterdir()].count(place.name) == 1


@pytest.mark.thorough
def test_processes_that_export_at_the_same_time_keep_the_first_graph(
    folder: Path, exported: Embedder
) -> None:
    described = read_folder(folder)
    place = cached_graph(described)
    assert place is not None
    first = (place / MANIFEST).stat().st_ino
    assert graph.make_graph(described) == place  # as if the graph had come during the export
    assert (place / MANIFEST).stat().st_ino == first
    assert not list(place.parent.glob(f"{place.name}.*"))


@pytest.mark.thorough
def test_an_export_removes_what_killed_ones_have_left(folder: Path, exported: Embedder) -> None:
    place = cached_graph(read_folder(folder))
    assert place is not None
    killed, running = (place.with_name(f"{place.name}.{number}") for number in (1, os.getpid()))
    for partial in (killed, running):
        partial.mkdir()
        (partial / WEIGHTS).write_bytes(b"half")
    os.utime(killed, (0, 0))
    try:
        graph.make_graph(read_folder(folder))
        assert not killed.exists()
        assert running.exists()
    finally:
        shutil.rmtree(running)


def test_a_failed_export_is_an_error_of_the_engine_alone(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no rule for this operator")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "model")
    monkeypatch.setattr("torch.onnx.export", fail)
    with pytest.raises(ModelError, match=r"use engine='native'\. no rule for this operator"):
        Embedder(tmp_path / "model", engine="onnx")
    keep_graph(read_folder(tmp_path / "model"))
    monkeypatch.setattr(graph, "make_graph", fail)
    keep_graph(read_folder(tmp_path / "model"))
    assert capsys.readouterr().err.count("The export failed; searches will load torch.") == 2


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(28, "No space left on device"),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_export_that_the_machine_ended_is_no_fault_of_the_model(
    tmp_path: Path, monkeypatch: Any, error: Exception, wrapped: bool
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        if wrapped:
            raise RuntimeError("Failed to export the model.") from error
        raise error

    monkeypatch.setattr("torch.onnx.export", fail)
    model = tiny_bi_encoder(tmp_path)
    with pytest.raises(type(error)) as raised:
        export_graph(model, tmp_path / "graph", tmp_path / "weights")
    assert raised.value is error


@pytest.mark.thorough
@pytest.mark.usefixtures("exported")
def test_other_settings_or_weights_have_no_graph_yet(folder: Path, tmp_path: Path) -> None:
    model = BiEncoder.load(folder)
    next(model.parameters()).data += 1
    model.save(tmp_path / "other")
    assert cached_graph(read_folder(tmp_path / "other")) is None
    settings = folder / "config.json"
    before = settings.read_bytes()
    settings.write_bytes(before.replace(b'"gelu"', b'"relu"'))
    try:
        assert cached_graph(read_folder(folder)) is None
    finally:
        settings.write_bytes(before)
    assert cached_graph(read_folder(folder)) is not None


def test_without_onnxruntime_the_engine_is_refused_by_name(
    folder: Path, exported: Embedder, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"needs onnxruntime: python .* -e '\.\[cpu\]'"):
        Embedder(folder, engine="onnx")
    with pytest.raises(ConfigError, match="onnxruntime is not installed"):
        require_graph(folder)


@pytest.mark.parametrize(("name", "value"), [("device", "cuda"), ("precision", "bf16")])
def test_another_device_or_precision_is_refused(folder: Path, name: str, value: str) -> None:
    options: Any = {name: value}
    with pytest.raises(ConfigError, match="engine onnx computes on cpu in fp32"):
        Embedder(folder, engine="onnx", **options)


def test_attention_with_relative_positions_has_no_padded_form(tmp_path: Path) -> None:
    encoder = tiny_encoder(attention_terms=("c2c", "c2p"), relative_positions=4)
    with pytest.raises(ModelError, match=r"supports no attention .*; use engine='native'"):
        PaddedBiEncoder(BiEncoder(encoder, tiny_tokenizer(tmp_path)))


def test_an_export_beside_a_server_does_not_fill_its_container(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(bytes(1 << 20))
    folder = cast(ModelFolder, SimpleNamespace(path=weights.parent))
    monkeypatch.setattr(graph, "_inputs", lambda _: {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for left, expected in ((None, True), (516 << 20, True), ((516 << 20) - 1, False)):
        monkeypatch.setattr(graph, "left_in_container", lambda left=left: left)
        assert graph._may_export(folder) is expected
    assert "that takes about 516 MiB, and the container has 516 MiB left" in capsys.readouterr().err


def test_an_export_that_runs_or_was_killed_is_not_repeated_on_the_same_day(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(graph, "_inputs", lambda _: {})
    monkeypatch.setattr(graph, "left_in_container", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = graph._graph_folder({})
    partial = place.with_name(f"{place.name}.1f")
    partial.mkdir(parents=True)
    folder = cast(ModelFolder, SimpleNamespace(path=tmp_path))
    assert not graph._may_export(folder)
    os.utime(partial, (0, 0))
    assert graph._may_export(folder)
    assert not partial.exists()
