"""Runs command lines in forked processes, a few in each: ``python -m tests.cli.lines_child JOB``.

Everything is imported once, and a process forked from that runs the lines of one batch in a fresh
copy of a small world. A superuser becomes nobody first, so that no line can harm this machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import hashlib
import importlib
import io
import itertools
import json
import os
import pkgutil
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LINE_SECONDS, PIPE_SECONDS = 120, 5  # the latter for a line that may wait for a named pipe
NOBODY = 65534
RED_FLAGS = ("Traceback", "Exception ignored", "Unexpected ", "Fatal Python error")


def main(job_file: str) -> None:
    """Run the batches of a job and write what became of each line beside it."""
    job = json.loads(Path(job_file).read_text())
    warm_up()
    scratch, template, results = Path(job["scratch"]), Path(job["template"]), []
    learn_modules(scratch / "examples", template, job["examples"])
    gc.freeze()  # else each process would look through all modules for garbage, copying them
    for number, batch in enumerate(job["batches"]):
        place = scratch / str(number)
        with world(template, place, batch.get("disk", "")) as made:
            before = outside(place) if made else ""
            lines = run_batch(place, batch["lines"]) if made else []
            harm = "" if not made or outside(place) == before else "a file outside changed"
        results.append([{**line, "harm": harm} for line in lines])
    Path(job_file).with_suffix(".results").write_text(json.dumps(results))


def warm_up() -> None:
    """Import what the commands import, so that forks do not, and keep the demo short."""
    import sbert_search

    for module in pkgutil.walk_packages(sbert_search.__path__, "sbert_search."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    from sbert_search.text import docstrings

    every = docstrings.stdlib_documents
    vars(docstrings)["stdlib_documents"] = lambda: itertools.islice(every(), 20)


def learn_modules(place: Path, template: Path, examples: list[dict[str, Any]]) -> None:
    """Import what lines import only when they run."""
    with world(template, place, ""):
        if examples and os.fork() == 0:
            _child(place, place / "results", _wide_pipe(), examples)
        if examples:
            os.wait()
            for name in (place / "work" / "modules").read_text().splitlines():
                with contextlib.suppress(Exception):
                    importlib.import_module(name)


@contextlib.contextmanager
def world(template: Path, place: Path, disk: str) -> Iterator[bool]:
    """Copy the files that lines name, and make what cannot be copied; False: no such disk."""
    work = place / "work"
    work.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", disk, "tmpfs", str(work)]
    mounted = bool(disk) and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        if mounted or not disk:
            _fill(template, place, work)
        yield mounted or not disk
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(work)], check=True)
        shutil.rmtree(place, ignore_errors=True)


def _fill(template: Path, place: Path, work: Path) -> None:
    shutil.copytree(template, work, symlinks=True, dirs_exist_ok=True)
    (place / "outside").mkdir()
    (place / "outside" / "file.txt").write_text("of somebody else\n")
    (work / "link-out.txt").symlink_to("../outside/file.txt")
    os.mkfifo(work / "fifo.jsonl")
    (work / "tmp").mkdir()
    if os.geteuid() == 0:
        for path in (work, *work.rglob("*")):
            os.lchown(path, NOBODY, NOBODY)


def outside(place: Path) -> str:
    """Hash what lines must not change."""
    digest = hashlib.sha256(repr(sorted(os.listdir(place))).encode())
    for path in sorted((place / "outside").rglob("*")):
        digest.update(f"{path} {path.stat().st_mtime_ns} {path.read_text()}".encode())
    digest.update(repr(sorted(os.listdir("/"))).encode())
    return digest.hexdigest()


def run_batch(place: Path, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run lines in one process; where it dies or hangs, the next line gets another."""
    done: list[dict[str, Any]] = []
    while len(done) < len(batch):
        log = place / "results"
        log.unlink(missing_ok=True)
        pipe = _wide_pipe()
        if (pid := os.fork()) == 0:
            _child(place, log, pipe, batch[len(done) :])
        _, status = os.waitpid(pid, 0)
        told = _drain(pipe[0])
        for fd in pipe:
            os.close(fd)
        reported = [json.loads(line) for line in log.read_text().splitlines()]
        done += reported
        if len(done) < len(batch):
            code = os.waitstatus_to_exitcode(status)
            done.append({"code": code, "shown": told, "seconds": 0.0})
    log.unlink(missing_ok=True)
    return done


def _wide_pipe() -> tuple[int, int]:
    """Make a pipe for what a line prints; a limit on the size of files would hold for a file."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.set_blocking(read, False)
    return read, write


def _drain(fd: int) -> str:
    shown = b""
    with contextlib.suppress(BlockingIOError):
        while block := os.read(fd, 1 << 20):
            shown += block
    return shown[: 1 << 16].decode("utf-8", "replace")


def _child(place: Path, log: Path, pipe: tuple[int, int], batch: list[dict[str, Any]]) -> None:
    """Run lines until all are done or one ends this process."""
    try:
        results = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        high = [os.dup(fd) for fd in (0, 1, 2)]
        work = place / "work"
        os.environ.update(HOME=str(work), XDG_CACHE_HOME=str(work / "cache"), COLUMNS="100")
        os.environ["SBERT_SEARCH_MODEL"] = "hashing"  # a line without --model loads none
        os.environ["TMPDIR"] = tempfile.tempdir = str(work / "tmp")
        if os.geteuid() == 0:
            become_nobody()
        for line in batch:
            os.chdir(work)
            begun = time.monotonic()
            code = _run_line(line, pipe[1])
            for fd, kept in enumerate(high):
                os.dup2(kept, fd)
            told = _drain(pipe[0])
            seconds = round(time.monotonic() - begun, 3)
            report = json.dumps({"code": code, "shown": told, "seconds": seconds})
            os.write(results, report.encode() + b"\n")
        (work / "modules").write_text("\n".join(sys.modules))
    finally:
        os._exit(99)


def become_nobody() -> None:
    """Give up all rights but that to read, so that Python's own files can be read anywhere."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    only_read = 1 << 2  # CAP_DAC_READ_SEARCH
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)(only_read, only_read, only_read, 0, 0, 0))
    libc.prctl(47, 2, 2, 0, 0)  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE: for processes started, too


def _run_line(line: dict[str, Any], shown: int) -> int:
    from sbert_search.cli import main as command_line

    vars(command_line)["_exit"] = sys.exit  # the next line is run by this process, too
    sys.stdout.flush()
    _redirect(line, shown)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    waits = any("fifo" in word for word in line["arguments"])
    signal.alarm(PIPE_SECONDS if waits else LINE_SECONDS)
    with _limits(line.get("limits", {})):
        sys.argv = ["sbert-search", *line["arguments"]]
        try:
            command_line.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
    signal.alarm(0)
    return code


def _redirect(line: dict[str, Any], shown: int) -> None:
    """Give the line its standard streams, as Python would find them when it starts."""
    closed = line.get("closed", "")
    encoding = line.get("encoding", "utf-8")
    stdin = os.open(line.get("stdin", os.devnull), os.O_RDONLY | os.O_NONBLOCK)
    stdout = os.open(line["stdout"], os.O_WRONLY) if "stdout" in line else shown
    for fd, source in enumerate((stdin, stdout, shown)):
        os.dup2(source, fd)
    os.close(stdin)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding, "backslashreplace")
    for fd in map(int, closed):
        os.close(fd)
        setattr(sys, ("stdin", "stdout", "stderr")[fd], None)


@contextlib.contextmanager
def _limits(limits: dict[str, int]) -> Iterator[None]:
    """Set soft limits; of memory, so much beyond what this process has already."""
    before = {}
    for name, limit in limits.items():
        kind = getattr(resource, name)
        soft, hard = before[kind] = resource.getrlimit(kind)
        if name == "RLIMIT_AS":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit += pages * resource.getpagesize()
        resource.setrlimit(kind, (limit, hard))
        del soft
    try:
        yield
    finally:
        for kind, both in before.items():
            resource.setrlimit(kind, both)


if __name__ == "__main__":
    main(sys.argv[1])
