"""What a user, a pipe, a callback and `logging` get of long steps and of notes."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import threading
import time
from itertools import count, pairwise
from pathlib import Path

import pytest

from sbert_search import Index, Progress, set_progress
from sbert_search.base import progress as module
from sbert_search.base.progress import (
    SILENT,
    detail,
    note,
    progress,
    report_as,
    reporting,
    set_quiet,
    show_notes,
    tell_progress,
    warn,
)
from tests.cli.process import environment


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, as the only value of a list, which a test sets."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def lines_at(clock: list[float], *seconds: float, end: float) -> list[float]:
    """Run a step that advances at these times; return when it wrote lines."""
    written: list[float] = []
    start = clock[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "tell", lambda line: written.append(clock[0] - start))
        with progress("Indexing", 1000) as advance:
            for second in seconds:
                clock[0] = start + second
                advance(1)
            clock[0] = start + end
    return written


def test_a_pipe_gets_lines_ever_more_rarely_and_one_at_the_end(clock: list[float]) -> None:
    assert lines_at(clock, *range(1, 300), end=300) == [2, 12, 32, 72, 132, 192, 252, 300]


def test_a_short_step_writes_nothing(clock: list[float]) -> None:
    assert lines_at(clock, 0.5, 1, 1.9, end=1.99) == []
    assert lines_at(clock, 0.5, end=2.5) == [2.5]


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (Progress("Indexing", 0, 10, "docs", 0.0), "Indexing: 0 of 10 docs (0%)"),
        (
            Progress("Indexing", 4096, 10_000, "docs", 4.0),
            "Indexing: 4,096 of 10,000 docs (41%), 1,024 docs/s, 5.8 s left",
        ),
        (
            Progress("Scoring", 10, 10_000, "pairs", 60.0),
            "Scoring: 10 of 10,000 pairs (0%), 0 pairs/s, 16 h 39 min left",
        ),
        (Progress("Reading", 3000, None, "rows", 2.0), "Reading: 3,000 rows, 1,500 rows/s"),
        (
            Progress("Indexing", 1400, 1400, "docs", 65.2, finished=True),
            "Indexing: 1,400 docs in 1 min 05 s",
        ),
        (
            Progress("Indexing", 151, 151, "docs", 2.0, True, "150 texts unchanged"),
            "Indexing: 151 docs in 2.0 s, 150 texts unchanged",
        ),
        (
            Progress("Indexing", 100, 200, "docs", 2.0, about="100 texts unchanged"),
            "Indexing: 100 of 200 docs (50%), 50 docs/s, 2.0 s left, 100 texts unchanged",
        ),
    ],
)
def test_a_state_reads_as_a_line(state: Progress, line: str) -> None:
    assert str(state) == line


def test_a_callback_gets_begin_end_and_at_most_ten_states_a_second(clock: list[float]) -> None:
    seen: list[Progress] = []
    set_progress(seen.append)
    with progress("Encoding", 1000, "texts") as advance:
        for _ in range(1000):
            clock[0] += 0.01
            advance(1)
    assert seen[0] == Progress("Encoding", 0, 1000, "texts", 0.0)
    assert seen[-1].finished
    assert seen[-1].done == 1000
    between = [state.seconds for state in seen[:-1]]
    assert all(b - a >= module.CALLBACK_S for a, b in pairwise(between))
    assert len(between) > 80


def test_a_build_reports_through_the_callback_and_writes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[Progress] = []
    before = set_progress(seen.append)
    assert before == "auto"
    Index.from_texts(["a cat", "a dog"], model="hashing")
    ended = {state.name: state.done for state in seen if state.finished}
    assert ended["Indexing"] == 2
    assert capsys.readouterr().err == ""
    assert set_progress(before) == seen.append


def test_an_update_says_how_many_texts_it_does_not_embed(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("id,text,price\na,a cat,1\nb,a dog,2\nc,a hen,3\n")
    index = Index.build(table, out=tmp_path / "i", model="hashing")
    table.write_text("id,text,price\na,a cat,1\nb,a dog,5\nc,a cow,3\nd,a pig,4\n")
    seen: list[Progress] = []
    set_progress(seen.append)
    index.sync(table)  # a is the same, b keeps its text, c and d are embedded
    (last,) = [state for state in seen if state.finished and state.name == "Indexing"]
    assert (last.done, last.about) == (4, "2 texts unchanged")


def test_an_exception_in_the_callback_stops_the_work() -> None:
    class EnoughError(Exception):
        pass

    def stop(state: Progress) -> None:
        if state.name == "Indexing" and state.done:
            raise EnoughError

    set_progress(stop)
    with pytest.raises(EnoughError):
        Index.from_texts(["a cat", "a dog"], model="hashing")


def test_threads_report_one_at_a_time() -> None:
    inside, numbers = threading.Lock(), count()

    def alone(state: Progress) -> None:
        assert inside.acquire(blocking=False)
        next(numbers)
        inside.release()

    set_progress(alone)
    seen: list[Progress] = []
    with progress("Counting", None, "units") as advance:
        threads = [
            threading.Thread(target=lambda: [advance(1) for _ in range(5000)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        set_progress(seen.append)  # has no effect on a step that has begun
    assert seen == []
    assert next(numbers) >= 2


@pytest.mark.parametrize("silence", ["off", "quiet", "hidden"])
def test_progress_can_be_turned_off(clock: list[float], silence: str) -> None:
    set_quiet(silence == "quiet")
    if silence == "off":
        set_progress("off")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", written := io.StringIO())
        with progress("Indexing", 10, hidden=silence == "hidden") as advance:
            clock[0] += 5
            advance(5)
        if silence != "hidden":
            tell_progress("step 3")
    assert written.getvalue() == ""


def test_a_step_with_lines_of_its_own_calls_only_a_callback(clock: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", written := io.StringIO())
        with progress("Training", 10, "steps", own_lines=True) as advance:
            clock[0] += 5
            advance(5)
        tell_progress("step 5")
        assert written.getvalue() == "step 5\n"
        seen: list[Progress] = []
        set_progress(seen.append)
        with progress("Training", 10, "steps", own_lines=True) as advance:
            advance(5)
        tell_progress("step 10")
    assert [state.done for state in seen] == [0, 5]
    assert written.getvalue() == "step 5\n"


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", shown := Terminal())
        patch.setenv("TERM", "xterm")
        with progress("Indexing", 10, "docs") as advance:
            advance(10)
            sys.stdout.write("a result\n")  # to a file or a pipe
    assert "Indexing" in shown.getvalue()
    assert "10/10" in shown.getvalue()
    assert "a result" not in shown.getvalue()
    assert capsys.readouterr().out == "a result\n"


def test_a_library_user_gets_notes_by_logging(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "_note_level", None)
    caplog.set_level(logging.DEBUG, logger="sbert_search")
    detail("a detail")
    note("a \x1b[31mnote")
    warn("a 100 % warning")
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("sbert_search", "DEBUG", "a detail"),
        ("sbert_search", "INFO", "a \\x1b[31mnote"),
        ("sbert_search", "WARNING", "a 100 % warning"),
    ]
    assert capsys.readouterr().err == ""
    set_quiet(True)
    note("unheard")
    warn("of lost values")
    assert [record.getMessage() for record in caplog.records[3:]] == ["of lost values"]
    report_as(SILENT)
    warn("unheard")
    assert len(caplog.records) == 4


def test_warnings_show_and_notes_do_not_where_logging_is_not_configured() -> None:
    code = "from sbert_search.base.progress import *; note('a note'); warn('a warning')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    assert done.stderr == "a warning\n"


def test_a_command_writes_notes_and_with_verbose_details(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_notes()
    detail("unheard")
    note("a note")
    show_notes(details=True)
    detail("a detail")
    warn("a warning")
    assert capsys.readouterr().err == "a note\na detail\na warning\n"
    set_quiet(True)
    note("unheard")
    warn("a warning")
    report_as(SILENT)
    warn("unheard")
    assert capsys.readouterr().err == "a warning\n"


def test_a_child_reports_as_its_parent() -> None:
    show_notes(details=True)
    parent = reporting()
    show_notes()
    set_quiet(True)
    report_as(parent)
    assert reporting() == parent == (False, logging.DEBUG)
