"""Builds on a cluster: the bytes of a plain build, whatever is killed meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sbert_search import (
    BuildSettings,
    Document,
    Embedder,
    Index,
    RayRunner,
    ReadSettings,
)
from sbert_search.cluster import connection, pool
from sbert_search.embed.pipeline import EmbedBatches, embed_batches
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import ClusterError, ConfigError, CorpusError
from sbert_search.index.building import ingest
from sbert_search.index.building.build import build_index
from sbert_search.index.building.parquet import embed_to_parquet
from tests.cli.process import environment
from tests.cli.process import in_a_process as sbert_search
from tests.index.building.test_ingest import (
    SETTINGS,
    TogetherEmbedder,
    assert_same_bytes,
    corpus,
    whole,
)
from tests.integrations.ray.conftest import Machines

__all__ = ["corpus", "whole"]  # fixtures

N_TEXTS = 40


class SlowEmbedder(TogetherEmbedder):
    """Takes long enough that a machine can be killed while it computes."""

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        time.sleep(0.001)
        return super().encode_tokens(tokens)


class FatalEmbedder(TogetherEmbedder):
    """Ends its process at a certain text, as the kernel does if memory runs out."""

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        if any("fatal" in text for text in tokens.texts):
            os._exit(9)
        return super().encode_tokens(tokens)


@dataclass
class HangingEmbedder(TogetherEmbedder):
    """Hangs in the first worker that computes.

    Args:
        hung: This file exists once a worker hangs.
        stops: Whether the whole process stands still; if not, only the call does.
        driver: The process of the build, which does not hang.
    """

    hung: Path
    stops: bool
    driver: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        super().__init__()

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        if os.getpid() == self.driver:
            return super().encode_tokens(tokens)
        with contextlib.suppress(FileExistsError):
            self.hung.touch(exist_ok=False)
            if self.stops:
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(1_000)
        return super().encode_tokens(tokens)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_BATCH_TOKENS", 1500)


@pytest.fixture(scope="module")
def runner(machines: Machines) -> Iterator[RayRunner]:
    with RayRunner(machines.address, workers=3) as opened:
        yield opened


@pytest.fixture(scope="module")
def embedder() -> TogetherEmbedder:
    """Return an embedder whose workers serve several tests: it takes seconds to start them."""
    return TogetherEmbedder()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts in English, some of which the installed model truncates."""
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    with path.open("w") as file:
        for n in range(N_TEXTS):
            text = f"Chapter {n} tells of the river. " * (1 + n % 7 * (1 + 9 * (n % 20 == 6)))
            file.write(json.dumps({"_id": f"t{n}", "text": text, "n": n}) + "\n")
    return path


def test_a_build_on_three_machines_has_the_bytes_of_a_plain_build(
    runner: RayRunner, embedder: TogetherEmbedder, corpus: Path, whole: Path, tmp_path: Path
) -> None:
    report = build_index(corpus, tmp_path / "my.index", lambda: embedder, SETTINGS, embed=runner)
    assert_same_bytes(whole, tmp_path / "my.index")
    counts = report.counts
    assert counts.read == counts.indexed + counts.duplicate + counts.rejected
    assert counts.read == len(corpus.read_text().splitlines())
    assert min(counts.indexed, counts.duplicate, counts.rejected) > 0


def test_a_sharded_index_has_the_vectors_of_one_without_ray(
    runner: RayRunner, embedder: TogetherEmbedder, corpus: Path, tmp_path: Path
) -> None:
    ways: list[tuple[str, EmbedBatches | None]] = [("plain", None), ("ray", runner)]
    states = []
    for name, way in ways:
        index = Index.build(
            corpus,
            out=tmp_path / name,
            model=embedder,
            settings=SETTINGS,
            runner=way,
            n_shards=3,
        )
        assert index.state.is_sharded
        states.append(index.state)
    for plain, on_ray in zip(states[0].parts, states[1].parts, strict=True):
        rows = plain.live_rows()
        assert len(rows) > 500
        assert rows.tolist() == on_ray.live_rows().tolist()
        assert plain.doc_ids(rows) == on_ray.doc_ids(rows)
        assert plain.vectors(rows).tobytes() == on_ray.vectors(rows).tobytes()


def test_workers_stay_for_the_next_build(
    runner: RayRunner, embedder: TogetherEmbedder, tmp_path: Path
) -> None:
    source, workers = write(tmp_path / "c.jsonl", ["a river", "a bridge"]), []
    for name in ("one", "two"):
        build_index(source, tmp_path / name, lambda: embedder, BuildSettings(), embed=runner)
        assert Index.open(tmp_path / name).state.n_docs == 2
        assert runner._pool is not None
        workers.append([worker.process for worker in runner._pool._workers])
    assert workers[0] == workers[1]


def test_an_empty_batch_needs_no_worker(runner: RayRunner, embedder: TogetherEmbedder) -> None:
    batches: list[tuple[list[Document], str]] = [([], "first"), ([], "last")]
    assert [batch.payload for batch in runner(batches, embedder)] == ["first", "last"]


def test_a_bad_row_is_reported_as_in_a_plain_build(
    runner: RayRunner, embedder: TogetherEmbedder, tmp_path: Path
) -> None:
    source = write(tmp_path / "c.jsonl", ["a river"] * 30 + ["a b c d e " * 200])
    settings = BuildSettings(on_truncate="error")
    said = []
    ways: list[EmbedBatches] = [embed_batches, runner]
    for way in ways:
        with pytest.raises(CorpusError) as raised:
            build_index(source, tmp_path / "x.index", lambda: embedder, settings, embed=way)
        said.append(str(raised.value))
    assert "document '30' has 1,000 tokens" in said[0]
    assert said[0] == said[1]


def test_with_a_model_a_build_and_a_file_are_those_without_ray(
    machines: Machines,
    runner: RayRunner,
    texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runner._end_pool()  # its workers have all CPUs
    model = Embedder(device="cpu", precision="fp32")
    with RayRunner(machines.address, workers=1) as one:
        ways: list[tuple[str, EmbedBatches]] = [("plain", embed_batches), ("ray", one)]
        for name, embed in ways:
            settings = BuildSettings(on_truncate="warn")
            build_index(texts, tmp_path / f"{name}.index", lambda: model, settings, embed=embed)
            out = tmp_path / f"{name}.parquet"
            embed_to_parquet(texts, out, lambda: model, ReadSettings(), embed=embed)
            said = capsys.readouterr().err
            assert said.count("longer than the 256 tokens the model reads; 276 tokens were") == 2
            assert ("Worker 1 of 1: " in said) == ("cpu with 1 thread." in said) == (name == "ray")
    plain, on_ray = (pq.read_table(tmp_path / f"{n}.parquet") for n in ("plain", "ray"))
    assert plain.num_rows == N_TEXTS
    assert plain.equals(on_ray, check_metadata=True)
    indexes = [Index.open(tmp_path / f"{name}.index").state for name in ("plain", "ray")]
    vectors = [index.vectors(index.live_rows()).tobytes() for index in indexes]
    assert vectors[0] == vectors[1]
    assert [*indexes[0].iter_documents()] == [*indexes[1].iter_documents()]


def test_a_migrated_index_has_the_vectors_of_one_without_ray(
    runner: RayRunner, embedder: TogetherEmbedder, texts: Path, tmp_path: Path
) -> None:
    vectors = []
    ways: list[tuple[str, EmbedBatches | None]] = [("plain", None), ("ray", runner)]
    for name, way in ways:
        index = Index.build(texts, out=tmp_path / name, model="hashing:64")
        assert index.migrate(embedder, runner=way).embedded == N_TEXTS
        state = Index.open(tmp_path / name).state
        vectors.append(state.vectors(state.live_rows()).tobytes())
    assert vectors[0] == vectors[1]


def test_machines_killed_three_times_change_nothing(
    machines: Machines, runner: RayRunner, corpus: Path, whole: Path, tmp_path: Path
) -> None:
    with machines.killed_at([300, 1000, 1700]) as killed:
        report = build_index(corpus, tmp_path / "my.index", SlowEmbedder, SETTINGS, embed=runner)
    assert len(killed) == 3
    assert report.counts.read == len(corpus.read_text().splitlines())
    assert_same_bytes(whole, tmp_path / "my.index")


@pytest.mark.parametrize(
    ("stops", "limit", "reason"),
    [
        (True, "SILENT_S", "It has not answered for 3 s."),
        (False, "STUCK_S", "Its model has not computed anything for 3 s."),
    ],
)
def test_a_worker_that_hangs_is_replaced(
    runner: RayRunner,
    corpus: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stops: bool,
    limit: str,
    reason: str,
) -> None:
    monkeypatch.setattr(pool, limit, 3.0)
    monkeypatch.setattr(pool, "_ASK_S", 0.5)
    hanging = HangingEmbedder(tmp_path / "hung", stops)
    build_index(corpus, tmp_path / "my.index", lambda: hanging, SETTINGS, embed=runner)
    said = capsys.readouterr().err
    assert said.count("has ended, and another one takes its work") == 1
    assert reason in said
    assert_same_bytes(whole, tmp_path / "my.index")


DRIVER = """
import sys
from pathlib import Path
from sbert_search import RayRunner
from sbert_search.index.building import ingest
from sbert_search.index.building.build import build_index
from tests.index.building.test_ingest import SETTINGS
from tests.integrations.ray.test_build import SlowEmbedder
ingest.COMMIT_S, ingest._BATCH_TOKENS = 0.0, 1500
with RayRunner(sys.argv[1], workers=1) as runner:
    build_index(sys.argv[2], Path(sys.argv[3]), SlowEmbedder, SETTINGS, embed=runner)
"""


def test_a_killed_driver_goes_on_when_it_is_run_again(
    machines: Machines, runner: RayRunner, corpus: Path, whole: Path, tmp_path: Path
) -> None:
    runner._end_pool()  # its workers have all CPUs
    out = tmp_path / "my.index"
    program = [sys.executable, "-c", DRIVER, machines.address, str(corpus), str(out)]
    driver = subprocess.Popen(program, env=environment())
    wait_until(lambda: committed(out) >= 700)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    assert committed(out) < len(corpus.read_text().splitlines())
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert_same_bytes(whole, out)


def committed(out: Path) -> int:
    try:
        build = Index.open(out).state.manifest.build
    except Exception:
        return 0
    return build.rows if build else 0


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def write(path: Path, texts: Sequence[str]) -> Path:
    rows = [json.dumps({"_id": str(n), "text": text}) for n, text in enumerate(texts)]
    path.write_text("\n".join(rows))
    return path


def test_a_batch_that_ends_every_worker_is_named(
    runner: RayRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ATTEMPTS", 2)
    monkeypatch.setattr(ingest, "COMMIT_S", 0.0)
    # Each text fills a batch. The pool holds fewer batches than this at a time, so it sends the
    # last text only after the first results have come back.
    texts = [f"{n} " + "a river " * 9000 for n in range(pool.CALLS_A_WORKER * 3 + 8)]
    source = write(tmp_path / "c.jsonl", [*texts, "fatal"])
    with pytest.raises(ClusterError, match=r"2 workers have ended while .*c\.jsonl:\d+ on"):
        build_index(source, tmp_path / "x.index", FatalEmbedder, BuildSettings(), embed=runner)
    assert Index.open(tmp_path / "x.index").state.n_docs > 0


def test_a_note_tells_of_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    told, notes = threading.Event(), list[str]()

    def note(message: str) -> None:
        notes.append(message)
        told.set()

    def init(**options: object) -> None:
        assert told.wait(60)
        raise ConnectionError("No answer.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(connection, "note", note)
    monkeypatch.setattr(connection, "PATIENCE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"{address} cannot be reached: No answer"):
            RayRunner(address).__enter__()
    assert notes == [f"The Ray cluster {address} has not answered for 0 s; still waiting."]


def test_a_cluster_that_cannot_be_used_is_named(machines: Machines, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"too few CPUs for 9 workers: .* has 1 CPUs"):
        RayRunner(machines.address, workers=9).__enter__()
    source = write(tmp_path / "c.jsonl", ["a river"])
    out = tmp_path / "x.index"
    build = ["index", "build", source, "--out", out, "--model", "hashing"]
    done = sbert_search(*build, "--workers", "2")
    assert (done.code, "--workers needs --runner ray" in done.err) == (2, True)
    done = sbert_search(*build, "--runner", "ray", "--ray-address", "127.0.0.1:1")
    assert done.code == 1
    assert "The Ray cluster 127.0.0.1:1 cannot be reached: [Errno 111] Connection ref" in done.err
    assert "ray start --head" in done.err
    assert not out.exists()
