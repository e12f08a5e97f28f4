"""Small steps padded to a bucket; a fake recorder stands in for CUDA graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sbert_search.embed.engines import native as cuda_graphs
from sbert_search.embed.engines.native import MAX_TOKENS, GraphReplayer, PackedEngine, Work
from sbert_search.models import heads as pooling
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder import self_attention
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.heads import Normalize
from tests.models.tiny import tiny_cross_encoder, tiny_encoder, tiny_tokenizer

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


class Recorder:
    """Counts what is recorded and replayed; replays by doing the work again, into one tensor."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, work: Work) -> Work:
        self.recorded += 1
        out = work().clone()

        def again() -> Tensor:
            self.replayed += 1
            return out.copy_(work())

        return again


def attend_by_starts(*heads: Tensor, key_starts: Tensor, scale: float, **_: Any) -> Tensor:
    """Do as the kernel: rows between two starts attend to each other; other rows are NaN."""
    context = torch.full_like(heads[2], float("nan"))
    for start, end in pairwise(key_starts.tolist()):
        query, key, value = (part[start:end].transpose(0, 1) for part in heads)
        context[start:end] = ((query @ key.mT * scale).softmax(-1) @ value).transpose(0, 1)
    return context.flatten(1)


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_attention, "has_varlen_kernel", lambda query: True)
    monkeypatch.setattr("sbert_search.models.encoder.encoder.has_varlen_kernel", lambda query: True)
    monkeypatch.setattr(self_attention, "varlen_attention", attend_by_starts)
    monkeypatch.setattr(pooling, "_saves_launches", lambda states: True)


def ids_of(*lengths: int) -> list[list[int]]:
    return [[5 + (3 * row + place) % 40 for place in range(n)] for row, n in enumerate(lengths)]


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("modes", [("mean",), ("cls", "max", "lasttoken")])
def test_replayed_vectors_equal_computed_ones(tmp_path: Path, modes: tuple[str, ...]) -> None:
    model = BiEncoder(
        tiny_encoder(), tiny_tokenizer(tmp_path), pooling=modes, head=[Normalize()]
    ).eval()
    assert model.needs_only_starts
    record = Recorder()
    replayed = GraphReplayer(model, CPU, 24, record)
    with torch.inference_mode():
        for lengths in [(3,), (24,), (5, 2, 9), (1, 1, 1), (16, 16), (24, 3, 24, 7, 8), (4,)]:
            ids = ids_of(*lengths)
            expected = model(PackedTokens.from_lists(ids))
            torch.testing.assert_close(replayed(ids), expected, atol=1e-6, rtol=0)
    assert (record.recorded, record.replayed) == (5, 7)  # buckets: 1x16, 1x24, 4x16, 2x16, 8x24


@pytest.mark.usefixtures("as_on_cuda")
def test_replayed_scores_equal_computed_ones(tmp_path: Path) -> None:
    model = tiny_cross_encoder(tmp_path)
    assert model.needs_only_starts
    replayed = GraphReplayer(model.scores, CPU, 24, Recorder())
    ids, types = ids_of(9, 20, 4), [[0] * 4 + [1] * 5, [0] * 6 + [1] * 14, [0, 0, 1, 1]]
    with torch.inference_mode():
        expected = model.scores(PackedTokens.from_lists(ids, types))
        torch.testing.assert_close(replayed(ids, types), expected, atol=1e-6, rtol=0)
        without = model.scores(PackedTokens.from_lists(ids))
        torch.testing.assert_close(replayed(ids), without, atol=1e-6, rtol=0)


def sums(tokens: PackedTokens) -> Tensor:
    ends = torch.cat([tokens.input_ids.new_zeros(1), tokens.input_ids.cumsum(0)])[tokens.starts]
    return ends.diff().unsqueeze(1).float()


def test_large_steps_are_computed_as_they_are() -> None:
    record = Recorder()
    replayed = GraphReplayer(sums, CPU, 4096, record)
    ids = ids_of(*[33] * (MAX_TOKENS // 64 + 1))
    assert replayed(ids)[:, 0].tolist() == [sum(each) for each in ids]
    assert record.recorded == 0


def test_a_device_that_cannot_record_computes(capsys: pytest.CaptureFixture[str]) -> None:
    tries: list[Work] = []

    def record(work: Work) -> Work:
        tries.append(work)
        raise torch.OutOfMemoryError("out of memory")

    replayed = GraphReplayer(sums, CPU, 64, record)
    for _ in range(2):
        assert replayed([[1, 2], [3]]).tolist() == [[3.0], [3.0]]
    assert len(tries) == 1
    assert "CUDA graphs are turned off on cpu: out of memory" in capsys.readouterr().err


def test_a_graph_is_warmed_up_and_recorded_on_a_stream_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            events.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self) -> None:
            events.append("replay")

    @contextmanager
    def within(name: str) -> Iterator[None]:
        events.append(name)
        yield
        events.append(f"end of {name}")

    def capture(graph: Graph, **options: Any) -> AbstractContextManager[None]:
        stream = options.pop("stream")
        assert stream.name == "side"
        assert options == {"pool": "pool", "capture_error_mode": "thread_local"}
        return within("recording")

    fakes = {
        "graph_pool_handle": lambda: "pool",
        "Stream": lambda device: Stream("side"),
        "current_stream": lambda device: Stream("main"),
        "stream": lambda stream: within(stream.name),
        "CUDAGraph": Graph,
        "graph": capture,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)

    def work() -> Tensor:
        events.append("work")
        return torch.ones(1)

    again = cuda_graphs.cuda_recorder(torch.device("cuda"))(work)
    assert again() is again()
    assert events == [
        *("side waits for main", "side", "work", "recording", "work", "end of recording"),
        *("end of side", "main waits for side", "replay", "replay"),
    ]


def test_threads_do_not_fill_a_bucket_under_each_other() -> None:
    replayed = GraphReplayer(sums, CPU, 64, Recorder())
    wrong: list[float] = []

    def ask(number: int) -> None:
        for _ in range(100):
            if (got := replayed([[number] * 3]).item()) != 3 * number:
                wrong.append(got)

    threads = [threading.Thread(target=ask, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("needs_only_starts", [False, True])
def test_only_a_moved_model_that_needs_only_starts_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs_only_starts: bool
) -> None:
    """Weights of a model that was not moved here may still go elsewhere."""
    made: list[tuple[torch.device, int]] = []

    def fake(compute: Callable[..., Tensor], device: torch.device, longest: int) -> str:
        made.append((device, longest))
        return "replayed"

    monkeypatch.setattr("sbert_search.embed.engines.native.GraphReplayer", fake)
    monkeypatch.setattr(BiEncoder, "needs_only_starts", property(lambda self: needs_only_starts))
    model = BiEncoder(tiny_encoder(), tiny_tokenizer(tmp_path))
    engine = PackedEngine(model, model)
    assert made == []
    engine.move(CPU, torch.float32)
    assert made == [(CPU, 24)] * needs_only_starts


def test_buckets_are_powers_of_two() -> None:
    powers = [cuda_graphs._power_of_two(n) for n in (1, 2, 3, 4, 5, 64, 65)]
    assert powers == [1, 2, 4, 4, 8, 64, 128]
    assert cuda_graphs._power_of_two(3, 16) == 16
