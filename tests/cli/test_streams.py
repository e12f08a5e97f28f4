"""Commands whose standard streams are closed, full, narrow or gone, and failures of every kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sbert_search.cli import main
from sbert_search.cli.main import DEBUG
from tests.cli.process import ROOT, Done, command, environment, in_a_process, sbert_search

NASTY = "caf\xe9 \x1b[31mred\x1b[2J \x9b1m \u2028 [/b] :smile: \u65e5"
# Closes descriptors, as `<&-`, `>&-` and `2>&-` do, then becomes the command.
CLOSING = (
    "import os, sys\n"
    "for fd in sys.argv[1]: os.close(int(fd))\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'sbert_search', *sys.argv[2:]])"
)


def closed(descriptors: str, *arguments: object) -> Done:
    return in_a_process(*arguments, launcher=[sys.executable, "-c", CLOSING, descriptors])


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    row = {"_id": f"id {NASTY}", "title": NASTY, "text": f"water {NASTY}", "m\x1b": NASTY}
    (tmp_path / "nasty.jsonl").write_text(json.dumps(row) + "\n")
    out = tmp_path / "nasty.index"
    build = ("index", "build", tmp_path / "nasty.jsonl", "--out", out, "--model", "hashing")
    assert sbert_search(*build).code == 0
    return out


@pytest.mark.thorough
@pytest.mark.parametrize("descriptors", ["2", "12", "012"])
def test_closed_streams_do_not_stop_the_work(descriptors: str, index: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text('{"_id": "new", "text": "new"}\n')
    assert closed(descriptors, "index", "add", index, more).code == 0
    assert sbert_search("index", "info", index, "--json").records[0]["documents"] == 4


@pytest.mark.thorough
def test_closed_stdin_is_empty(tmp_path: Path) -> None:
    done = closed("0", "index", "build", "-", "--out", tmp_path / "i", "--model", "hashing")
    assert (done.code, done.err) == (1, "sbert-search: <stdin>: holds no rows.\n")


def test_no_file_takes_the_number_of_a_closed_stream(index: Path) -> None:
    before = {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    assert closed("012", "search", index, "water", "--mode", "hybrid").code == 0
    assert before == {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}


@pytest.mark.thorough
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_encoding_fails_and_json_stays_exact(encoding: str, nasty: Path) -> None:
    env = {"PYTHONIOENCODING": encoding}
    arguments = command("search", nasty, "water")
    lines, shown = (
        subprocess.run(
            [*arguments, *more], env=environment(env), stdout=subprocess.PIPE, check=True
        ).stdout.decode(encoding)
        for more in (["--json"], [])
    )
    [line] = lines.splitlines()
    hit = json.loads(line)
    assert (hit["title"], hit["metadata"]) == (NASTY, {"m\x1b": NASTY})
    for found in (line, shown):
        assert not set(found) & {"\x1b", "\x9b"}
    assert r"\x1b[31mred\x1b[2J \x9b1m [/b] :smile:" in " ".join(shown.split())


def test_errors_and_file_names_do_not_command_the_terminal(tmp_path: Path) -> None:
    name = "a\x1b[2J.jsonl"
    (tmp_path / name).write_text("\x1b[2J")
    for arguments in (["embed", tmp_path / name, "--out", tmp_path / "o"], ["\x1b[2J"]):
        done = sbert_search(*arguments)
        assert done.code in (1, 2)
        assert "\x1b" not in done.err
        assert r"\x1b[2J" in done.err


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_behind_stdout_is_named(options: list[str], index: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("search", index, "water", *options),
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
        )
    assert done.returncode == 1
    assert done.stderr == (
        b"sbert-search: standard output cannot be written: No space left on device. "
        b"Only the printed output is lost.\n"
    )


@pytest.mark.thorough
def test_a_full_disk_behind_stderr_does_not_stop_the_work(index: Path) -> None:
    arguments = command("search", index, "water", "--where", "year > 3000")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(arguments, stdout=full, stderr=full, env=environment())
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError("malloc of size 8 failed"), "Memory ran out: malloc of size 8 failed. Raise"),
        (RuntimeError("can't start new thread"), "Memory ran out: can't start new thread."),
        (RuntimeError("x.cpp: DefaultCPUAllocator: can't allocate memory: 8 bytes"), "Memory ran"),
        (RuntimeError("std::bad_alloc"), "Memory ran out: std::bad_alloc."),
        (ImportError("libx.so: failed to map"), "A library cannot be loaded: libx.so: failed to"),
        (OSError(24, "Too many open files", "x"), "x: Too many open files. Raise the limit on"),
        (OSError(28, "No space left on device"), "No space left on device. Nothing that was"),
        (OSError(27, "File too large", b"x\xff"), "File too large. Nothing that was committed is"),
    ],
)
def test_what_runs_out_is_named(
    error: Exception,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, shown = failed(error, monkeypatch, capsys)
    assert code == 1
    assert message in shown
    assert "Traceback" not in shown


def test_a_failure_of_onednn_is_for_want_of_memory_only_where_that_is_limited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = RuntimeError("could not create a primitive")
    assert "Unexpected RuntimeError" in failed(error, monkeypatch, capsys)[1]
    monkeypatch.setattr("resource.getrlimit", lambda _: (1 << 40, 1 << 40))
    assert "Memory ran out: could not create a primitive." in failed(error, monkeypatch, capsys)[1]


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError("too deep"), ValueError("\x1b")])
def test_a_bug_is_one_line_and_a_file(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, shown = failed(error, monkeypatch, capsys)
    [file] = tmp_path.iterdir()
    assert (code, shown.count("\n")) == (1, 1)
    assert shown.startswith(f"sbert-search: Unexpected {type(error).__name__}: ")
    assert shown.endswith(f"please report it with the file {file}.\n")
    assert "Traceback" in file.read_text()
    assert "Traceback" not in shown
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    assert (
        f"report it with the traceback that {DEBUG}=1 shows"
        in failed(error, monkeypatch, capsys)[1]
    )
    monkeypatch.setenv(DEBUG, "1")
    assert "Traceback" in failed(error, monkeypatch, capsys)[1]


def failed(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(main.cli, "main", fail)
    return main.run([]), capsys.readouterr().err


def test_commands_print_only_by_the_console() -> None:
    """Its functions escape what a terminal would obey; click's do not."""
    for path in (ROOT / "sbert_search").rglob("*.py"):
        source = path.read_text()
        assert "click.echo" not in source, path
        assert "click.secho" not in source, path
        if path.name not in ("console.py", "streams.py", "progress.py", "main.py"):
            assert "sys.stdout" not in source, path
            assert "sys.stderr" not in source, path


@pytest.mark.thorough
def test_a_non_blocking_pipe_takes_all_lines(index: Path) -> None:
    """A pipe shared with a program that made it non-blocking, as terminals and ssh do."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    rows = [{"_id": str(n), "text": "water " * 2000} for n in range(30)]
    source = index.with_name("long.jsonl")
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert sbert_search("index", "add", index, source).code == 0
    arguments = command("search", index, "water", "-k", "30", "--json")
    with (
        subprocess.Popen(arguments, stdout=write, env=environment()) as process,
        open(read, "rb") as pipe,
    ):
        os.close(write)
        lines = pipe.read().splitlines()
    assert process.returncode == 0
    assert len(list(map(json.loads, lines))) == 30
