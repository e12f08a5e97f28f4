"""A small world, in which the tests of the mission train models.

`benchmarks/small_world.py` has the data and the command lines of the trainers.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from sbert_search import Embedder, Hit, Index
from tests.cli.process import ROOT, told

EXACT = ("--precision", "fp32", "--device", "cpu")


class World:
    """The small world's folder, and its models, each trained when a test first asks for it."""

    def __init__(self, folder: Path) -> None:
        self.small = small = small_world()
        self.folder = small.write_world(folder)
        told(*small.train_tokenizer(folder))
        self._lines: dict[str, list[object]] = small.trainers(folder, 30)
        self._facts: dict[str, dict[str, Any]] = {}

    def facts(self, name: str) -> dict[str, Any]:
        """Train a model of `small_world.trainers`, and those it needs; return what it printed."""
        if name not in self._facts:
            words = " ".join(map(str, self._lines[name]))
            for needed in re.findall(rf"{self.folder}/([\w-]+)/model", words):
                self.facts(needed)
            (self._facts[name],) = told(*self._lines[name], "--out", self.folder / name)
        return self._facts[name]

    def model(self, name: str) -> Path:
        return Path(self.facts(name)["model"])

    def gain(self, name: str, figure: str) -> float:
        """How much a dev figure rose in the training of a model."""
        facts = self.facts(name)
        return float(facts["figures"][figure] - facts["figures_at_start"][figure])

    def losses(self, name: str) -> list[float]:
        self.facts(name)
        lines = map(json.loads, (self.folder / name / "log.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if line["kind"] == "step"]

    def embedder(self, name: str) -> Embedder:
        return Embedder(self.model(name), precision="fp32", device="cpu")

    def learn(self, out: Path, kind: str, recipe: str, *settings: str, steps: int = 2) -> Path:
        """Train for a few steps from the pre-trained model; return the folder of the run."""
        self.facts("bert")
        told(*self.small.training(self.folder, kind, recipe, *settings, steps=steps), "--out", out)
        return out

    def index(self) -> Index:
        """Open an index of all documents, embedded by hashed words."""
        path = self.folder / "all.index"
        if not path.exists():
            source = self.folder / "corpus.jsonl"
            told("index", "build", source, "--model", "hashing", "--out", path)
        return Index.open(path)


def ids(hits: Iterable[Hit]) -> list[str]:
    return [hit.doc_id for hit in hits]


def small_world() -> ModuleType:
    """Load `benchmarks/small_world.py`, whose folder is no package."""
    path = ROOT / "benchmarks" / "small_world.py"
    spec = importlib.util.spec_from_file_location("small_world", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
