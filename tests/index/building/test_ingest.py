"""Commits by time: what they save, and that a resumed build ends with the same bytes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search import BuildSettings, Document, Index
from sbert_search.base import memory
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.index.building import ingest
from sbert_search.index.building.build import build_index
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.upkeep import merge_policy
from sbert_search.index.writer import IndexWriter
from tests.cli.process import ROOT, environment

N_ROWS = 2600  # two whole blocks of 1,024 rows and a part of one


class TogetherEmbedder(HashingEmbedder):
    """Vectors that depend on the texts that are embedded together, as rounding does."""

    batch_tokens = 40

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        vectors = super().encode_tokens(tokens)
        together = np.float32(int(tokens.lengths.sum()) + 1000 * len(tokens))
        return (vectors + together * np.linspace(0, 1e-6, self.dim, dtype=np.float32)).astype(
            np.float32
        )


SETTINGS = BuildSettings(on_error="skip", metric="dot", lexical=LexicalSettings())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of many lengths, with bad rows and duplicates, and columns with and without nulls."""
    rng = random.Random(5)
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    with path.open("w") as file:
        for n in range(N_ROWS):
            words = " ".join(f"w{rng.randrange(400)}" for _ in range(rng.randrange(1, 60)))
            row = {"_id": str(n), "text": words if rng.random() > 0.02 else "", "n": n}
            if rng.random() < 0.3:
                row["title"], row["kind"] = f"title {n}", rng.choice("abc")
            file.write(json.dumps(row) + "\n")
            if rng.random() < 0.02:
                file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_BATCH_TOKENS", 1500)


def build(corpus: Path, out: Path) -> Manifest:
    build_index(corpus, out, TogetherEmbedder, SETTINGS)
    return Index.open(out).state.manifest


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of an uninterrupted build without commits by time."""
    out = tmp_path_factory.mktemp("whole") / "my.index"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest, "_BATCH_TOKENS", 1500)
        build(corpus, out)
    return out


def files_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """The content of all files of an index, without the numbers in their names."""
    for record in Index.open(path).state.manifest.files:
        folder, _, name = record.name.partition("/")
        yield f"{folder}/*.{name.partition('.')[2]}", (path / record.name).read_bytes()


def assert_same_bytes(one: Path, other: Path) -> None:
    assert list(files_of(one)) == list(files_of(other))
    first, second = (Index.open(path).state.manifest for path in (one, other))
    for field in ("next_row", "columns", "build", "settings", "tombstones"):
        assert getattr(first, field) == getattr(second, field)
    rejects = [path.with_name(f"{path.name}.rejects.jsonl").read_bytes() for path in (one, other)]
    assert rejects[0] == rejects[1]


def commit_at_random(patch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Let a random share of the borders be due."""
    share = rng.random()

    class Clock:
        now = 0.0

        @classmethod
        def monotonic(cls) -> float:
            cls.now += ingest.COMMIT_S if rng.random() < share else 0.0
            return cls.now

        perf_counter = staticmethod(lambda: 0.0)

    patch.setattr(ingest, "time", Clock)


def stop_after(patch: pytest.MonkeyPatch, n_commits: int) -> None:
    """Interrupt the commit that follows ``n_commits`` commits."""
    commit, left = IndexWriter.commit, n_commits

    def stopping(self: Any, batch: Any, **keywords: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        commit(self, batch, **keywords)

    patch.setattr(IndexWriter, "commit", stopping)


def build_with_interrupts(corpus: Path, out: Path, seed: int) -> None:
    """Build with commits and interrupts at random borders; go on until the build is finished."""
    rng, interrupts = random.Random(seed), 0
    while True:
        with pytest.MonkeyPatch.context() as patch:
            commit_at_random(patch, rng)
            stop_after(patch, rng.randrange(2, 12))
            try:
                build(corpus, out)
                break
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts


def test_a_resumed_build_reads_only_the_rows_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"_id": str(n), "text": f"w{n}"} for n in range(1500)]
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            Index.build(rows, out=tmp_path / "i", model="hashing:8")
    manifest = Index.build(rows, out=tmp_path / "i", model="hashing:8").state.manifest
    assert manifest.build is not None
    assert (manifest.build.counts.indexed, manifest.build.counts.duplicate) == (1500, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_a_build_interrupted_at_any_commit_ends_with_the_same_bytes(
    corpus: Path, whole: Path, tmp_path: Path, seed: int
) -> None:
    build_with_interrupts(corpus, tmp_path / "my.index", seed)
    assert_same_bytes(whole, tmp_path / "my.index")


@pytest.mark.thorough
def test_a_build_that_commits_at_every_border_has_one_segment_a_block(
    corpus: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "COMMIT_S", 0.0)
    seen: list[tuple[int, int]] = []
    commit = IndexWriter.commit

    def watched(self: Any, batch: Any, **keywords: Any) -> None:
        commit(self, batch, **keywords)
        seen.append((keywords["cursor"].rows, len(self.snapshot.manifest.segments)))

    monkeypatch.setattr(IndexWriter, "commit", watched)
    build(corpus, tmp_path / "my.index")
    assert len(seen) > 20
    assert all(segments == 1 + (row - 1) // 1024 for row, segments in seen)
    assert_same_bytes(whole, tmp_path / "my.index")


def test_a_short_build_has_the_same_bytes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Document(str(n), f"text {n} " * 20, metadata={"n": n}) for n in range(300)]
    build_index(rows, tmp_path / "whole.index", TogetherEmbedder, BuildSettings())
    monkeypatch.setattr(ingest, "COMMIT_S", 0.0)
    build_index(rows, tmp_path / "parts.index", TogetherEmbedder, BuildSettings())
    whole, parts = (list(files_of(tmp_path / f"{name}.index")) for name in ("whole", "parts"))
    assert whole == parts
    assert len(whole) > 3


@pytest.mark.thorough
def test_merging_begins_at_the_same_rows(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments of a build larger than a segment do not depend on commits by time."""
    monkeypatch.setattr(merge_policy, "SEGMENT_ROWS", 1500)
    monkeypatch.setattr(merge_policy, "MIN_REMOVED", 2)
    small = memory.Shares(budget=None, batch=60_000)
    monkeypatch.setattr(memory, "shares", lambda: small)
    build(corpus, tmp_path / "whole.index")
    assert len(Index.open(tmp_path / "whole.index").state.manifest.segments) > 1
    for seed in range(2):
        build_with_interrupts(corpus, tmp_path / f"{seed}.index", seed)
        assert_same_bytes(tmp_path / "whole.index", tmp_path / f"{seed}.index")


CHILD = """
import os, signal, sys
from pathlib import Path
from sbert_search.index.building import ingest
from sbert_search.index.writer import IndexWriter
from tests.index.building.test_ingest import build
ingest._BATCH_TOKENS, ingest.COMMIT_S = 1500, 0.0
commit, left = IndexWriter.commit, int(sys.argv[3])
def killed(self, batch, **keywords):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self, batch, **keywords)
IndexWriter.commit = killed
build(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.thorough
def test_a_killed_build_keeps_its_parts_of_a_block_and_ends_with_the_same_bytes(
    corpus: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "my.index"
    for commits in (4, 20):
        arguments = [sys.executable, "-c", CHILD, str(corpus), str(out), str(commits)]
        done = subprocess.run(arguments, cwd=ROOT, env=environment(), capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        cursor = Index.open(out).state.manifest.build
        assert cursor is not None
        assert cursor.rows % 1024
        assert len(Index.open(out)) > 0.9 * cursor.rows
    build(corpus, out)
    assert_same_bytes(whole, out)


@pytest.mark.thorough
def test_an_update_saves_its_work_by_time(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.from_texts(["a first text"], model=TogetherEmbedder(), out=tmp_path / "my.index")
    monkeypatch.setattr(ingest, "COMMIT_S", 0.0)
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            index.upsert(corpus, model=TogetherEmbedder(), on_error="skip")
    kept = len((index.refresh() and index) or index)
    assert 1 < kept < 1024
    report = index.upsert(corpus, model=TogetherEmbedder(), on_error="skip")
    assert report.counts.duplicate >= kept - 1
    assert index.check().problems == ()


def test_a_source_of_short_texts_is_cut_only_into_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    sizes: list[int] = []
    monkeypatch.setattr(ingest, "COMMIT_S", 0.0)
    commit = IndexWriter.commit

    def watched(self: Any, batch: Any, **keywords: Any) -> None:
        sizes.append(len(batch.documents))
        commit(self, batch, **keywords)

    monkeypatch.setattr(IndexWriter, "commit", watched)
    Index.from_texts((f"a short text {n}" for n in range(3000)), model="hashing")
    assert sizes == [1024, 1024, 952]


@pytest.mark.thorough
def test_an_error_of_a_commit_ends_the_threads_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no commit")

    monkeypatch.setattr(IndexWriter, "commit", fail)
    rows = [{"_id": str(n), "text": "a mill"} for n in range(12_000)]
    with pytest.raises(ValueError, match="no commit") as raised:
        Index.build(rows, out=tmp_path / "i", model="hashing:8")
    assert raised.traceback  # it holds the frames, so nothing is closed by going out of scope
    assert [thread for thread in threading.enumerate() if thread.name == "prefetch"] == []


def test_rows_without_ids_that_replace_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "faq.csv"
    table.write_text("text\nfirst\nsecond\n")
    index = Index.build(table, model="hashing", out=tmp_path / "i")
    index.upsert(table)
    capsys.readouterr()
    table.write_text("text\nnew\nfirst\nsecond\n")
    assert index.upsert(table).counts.replaced == 2
    told = capsys.readouterr().err
    assert f"The rows of {table} have no id, so each replaces the document with its number" in told
    index.upsert([{"_id": "faq.csv:2", "text": "renewed"}])
    assert capsys.readouterr().err.count("have no id") == 0
