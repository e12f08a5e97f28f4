"""Options from `sbert-search.toml`, the environment and the command line, in this order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sbert_search.cli.main import run
from sbert_search.index.index import Index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": str(n), "text": f"tide number {n + 10}"} for n in range(12)]
    Index.build(rows, out="notes.index", model="hashing")
    return "notes.index"


def shown_rows(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[object, str]]:
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    return {row["option"]: (row["value"], row["from"]) for row in lines}


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sbert-search.toml").write_text(
        'device = "cpu"\nengine = "onnx"\nmodel = "of the file"\n[search]\nk = 5\n'
        'mode = "lexical"\nengine = "native"\n[index.build]\nchunk-tokens = 64\n'
    )
    monkeypatch.setenv("SBERT_SEARCH_MODEL", "of the environment")
    assert run(["--show-config", "search", index, "tide", "-k", "3", "--json"]) == 0
    shown = shown_rows(capsys)
    assert shown["k"] == (3, "command line")
    assert shown["mode"] == ("lexical", "sbert-search.toml")
    assert shown["device"] == ("cpu", "sbert-search.toml")
    assert shown["engine"] == ("native", "sbert-search.toml")
    assert shown["model"] == ("of the environment", "environment, SBERT_SEARCH_MODEL")
    assert shown["rerank"] == (None, "default")
    assert run(["--show-config", "index", "build", "x", "--out", "y"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "chunk-tokens" in line]
    assert line.split() == ["chunk-tokens", "64", "sbert-search.toml"]


def test_a_model_for_all_commands_does_not_replace_that_of_an_index(
    index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sbert-search.toml").write_text('model = "hashing:8"\n')
    Path("more.jsonl").write_text('{"id": "more", "text": "a moon"}\n')
    assert run(["search", index, "tide", "--mode", "dense"]) == 0
    assert run(["index", "add", index, "more.jsonl"]) == 0
    capsys.readouterr()
    assert run(["--show-config", "search", index, "tide", "--json"]) == 0
    assert shown_rows(capsys)["model"] == (None, "default")
    assert run(["index", "build", "more.jsonl", "--out", "new.index"]) == 0
    assert Index.open("new.index").identity.name == "hashing:8"


def test_a_precision_for_all_commands_is_not_for_those_that_lack_it(
    index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path("sbert-search.toml")

    def value(*command: str) -> tuple[object, str]:
        assert run(["--show-config", *command, "--json"]) == 0
        return shown_rows(capsys)["precision"]

    file.write_text('precision = "bf16"\n')
    assert value("pretrain") == value("search") == ("bf16", "sbert-search.toml")
    file.write_text('precision = "fp16"\n')
    assert value("search") == ("fp16", "sbert-search.toml")
    assert value("pretrain") == value("train", "bi-encoder") == ("auto", "default")
    file.write_text('precision = "int8"\n')
    assert value("search") == value("eval", "sts") == ("int8", "sbert-search.toml")
    assert value("pretrain") == ("auto", "default")
    monkeypatch.setenv("SBERT_SEARCH_PRECISION", "fastest")
    assert value("pretrain") == ("auto", "default")
    assert value("search") == ("fastest", "environment, SBERT_SEARCH_PRECISION")
    monkeypatch.setenv("SBERT_SEARCH_PRECISION", "int9")
    assert run(["--show-config", "pretrain"]) == 2
    monkeypatch.delenv("SBERT_SEARCH_PRECISION")
    for text in ('[pretrain]\nprecision = "int8"', '\nprecision = "int9"'):
        file.write_text(text)
        assert run(["--show-config", "pretrain"]) == 2
        assert "sbert-search.toml:2: precision: 'int" in capsys.readouterr().err


def test_sync_takes_the_model_of_the_file_only_for_a_new_index(index: str) -> None:
    Path("notes").mkdir()
    Path("notes", "a.md").write_text("The moon.")
    for name in ("hashing:8", "hashing:4"):
        Path("sbert-search.toml").write_text(f'model = "{name}"\n')
        Path("notes", "b.md").write_text(name)
        assert run(["index", "sync", "made.index", "notes"]) == 0
        assert Index.open("made.index").identity.name == "hashing:8"
    Path("notes", "b.md").write_text("another model")
    assert run(["index", "sync", "made.index", "notes", "--model", "hashing:4"]) == 1


def test_sync_takes_the_settings_of_the_file_only_for_a_new_index(
    index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("notes").mkdir()
    Path("notes", "a.md").write_text("The moon.")
    sync = ["index", "sync", "made.index", "notes"]
    for language in ("german", "french"):
        Path("sbert-search.toml").write_text(
            f'model = "hashing:8"\n[index.sync]\nlanguage = "{language}"\ntitle-weight = 3\n'
        )
        assert run(sync) == 0
    words = Index.open("made.index").state.manifest.lexical
    assert words is not None
    assert (words.language, words.title_weight) == ("german", 3)
    for option, value in (("--language", "french"), ("--title-weight", "5")):
        assert run([*sync, option, value]) == 2
        assert f"{option} is for a new index" in capsys.readouterr().err


@pytest.mark.parametrize("named", [["--model", "hashing:8"], []])
def test_another_model_that_is_named_for_the_command_is_refused(
    index: str, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if not named:
        Path("sbert-search.toml").write_text('[search]\nmodel = "hashing:8"\n')
    assert run(["search", index, "tide", "--mode", "dense", *named]) == 1
    assert "384" in capsys.readouterr().err


def test_a_search_obeys_the_file(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path("other.toml")
    other.write_text("[search]\nk = 2\n")
    assert run(["--config", "other.toml", "search", index, "tide", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    other.rename("sbert-search.toml")
    assert run(["search", index, "tide", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert run(["search", index, "tide", "--json", "-k", "4"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[search]\nk = 3\nkk = 1", 3, "Unknown option of search 'kk'"),
        ("search = 1", 1, "search is a command; write a table, [search]."),
        ("modle = 'x'", 1, "did you mean 'model'"),
        ("# ours\n\nk = 5", 3, "in the table of their command, such as [search]"),
        ("[search]\nk = 'many'", 2, "k: 'many' is not a valid integer"),
        ("[search]\nk = 2.5", 2, "k: '2.5' is not a valid integer"),
        ("[search]\nk = true", 2, "k is True; write one value"),
        ("[search]\nk = [1, 2]", 2, "k is [1, 2]; write one value"),
        ("[search]\nboost = 'n:2'", 2, "boost is 'n:2'; write a list"),
        ("[search]\nmode = 'sparse'", 2, "mode: 'sparse' is not one of"),
        ("device = 'gpu'", 1, "device: "),
        ("[search]\nfull-text = 1", 2, "full-text is 1; write true or false"),
        ("k = 1\nmode = x", 2, "is not valid TOML"),
        ("[search]\n[serach]\nk = 1", 2, "Unknown command 'serach'; did you mean 'search'"),
    ],
)
def test_a_wrong_file_is_refused_with_the_line(
    index: str, text: str, line: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sbert-search.toml").write_text(text)
    assert run(["search", index, "tide"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert f"sbert-search.toml:{line}: " in error or f"line {line}" in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[index]\nout = 'x'", "sbert-search.toml:2: index is a group of commands"),
        ("[index.biuld]\nout = 'x'", "sbert-search.toml:1: Unknown command 'biuld'; did you mean"),
        ("[index]\nbuild.ouch = 'x'", "sbert-search.toml: Unknown option of index build 'ouch'"),
    ],
)
def test_a_wrong_table_of_a_group_is_refused(
    text: str, message: str, index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sbert-search.toml").write_text(text)
    assert run(["index", "build", "notes.jsonl", "--out", "other.index"]) == 2
    assert message in capsys.readouterr().err
    assert run(["search", index, "tide"]) == 0


def test_lists_and_flags_are_those_of_the_command_line(
    index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sbert-search.toml").write_text(
        "json = true\n[search]\nlike = ['3']\nquiet = true\nhighlight = false\n"
    )
    assert run(["--show-config", "search"]) == 0
    shown = shown_rows(capsys)
    assert shown["json"] == shown["quiet"] == (True, "sbert-search.toml")
    assert shown["like"] == ("('3',)", "sbert-search.toml")
    assert shown["highlight"] == (False, "sbert-search.toml")
    assert shown["verbose"] == shown["passages"] == (False, "default")
    assert shown["operators"] == (None, "default")
    assert run(["search", index, "-k", "1"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["rank"] == 1


@pytest.mark.parametrize(("passages", "chunks"), [("true", 5), ("false", 1)])
def test_passages_in_the_file_are_those_of_the_command_line(
    passages: str,
    chunks: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": "long", "text": "tide " * 20}]
    Index.build(rows, out="long.index", model="hashing", chunk_tokens=4)
    Path("sbert-search.toml").write_text(f"[search]\npassages = {passages}\n")
    assert run(["search", "long.index", "tide", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == chunks


def test_a_command_without_a_file_reads_none() -> None:
    script = (
        "import sys\n"
        "from sbert_search.cli.main import run\n"
        "run(['completion', 'bash'])\n"
        "unused = 'tomllib', 'sbert_search.cli.options.config_file'\n"
        "sys.exit(sum(name in sys.modules for name in unused))"
    )
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL).returncode == 0


def test_a_file_that_is_absent_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", "absent.toml", "demo"]) == 2
    assert "absent.toml" in capsys.readouterr().err


DEFAULTS = (
    "[search]\ndense-weight = 0.7\nfusion = 'rrf'\nrerank-depth = 20\ngroup-size = 3\n"
    "answer-depth = 2\nfuzzy = 1\n"
)


def assert_defaults_do_not_stop(
    line: list[str], index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["search", index, "tide", "-k", "1", "--json", *line]) == 0, capsys.readouterr()
    for option in ("--rerank-depth", "--group-size", "--answer-depth"):
        assert run(["search", index, "tide", option, "2", *line]) == 2
        assert f"{option} needs --" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        ["--mode", "dense"],
        ["--mode", "lexical"],
        ["--mode", "dense", "--plain"],
    ],
)
def test_a_default_without_effect_does_not_stop_a_search(
    line: list[str], index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sbert-search.toml").write_text(DEFAULTS)
    assert_defaults_do_not_stop(line, index, capsys)


def test_cut_texts_have_no_passages_of_a_default_size(
    index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sbert-search.toml").write_text("chunk-tokens = 4\n")
    Path("long.jsonl").write_text(json.dumps({"id": "long", "text": "tide " * 20}))
    build = ["index", "build", "long.jsonl", "--model", "hashing"]
    assert run([*build, "--out", "cut.index", "--on-truncate", "warn"]) == 0, capsys.readouterr()
    assert run([*build, "--out", "split.index"]) == 0
    assert [Index.open(name).info().passages for name in ("cut.index", "split.index")] == [1, 5]
    Path("sbert-search.toml").write_text("chunk-tokens = 4\non-truncate = 'warn'\n")
    assert run([*build, "--out", "other.index"]) == 2
    assert "--chunk-tokens needs --on-truncate chunk." in capsys.readouterr().err
