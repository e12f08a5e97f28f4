"""The command line as a whole: what it loads, what it says of wrong usage, how it ends."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from sbert_search import __version__
from sbert_search.cli.main import cli, run
from tests.cli.process import environment, in_a_process, sbert_search

IN_EVERY_INSTALL = {"starlette", "uvicorn", "msgspec", "httptools", "pypdf", "ir_measures", "scipy"}
HEAVY = {"torch", "transformers", "sentence_transformers", "tokenizers", "faiss", "onnxruntime"}

LIST_MODULES = "import sys; print('\\n'.join(m.partition('.')[0] for m in sys.modules))"


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{LIST_MODULES}"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    return set(done.stdout.splitlines())


@pytest.mark.parametrize(
    "code",
    ["import sbert_search", "from sbert_search.cli.main import run; run(['--help'])"],
)
def test_import_and_help_load_nothing_heavy(code: str) -> None:
    light = HEAVY | IN_EVERY_INSTALL | {"pyarrow", "numpy", "sqlglot", "rich"}
    assert not modules_after(code) & light


def test_help_imports_no_command_and_shows_the_line_of_each() -> None:
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sbert_search", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    ).stderr
    assert "sbert_search.cli.main" in loaded
    assert "sbert_search.cli.search" not in loaded
    assert "sbert_search.cli.index" not in loaded
    context = click.Context(cli, terminal_width=200, max_content_width=200)
    shown = [" ".join(line.split()) for line in cli.get_help(context).splitlines()]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        assert f"{name} {command.get_short_help_str(200)}" in shown


def test_help_names_every_exit_code() -> None:
    done = sbert_search("--help")
    assert done.code == 0
    for code in ("0 done", "1 failed", "2 wrong usage", "3 finished", "130 interrupted"):
        assert code in " ".join(done.out.split())


def test_version() -> None:
    assert sbert_search("--version").out == f"sbert-search, version {__version__}\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("serach", "No such command 'serach'. Did you mean 'search'?"),
        ("index buld", "No such command 'buld'. Did you mean 'build'?"),
        ("eval retreival", "No such command 'retreival'. Did you mean 'retrieval'?"),
        ("xyzzy", "No such command 'xyzzy'."),
        ("build docs.jsonl", "No such command 'build'. Did you mean 'index build'?"),
        ("query", "No such command 'query'. Did you mean 'search'?"),
        ("encode", "No such command 'encode'. Did you mean 'embed'?"),
        ("evaluate", "No such command 'evaluate'. Did you mean 'eval'?"),
        ("dedup", "No such command 'dedup'. Did you mean 'pairs'?"),
        ("finetune", "No such command 'finetune'. Did you mean 'train bi-encoder'?"),
        ("rerank", "No such command 'rerank'. Did you mean 'search --rerank'?"),
        ("search i q --rerank-dept 4", "Did you mean '--rerank-depth' or '--rerank-weight'?"),
        ("index build a.jsonl --force", "No such option '--force'."),
        ("index build a.jsonl --langauge german", "Did you mean '--language'?"),
    ],
)
def test_a_misspelt_name_is_wrong_usage_and_a_similar_one_is_suggested(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[-1].endswith(message)
    assert said.out == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("sbert-search ind", "index"),
        ("sbert-search index bui", "build"),
        ("sbert-search search --rerank-d", "--rerank-depth"),
        ("sbert-search train bi-encoder mnrl-n", "mnrl-nli"),
        ("sbert-search pretrain disti", "distilbert"),
    ],
)
def test_a_shell_completes_commands_options_and_recipes(words: str, expected: str) -> None:
    variables = {
        "_SBERT_SEARCH_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = in_a_process(env=variables)
    assert f"plain,{expected}" in done.out.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_each_shell_asks_this_program(shell: str) -> None:
    script = sbert_search("completion", shell).out
    assert f"_SBERT_SEARCH_COMPLETE={shell}_complete" in script
    assert "sbert-search" in script
    assert sbert_search("completion", "tcsh").code == 2


ENDING = """
import atexit, sys, threading, time
from sbert_search.cli.main import main

class Freed:
    def __del__(self):
        print("freed")

def work():
    time.sleep(0.3)
    print("thread done")

freed = Freed()
atexit.register(print, "at exit")
if sys.argv[1] == "thread":
    threading.Thread(target=work).start()
sys.argv[1:] = ["--version"] if sys.argv[1] != "wrong" else ["--wrong"]
main()
"""


@pytest.mark.parametrize(
    ("how", "code", "lines"),
    [
        ("alone", 0, ["at exit"]),
        ("wrong", 2, ["at exit"]),
        ("thread", 0, ["thread done", "at exit", "freed"]),
    ],
)
def test_the_process_ends_without_freeing_modules(how: str, code: int, lines: list[str]) -> None:
    """Exit handlers run, and other threads are waited for."""
    done = in_a_process(how, launcher=(sys.executable, "-c", ENDING))
    assert done.code == code
    assert [line for line in done.out.splitlines() if "version" not in line] == lines
