from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sbert_search.errors import ConfigError
from sbert_search.models.encoder import int8_kernels
from sbert_search.models.encoder.int8_kernels import check_int8_product, quantize

# Rounds random weights and multiplies them by random and by the largest levels. Prints whether the
# CPU clips sums of pairs, the largest rounded weight, and whether the products are exact.
_PRODUCT = """
import json, torch
from sbert_search.models.encoder.int8_kernels import check_int8_product
from sbert_search.models.encoder.inference_layers import _rounded_weight
clips, most, exact = set(), 0, []
for rows, outputs, inputs in ((1, 24, 16), (7, 40, 24), (5, 30, 17), (300, 1536, 384)):
    clips.add(check_int8_product(outputs, inputs))
    random = torch.Generator().manual_seed(rows)
    weight, _ = _rounded_weight(torch.randn(outputs, inputs, generator=random))
    most = max(most, int(weight.abs().max()))
    levels = torch.randint(0, 256, (rows, inputs), generator=random, dtype=torch.uint8)
    levels[::2] = 255
    product = torch.ops.onednn.qlinear_pointwise(
        levels, 1.0, 100, torch.ops.onednn.qlinear_prepack(weight, None), torch.ones(outputs),
        torch.zeros(outputs, dtype=torch.int32), None, 1.0, 0, torch.float32, "none", [], "",
    )
    right = (levels.double() - 100) @ weight.double().T
    exact.append(bool(torch.allclose(product.double(), right, rtol=1e-5)))
print(json.dumps([sorted(clips), most, exact]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "switches",
    [
        {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
        {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    ],
)
def test_products_are_exact_on_cpus_without_vnni(switches: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PRODUCT],
        env={**os.environ, "OMP_NUM_THREADS": "1", **switches},
        capture_output=True,
        text=True,
        check=True,
    )
    clips, most, exact = json.loads(done.stdout)
    assert exact == [True] * 4
    assert clips == [True]
    assert 100 < most <= 127


def test_a_torch_without_onednn_is_refused(monkeypatch: Any) -> None:
    check_int8_product.cache_clear()
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    with pytest.raises(ConfigError, match="int8 needs a torch with oneDNN; use precision='fp32'"):
        check_int8_product(6, 8)


def test_a_slow_or_wrong_product_is_refused(monkeypatch: Any) -> None:
    check_int8_product.cache_clear()
    seconds = iter([0.001, 0.5])  # float32, then int8
    monkeypatch.setattr(int8_kernels, "_fastest_seconds", lambda work, enough=0.0: next(seconds))
    with pytest.raises(ConfigError, match="takes 500 times as long for an int8 product of 8 x 6"):
        check_int8_product(6, 8)
    monkeypatch.setattr(int8_kernels, "_is_right", lambda *shape: False)
    with pytest.raises(ConfigError, match="int8 product of 8 x 6 is wrong on this CPU"):
        check_int8_product(6, 8)
    check_int8_product.cache_clear()


def test_a_busy_machine_does_not_make_a_product_slow(monkeypatch: Any) -> None:
    clock = iter([0, 9, 10, 19, 20, 29, 30, 39, 40, 40.5, 50, 50.1])  # starts and ends of runs
    stopped = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr("sbert_search.models.encoder.int8_kernels.time", stopped)
    assert int8_kernels._fastest_seconds(lambda: None, enough=1.0) == 0.5
    assert next(clock) == 50


def test_numbers_round_to_the_nearest_level_and_are_clipped() -> None:
    values = torch.tensor([[-9.0, -0.26, -0.24, 0.0, 0.24, 0.26, 0.75, 60.0, 90.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        levels = quantize(values, (0.5, 10))
    # -0.52, -0.48, 0.48, 0.52 and 1.5 steps from 0; 1.5 rounds to the even 2.
    assert levels.tolist() == [[0, 9, 10, 10, 10, 11, 12, 130, 190]]
    assert levels.dtype == torch.uint8
    assert quantize(torch.tensor([[1e4]]), (0.5, 10)).tolist() == [[255]]


def test_levels_are_the_same_without_the_deprecated_operator(monkeypatch: Any) -> None:
    values = torch.randn(50, 30, generator=torch.Generator().manual_seed(0)) * 20
    levels = quantize(values, (0.11, 117))
    monkeypatch.delattr(torch, "quantize_per_tensor")
    assert torch.equal(quantize(values, (0.11, 117)), levels)
    assert set(levels.flatten().tolist()) >= {0, 255}
