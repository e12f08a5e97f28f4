"""Builds that are stopped and run again: Ctrl-C, SIGKILL, other settings."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sbert_search.errors import SbertSearchError
from sbert_search.index.index import Index
from sbert_search.index.store import IndexStore
from tests.cli.process import Done, command, environment, sbert_search


def build_command(source: Path, out: Path) -> list[str]:
    options = ["--model", "hashing", "--on-error", "skip", "--json"]
    return command("index", "build", source, "--out", out, *options)


def rows_done(out: Path) -> int:
    try:
        build = IndexStore.open(out).snapshot.manifest.build
    except (SbertSearchError, OSError):  # not made yet, or being made
        return 0
    return build.rows if build else 0


def started(arguments: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, stdout=pipe, stderr=pipe, env=environment(), text=True)


def stop_when(
    grown: Callable[[], bool], process: subprocess.Popen[str], how: signal.Signals
) -> Done:
    """Let a process run in short turns, look while it stands still, and stop it in time."""
    stop = False
    while process.poll() is None and not stop:
        time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        stop = grown()
        if stop:
            process.send_signal(how)
        process.send_signal(signal.SIGCONT)
    out_text, err_text = process.communicate(timeout=60)
    return Done(process.returncode, out_text, err_text)


def stop_after_a_commit(source: Path, out: Path, how: signal.Signals) -> Done:
    """Run a build, and stop it as soon as it has committed something new."""
    before = rows_done(out)
    process = started(build_command(source, out))
    return stop_when(lambda: rows_done(out) > before, process, how)


def finish(source: Path, out: Path) -> Done:
    done = subprocess.run(
        build_command(source, out), capture_output=True, text=True, env=environment(), timeout=120
    )
    return Done(done.returncode, done.stdout, done.stderr)


def assert_equal(one: Path, other: Path) -> None:
    first, second = Index.open(one).state, Index.open(other).state
    assert list(first.iter_documents()) == list(second.iter_documents())
    assert [s.rows.tolist() for s in first.segments] == [s.rows.tolist() for s in second.segments]
    for left, right in zip(first.segments, second.segments, strict=True):
        assert np.array_equal(left.vectors, right.vectors)
    for field in ("next_row", "columns", "build", "settings"):
        assert getattr(first.manifest, field) == getattr(second.manifest, field)
    rejects = [path.with_name(f"{path.name}.rejects.jsonl").read_text() for path in (one, other)]
    assert rejects[0] == rejects[1]


@pytest.mark.thorough
def test_a_build_killed_five_times_equals_an_uninterrupted_one(
    corpus_of_batches: Path, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole.index", tmp_path / "killed.index"
    assert finish(corpus_of_batches, whole).code == 3
    for _ in range(5):
        done = stop_after_a_commit(corpus_of_batches, killed, signal.SIGKILL)
        assert done.code == -signal.SIGKILL
    last = finish(corpus_of_batches, killed)
    assert last.code == 3
    assert "resuming at row" in last.err
    assert last.records[0]["resumed_rows"] >= 5 * 1024
    assert last.records[0]["read"] == 16 * 1024
    assert_equal(whole, killed)


@pytest.mark.thorough
def test_ctrl_c_exits_with_130_and_says_how_to_go_on(
    corpus_of_batches: Path, tmp_path: Path
) -> None:
    out = tmp_path / "my.index"
    done = stop_after_a_commit(corpus_of_batches, out, signal.SIGINT)
    assert done.code == 130
    assert "interrupted." in done.err
    assert "run the same command again to resume from there" in done.err
    assert "Traceback" not in done.err
    checked = sbert_search("index", "check", out)
    assert checked.code == 0, checked.out
    assert finish(corpus_of_batches, out).code == 3


@pytest.mark.thorough
def test_an_unfinished_build_with_documents_is_refused_to_another_build(
    corpus_of_batches: Path, tmp_path: Path
) -> None:
    out = tmp_path / "my.index"
    stop_after_a_commit(corpus_of_batches, out, signal.SIGKILL)
    arguments = ["index", "build", corpus_of_batches, "--out", out, "--json", "--on-error", "skip"]
    held = len(Index.open(out))
    done = sbert_search(*arguments, "--model", "hashing:64")
    assert done.code == 1
    assert "documents of an unfinished build with another model." in done.err
    assert "name another folder, or remove this one" in done.err
    assert len(Index.open(out)) == held > 0
    assert finish(corpus_of_batches, out).code == 3


@pytest.mark.thorough
def test_ctrl_c_in_an_update_keeps_what_was_committed(index: Path, corpus_of_batches: Path) -> None:
    update = ["index", "add", index, corpus_of_batches, "--on-error", "skip", "--json"]
    process = started(command(*update))
    done = stop_when(lambda: len(Index.open(index)) > 3, process, signal.SIGINT)
    assert done.code == 130
    assert "run the same command again to resume from there" in done.err
    kept = len(Index.open(index)) - 3
    (again,) = sbert_search(*update).records
    assert again["duplicate"] == kept
    assert len(Index.open(index)) == 3 + kept + again["indexed"]
