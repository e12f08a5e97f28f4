"""What the command line says and leaves behind when something is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sbert_search.base.options import if_offered
from sbert_search.cli.main import run
from sbert_search.index.store import IndexStore
from tests.cli.conftest import ROWS
from tests.cli.lines import commands, sound_line
from tests.cli.process import Done, in_a_process, sbert_search

Write = Callable[..., Path]

# Runs a command under limits of its own: none to write more than N bytes to a file, and none of
# root's right to write where the mode of a folder forbids it.
LIMITED = """
import ctypes, os, resource, sys
if sys.argv[1] != "-":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), -1))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
os.execv(sys.executable, [sys.executable, "-m", "sbert_search", *sys.argv[2:]])
"""


def limited(max_file_bytes: int | None, *arguments: object) -> Done:
    limit = "-" if max_file_bytes is None else max_file_bytes
    return in_a_process(*arguments, launcher=[sys.executable, "-c", LIMITED, str(limit)])


def build(source: object, out: Path, *options: object) -> Done:
    return sbert_search("index", "build", source, "--out", out, "--model", "hashing", *options)


def test_bad_rows_stop_a_build_before_anything_is_written(write: Write, tmp_path: Path) -> None:
    out = tmp_path / "my.index"
    rows = [{"_id": str(n), "text": "fine"} for n in range(3000)]
    source = write("docs.jsonl", *rows, '{"_id": "x", "text": "cut off')
    done = build(source, out)
    assert done.code == 1
    assert f"{source}:3001: " in done.err
    assert "--on-error skip" in done.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent.jsonl", "absent.jsonl: cannot be read: No such file or directory"),
        ("absent-*.jsonl", "absent-*.jsonl"),
        ("docs.xyz", "docs.xyz: unknown file extension"),
        ("empty.jsonl", "empty.jsonl: holds no rows"),
        ("cut.jsonl.gz", "cut.jsonl.gz"),
        ("no-text.csv", "no text field among 'a', 'b'. Name the text field with --text-field."),
    ],
)
def test_sources_that_cannot_be_read(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "docs.xyz").write_text("?")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "cut.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00\x00")
    (tmp_path / "no-text.csv").write_text("a,b\n1,2\n")
    done = build(tmp_path / source, tmp_path / "my.index")
    assert done.code == 1
    assert message in done.err
    assert not (tmp_path / "my.index").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"_id": "b", "text": ""}, "Fix it"),
        ({"_id": "b", "words": "the cat"}, "no text field among '_id', 'words'."),
        ({"_id": "d1", "text": "the cat " * 300}, "tokens were cut off."),
    ],
)
def test_a_message_names_only_options_of_the_command(
    row: dict[str, str],
    said: str,
    template: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = tmp_path / "world"
    shutil.copytree(template, world, symlinks=True)
    monkeypatch.chdir(world)
    for name in ("corpus.jsonl", "beir/corpus.jsonl"):
        Path(name).write_text(json.dumps(row) + "\n")
    seen = set()
    for name, command in commands():
        line = sound_line(name, command)
        if {"corpus.jsonl", "beir", "pretrain.toml"}.isdisjoint(line) or "index" in line:
            continue
        run(["bi" if word == "hashing" else word for word in line])
        shown = capsys.readouterr().err
        options = {option for param in command.params for option in param.opts}
        assert options.issuperset(re.findall(r"--[a-z][a-z-]+", shown)), (name, shown)
        if said in shown:
            seen.add(name)
    assert {"pairs", "eval retrieval"} <= seen
    assert if_offered("--none", "in Python") == "in Python"  # the options hold for a command only


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--dtype", "int8"], "'int8' is not one of 'float32', 'float16'"),
        (["--spec", "IFV100"], "'IFV100' is unknown. Use Flat"),
        (["--recipe", "absent.toml"], "absent.toml cannot be read"),
        (["--model", "./absent"], "There is no model folder ./absent"),
        (["--text-field", "txet"], "Unknown text field 'txet'; did you mean 'text'?"),
    ],
)
def test_settings_that_cannot_be(
    option: list[str], message: str, corpus: Path, tmp_path: Path
) -> None:
    done = build(corpus, tmp_path / "my.index", *option)
    assert done.code in (1, 2)
    assert message in done.err
    assert not (tmp_path / "my.index").exists()


def test_an_unknown_setting_in_a_recipe_is_wrong_usage(
    corpus: Path, write: Write, tmp_path: Path
) -> None:
    recipe = write("r.toml", 'corpus = "rows"', "[spec]", "nprob = 3")
    done = build(corpus, tmp_path / "my.index", "--recipe", recipe)
    assert done.code == 2
    assert "did you mean 'nprobe'?" in done.err


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("MANIFEST.json", "flip"),
        ("MANIFEST.json", "cut"),
        ("seg/*.docs.arrow", "cut"),
        ("seg/*.vec.npy", "flip"),
        ("seg/*.ids.npy", "flip"),
    ],
)
def test_a_damaged_file_is_named(index: Path, part: str, damage: str) -> None:
    (file,) = index.glob(part)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data if damage == "flip" else data[:-1])
    for arguments in (["search", index, "water"], ["index", "check", index]):
        done = sbert_search(*arguments)
        assert done.code == 1
        assert f"{file.relative_to(index)} is corrupt" in done.out + done.err


@pytest.mark.thorough
def test_a_full_disk_leaves_an_unfinished_build_that_goes_on(
    corpus_of_batches: Path, tmp_path: Path
) -> None:
    out = tmp_path / "my.index"
    options = ["--model", "hashing", "--on-error", "skip", "--json"]
    done = limited(1 << 20, "index", "build", corpus_of_batches, "--out", out, *options)
    assert done.code == 1
    assert "File too large" in done.err
    refused = sbert_search("search", out, "water")
    assert refused.code == 1
    assert "is an unfinished build" in refused.err
    done = sbert_search("index", "build", corpus_of_batches, "--out", out, *options)
    assert done.code == 3
    assert done.records[0]["read"] == 16 * 1024


@pytest.mark.thorough
def test_a_read_only_folder_is_named(index: Path, corpus: Path, write: Write) -> None:
    more = write("more.jsonl", {"_id": "new", "text": "new"})
    folders = [index, *(path for path in index.iterdir() if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        (index / "LOCK").chmod(0o444)
        for arguments in (
            ["index", "add", index, more],
            ["index", "delete", index, "--ids", "mill"],
        ):
            done = limited(None, *arguments)
            assert done.code == 1
            assert f"{index} cannot be written" in done.err
        assert limited(None, "search", index, "water").code == 0
        done = limited(None, "index", "build", corpus, "--out", index / "in", "--model", "hashing")
        assert done.code == 1
        assert f"No index can be made at {index / 'in'}" in done.err
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_a_second_writer_is_refused_and_readers_are_not(index: Path, write: Write) -> None:
    more = write("more.jsonl", ROWS[0])
    with IndexStore.open(index).writer():
        done = sbert_search("index", "add", index, more)
        assert done.code == 1
        assert f"is being written by process {os.getpid()}" in done.err
        assert sbert_search("search", index, "water").code == 0
    assert sbert_search("index", "add", index, more).code == 0
