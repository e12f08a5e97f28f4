"""Errors name keywords in Python and options on the command line."""

from __future__ import annotations

import ast
import asyncio
import copy
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sbert_search import (
    CorpusError,
    Embedder,
    Index,
    IndexStoreError,
    QueryError,
    SbertSearchError,
    SearchEngine,
)
from sbert_search.errors import in_python, install
from tests.cli.process import ROOT, sbert_search
from tests.models.tiny import tiny_bi_encoder


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Fix it, or pass --on-error skip.", "Fix it, or pass on_error='skip'."),
        ("use --device cpu or --precision fp32.", "use device='cpu' or precision='fp32'."),
        ("resume it with --resume runs/a (resume=True).", "resume it with resume=True."),
        ("with --set model=FOLDER.", "with model=FOLDER."),
        ("pass --group-by path.", "pass group_by='path'."),
        ("Use --calibrate with the file", "Use calibrate with the file"),
        ("--on-errors stays, --replace goes", "--on-errors stays, replace=True goes"),
        (
            "wait (--wait SECONDS), or ask with -k or --rerank-depth.",
            "wait, or ask with k or rerank_depth.",
        ),
        ("run `index migrate --abandon`.", "run `index migrate --abandon`."),
    ],
)
def test_options_are_keywords(message: str, expected: str) -> None:
    assert in_python(message) == expected
    error = SbertSearchError(message)
    assert str(error) == str(copy.copy(error)) == expected


# Folders and modules that only commands use: their messages name options.
OF_COMMANDS = ("cli", "serve", "commands", "commands.py", "options.py", "machine.py")


def messages(file: Path) -> Iterator[str]:
    """Yield the texts of a module that may be shown, with a word for each value in them."""
    tree = ast.parse(file.read_text("utf-8"))
    nodes = list(ast.walk(tree))
    quiet = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    quiet |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in quiet:
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            text = ""
            for part in node.values:
                if isinstance(part, ast.Constant):
                    text += str(part.value)
                else:
                    text += "x" * text.endswith((" ", ".", "/"))
            yield text


def test_no_message_names_an_option_in_python() -> None:
    """In errors, notes and warnings; commands in backquotes stay what they are."""
    package, found, n_options = ROOT / "sbert_search", [], 0
    for file in package.rglob("*.py"):
        place = file.relative_to(package)
        if file.name == "errors.py" or set(place.parts) & set(OF_COMMANDS):
            continue
        for text in messages(file):
            if text.startswith(("sbert-search ", "cat ")) or "```" in text:  # examples of commands
                continue
            n_options += "--" in text
            if re.search(r"--[a-z]", re.sub("`[^`]*`", "", in_python(text))):
                found.append(f"{place}: {text}")
    assert found == []
    assert n_options > 50


def test_notes_have_the_words_of_their_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("a mill\n")
    done = sbert_search("index", "build", path, "--out", tmp_path / "i", "--model", "hashing")
    assert "With --text-as file, the file is one." in done.err
    monkeypatch.setattr("sbert_search.base.progress._note_level", None)
    with caplog.at_level("INFO", "sbert_search"):
        Index.build(path, model="hashing")
    assert any("With text_as='file', the file" in each.message for each in caplog.records)


def test_the_same_error_has_the_words_of_its_caller(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1, "text": "mill"}\n{"id": 2}\n')
    with pytest.raises(CorpusError, match=r"pass on_error='skip'\.$"):
        Index.build(path, model="hashing")
    done = sbert_search("index", "build", path, "--out", tmp_path / "i", "--model", "hashing")
    assert done.err.rstrip().endswith("pass --on-error skip.")
    with pytest.raises(CorpusError, match=r"fields=FieldNames\(text=\.\.\.\)"):
        Index.build([{"when": "today"}], model="hashing")


def test_wrong_calls_name_the_right_ones() -> None:
    index = Index.from_texts(["a mill"], model="hashing")
    with pytest.raises(QueryError, match="list of texts; pass one text, or use `search_many`"):
        SearchEngine(index).search(["cats", "dogs"])  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match=r"pass rows such as \{'text': \.\.\.\}"):
        index.add(["a text"])


def test_a_second_build_says_what_to_call(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "mill"}]
    first = Index.build(rows, out=tmp_path / "i", model="hashing")
    again = Index.build(rows, out=tmp_path / "i", model="hashing")
    assert again.state.manifest == first.state.manifest
    with pytest.raises(IndexStoreError, match=r"Index\.open\('.*i'\)\.add\(rows\)"):
        Index.build([*rows, {"id": "b", "text": "bread"}], out=tmp_path / "i", model="hashing")
    with pytest.raises(IndexStoreError, match="made with another model"):
        Index.build(rows, out=tmp_path / "i", model="hashing:8")
    again.add([{"id": "b", "text": "bread"}])
    with pytest.raises(IndexStoreError, match="changed since its build"):
        Index.build(rows, out=tmp_path / "i", model="hashing")


def test_the_same_vectors_again_give_the_same_index(tmp_path: Path) -> None:
    vectors = np.eye(3, dtype=np.float32)
    first = Index.from_vectors(vectors, out=tmp_path / "v")
    assert Index.from_vectors(vectors, out=tmp_path / "v").state.manifest == first.state.manifest


def test_an_index_is_closed_at_the_end_of_a_block(tmp_path: Path) -> None:
    with Index.from_texts(["a mill"], model="hashing") as temporary:
        assert len(temporary) == 1
    assert not (tmp_path / "i").exists()
    with pytest.raises(IndexStoreError, match="is closed; open it again"):
        len(temporary)
    Index.from_texts(["a mill"], model="hashing", out=tmp_path / "i").close()
    with Index.open(tmp_path / "i") as index:
        path, n_docs = index.path, len(index)
    assert (path.exists(), n_docs) == (True, 1)
    index.close()  # twice is once


def test_an_embedder_awaits(tmp_path: Path) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "model")
    embedder = Embedder(tmp_path / "model", precision="fp32")

    async def both() -> list[np.ndarray]:
        texts = ["a mill", "bread"]
        return await asyncio.gather(*(embedder.aencode([t], task="query") for t in texts))

    found = asyncio.run(both())
    expected = embedder.encode_query(["a mill", "bread"])
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-6)


def test_no_page_or_message_installs_from_a_registry() -> None:
    assert install("ray") == "python -m pip install -e '.[ray]' in the clone of sbert-search"
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/deploy/*")]
    files = [*pages, *ROOT.glob("sbert_search/**/*.py"), *ROOT.glob("examples/**/*.py")]
    named = [
        str(file.relative_to(ROOT))
        for file in files
        if re.search(
            r"(pip install|uv add)[^\n&]*(?<! of)[ '\"`]sbert-search\b|['\"`]sbert-search\[",
            file.read_text("utf-8"),
        )
    ]
    assert named == []
