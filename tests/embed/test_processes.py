import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sbert_search.embed.embedder import Embedder
from sbert_search.embed.processes import ProcessEngine
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.heads import Normalize
from tests.models.tiny import TEXTS, tiny_bi_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("model")
    tiny_bi_encoder(base / "tokens", head=[Normalize()]).save(base / "saved")
    return base / "saved"


@pytest.mark.thorough
def test_two_processes_give_the_vectors_of_one_until_one_ends(folder: Path) -> None:
    alone = Embedder(folder, device="cpu", precision="fp32", truncate_dim=10)
    both = Embedder(folder, device="cpu,cpu", precision="fp32", truncate_dim=10, batch_tokens=16)
    assert both.identity == alone.identity
    assert (both.opened.device, both.batch_tokens, both.dim) == ("cpu,cpu", 32, 10)
    texts = [*TEXTS, *TEXTS[::-1], "cat"]
    np.testing.assert_allclose(both.encode(texts), alone.encode(texts), atol=1e-6)
    np.testing.assert_allclose(both.encode("a dog"), alone.encode("a dog"), atol=1e-6)
    assert both.encode([]).shape == (0, 10)
    again: Any = both.opener("cpu,cpu")
    assert (again.keywords["batch_tokens"], again.keywords["device"]) == (16, "cpu,cpu")
    engine: Any = both.opened.engine
    with pytest.raises(ModelError, match="process that computes on cpu has ended"):
        engine._workers[1].submit(os._exit, 1)()
    with pytest.raises(ModelError, match="process that computes on cpu has ended"):
        both.encode(texts)


@pytest.mark.thorough
def test_workers_of_a_deleted_engine_end_and_are_not_waited_for() -> None:
    stand_in: Any = Undecided
    engine = ProcessEngine(stand_in, ["cpu"])
    pid = engine._workers[0].submit(os.getpid)()
    engine._workers[0].submit(time.sleep, 3)
    started = time.monotonic()
    del engine
    assert time.monotonic() - started < 2
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Undecided:
    """Stands in for `Embedder`; each process finds another precision, unless one is named."""

    def __init__(
        self, *, device: str, precision: str = "auto", calibrate: object = None, **_: object
    ) -> None:
        if calibrate is not None and precision == "bf16":
            raise ConfigError("calibrate is given, but precision is bf16")
        chosen = {"cpu": "bf16", "cuda": "fp32"}[device] if precision == "auto" else precision
        counter = SimpleNamespace(values=30, beyond=0)
        if device == "cuda":
            counter = SimpleNamespace(values=10, beyond=4)
        engine = SimpleNamespace(name="native", dim=2, tokenizer=None, counter=counter)
        self.opened = SimpleNamespace(engine=engine, precision=chosen, calibration="")
        self.batch_tokens = 1

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        number = {"bf16": 1.0, "fp32": 2.0}[self.opened.precision]
        return np.full((len(tokens), 2), number, np.float32)


@pytest.mark.thorough
def test_processes_that_measure_otherwise_agree_on_the_precision_of_the_first() -> None:
    undecided: Any = Undecided
    engine = ProcessEngine(undecided, ["cpu", "cuda"], calibrate=["a text"])
    assert engine.precision == "bf16"
    tokens = TokenizedTexts(["a"] * 8, "", [[1, 2]] * 8, np.zeros(8, np.int32))
    assert (engine.start(tokens)() == 1).all()


@pytest.mark.thorough
def test_inputs_beyond_a_calibration_are_counted_in_all_processes() -> None:
    undecided: Any = Undecided
    assert ProcessEngine(undecided, ["cpu", "cuda"]).beyond_calibration == 4 / 40


@pytest.mark.thorough
def test_errors_of_a_process_are_those_of_an_embedder(folder: Path) -> None:
    with pytest.raises(ConfigError, match="fp16 is slow and inexact on a CPU"):
        Embedder(folder, device="cpu,cpu", precision="fp16")
    with pytest.raises(ConfigError, match="BiEncoder in memory cannot be sent to several devices"):
        Embedder(tiny_bi_encoder(folder), device="cpu,cpu")


@pytest.mark.parametrize(
    ("lengths", "tokens"),
    [([5, 5, 5, 5], [10, 10]), ([9, 1, 1, 1], [9, 3]), ([7], [7, 0]), ([1, 2, 3, 4, 5], [9, 6])],
)
def test_shares_have_about_as_many_tokens(lengths: list[int], tokens: list[int]) -> None:
    engine = ProcessEngine.__new__(ProcessEngine)
    engine._workers = [None, None]  # type: ignore[list-item]
    counts = np.array(lengths, dtype=np.int32)
    shares = engine._shares(counts)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(lengths)))
    assert [int(counts[rows].sum()) for rows in shares] == tokens
