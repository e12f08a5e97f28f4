from typing import NamedTuple

import numpy as np
import pytest
import torch

from sbert_search.base.device import (
    autocast,
    computes_on_cpu,
    fetch,
    matmul_rate,
    memory_bytes,
    plain_memory_errors,
    resolve_device,
    resolve_precision,
    send,
    to_device,
)
from sbert_search.errors import ConfigError

CPU = torch.device("cpu")


def test_devices_are_found_by_name_and_absent_ones_refused() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_device("auto").type in {"cpu", "cuda", "mps"}
    with pytest.raises(ConfigError, match="is not a device"):
        resolve_device("tpu9")
    with pytest.raises(ConfigError, match="'cpu,cpu' names several devices; name one"):
        resolve_device("cpu,cpu")
    with pytest.raises(ConfigError, match="no device 'cuda:63' here"):
        resolve_device("cuda:63")


def test_precisions_are_named_and_auto_is_exact_on_a_cpu() -> None:
    assert resolve_precision("auto", CPU) == torch.float32
    assert resolve_precision("fp32", CPU) == torch.float32
    assert resolve_precision("bf16", CPU) == torch.bfloat16
    with pytest.raises(ConfigError, match="fp16"):
        resolve_precision("fp16", CPU)
    with pytest.raises(ConfigError, match="use auto, fp32, bf16, fp16"):
        resolve_precision("fp8", CPU)  # type: ignore[arg-type]


def test_a_precision_that_the_cpu_has_no_fast_kernel_for_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert computes_on_cpu("cpu,cpu", "fp32")
    assert not computes_on_cpu("cpu", "fp16")
    for present in (True, False):
        monkeypatch.setattr("sbert_search.base.device.has_onednn", lambda _, x=present: x)
        assert computes_on_cpu("cpu", "bf16") is present
    monkeypatch.setattr(
        "sbert_search.base.device.resolve_device", lambda name: torch.device("cuda")
    )
    assert not computes_on_cpu("auto", "fp32")


def test_autocast_changes_products_only_when_it_should() -> None:
    factor = torch.ones(2, 2)
    with autocast(CPU, torch.bfloat16):
        assert (factor @ factor).dtype == torch.bfloat16
    with autocast(CPU, torch.float32):
        assert (factor @ factor).dtype == torch.float32


def test_the_machine_is_measured() -> None:
    rate = matmul_rate(CPU, torch.float32, 128)
    assert rate.flops > 1e6  # far below any machine, however busy
    assert rate.by in ("torch_mm", "onednn")
    assert matmul_rate(CPU, torch.float64, 64).by == "torch_mm"  # oneDNN has none
    assert memory_bytes(CPU) > 1 << 20


def test_arrays_go_to_a_device_and_back() -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    wait = fetch(send(numbers, "cpu") * 2)
    np.testing.assert_array_equal(wait(), numbers * 2)


def test_a_device_without_memory_raises_what_needs_no_torch_to_be_caught() -> None:
    with pytest.raises(MemoryError, match="20 GiB"), plain_memory_errors():
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")


def test_nested_tensors_move_together() -> None:
    class Holder:
        def to(self, device: torch.device) -> str:
            return f"moved to {device}"

    class Named(NamedTuple):
        ids: torch.Tensor
        name: str

    tree = {"a": torch.zeros(1), "b": [torch.zeros(2), (3, "x")], "c": Holder()}
    named = to_device(Named(torch.zeros(1), "x"), torch.device("meta"))
    assert (type(named), named.ids.device.type, named.name) == (Named, "meta", "x")
    moved = to_device(tree, torch.device("meta"))
    assert moved["a"].device.type == "meta"
    assert moved["b"][0].device.type == "meta"
    assert moved["b"][1] == (3, "x")
    assert moved["c"] == "moved to meta"
