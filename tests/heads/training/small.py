"""Small data and settings that the tests of task heads share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.train.loop.log import read_log
from tests.models.tiny import tiny_encoder, tiny_tokenizer

QUICK: dict[str, Any] = {
    "device": "cpu",
    "precision": "fp32",
    "optim": {"lr": 1e-2},
    "batching": {"size": 8},
    "max_len": 24,
}


def encoder_folder(folder: Path, **changes: Any) -> Path:
    """Write a small encoder without a head, unless it is there."""
    if (folder / "encoder").exists():
        return folder / "encoder"
    encoder = tiny_encoder(initializer_range=0.3, **changes)
    BiEncoder(encoder, tiny_tokenizer(folder / "tokens")).save(folder / "encoder")
    return folder / "encoder"


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def dev_figures(out: Path) -> list[dict[str, float]]:
    return [line["figures"] for line in read_log(out / "log.jsonl") if line["kind"] == "dev"]


def asked_devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the names of the devices that trainings of heads resolve; each is the CPU."""
    asked: list[str] = []

    def resolve(name: str) -> torch.device:
        asked.append(name)
        return torch.device("cpu")

    monkeypatch.setattr("sbert_search.heads.training.resolve_device", resolve)
    return asked
