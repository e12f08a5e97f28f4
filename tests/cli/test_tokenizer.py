from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.process import sbert_search


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("the cat sat on the mat\nthe hat of the cat\n")
    return path


def test_train_writes_a_tokenizer_and_a_summary(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "vocab"
    done = sbert_search("tokenizer", "train", source, "--vocab-size", 40, "--out", out, "--json")
    assert done.code == 0, done.err
    (summary,) = done.records
    pieces = (out / "vocab.txt").read_text().splitlines()
    counts = {"vocab_size": len(pieces), "documents": 2, "rejected": 0, "rejects_file": None}
    assert summary == {"out": str(out), **counts}
    assert "the" in pieces
    assert {"tokenizer.json", "tokenizer_config.json"} < {path.name for path in out.iterdir()}


def test_rejected_rows_and_extension(source: Path, tmp_path: Path) -> None:
    with source.open("ab") as file:
        file.write(b"\xff\xfe\n")
    train = ("tokenizer", "train", source)
    stopped = sbert_search(*train, "--out", tmp_path / "a")
    assert stopped.code == 1
    assert "texts.txt:3" in stopped.err
    skipped = sbert_search(*train, "--cased", "--out", tmp_path / "a", "--on-error", "skip")
    assert skipped.code == 3
    (reject,) = (tmp_path / "a.rejects.jsonl").read_text().splitlines()
    assert "texts.txt:3" in reject
    assert "a.rejects.jsonl" in skipped.out
    options = ("--extend", tmp_path / "a", "--out", tmp_path / "b", "--on-error", "skip")
    assert sbert_search(*train, *options).code == 3
    assert (tmp_path / "a" / "vocab.txt").read_text() == (tmp_path / "b" / "vocab.txt").read_text()


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        (("--extend", "{source}", "--cased"), "--cased has no effect with --extend"),
        (("--extend", "{source}", "--keep-accents"), "--keep-accents has no effect with --extend"),
        (("--extend", "{source}", "--join-cjk"), "--join-cjk has no effect with --extend"),
        (("--algorithm", "bpe", "--workers", "2"), "--workers has no effect with --algorithm bpe"),
    ],
)
def test_options_without_effect_are_refused(
    source: Path, tmp_path: Path, line: tuple[str, ...], refused: str
) -> None:
    options = [word.format(source=source) for word in line]
    done = sbert_search("tokenizer", "train", source, "--out", tmp_path / "v", *options)
    assert done.code == 2
    assert f"{refused}; leave it out." in done.err
    assert not (tmp_path / "v").exists()


def test_a_size_below_the_alphabet_is_wrong_usage(source: Path, tmp_path: Path) -> None:
    done = sbert_search("tokenizer", "train", source, "--vocab-size", 9, "--out", tmp_path / "v")
    assert done.code == 2
    assert "Ask for at least" in done.err
    assert not (tmp_path / "v").exists()
