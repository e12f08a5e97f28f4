import json
from pathlib import Path

import pytest

from sbert_search.embed.embedder import Embedder
from sbert_search.lab.commands.models import FEWEST, REMEDIES
from sbert_search.models.pretraining import MaskedLanguageModel
from tests.cli.process import sbert_search
from tests.lab.anisotropy.test_analyze import TEXTS
from tests.models.tiny import tiny_bi_encoder, tiny_encoder, tiny_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model and a text file."""
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "bi")
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return tmp_path


def test_anisotropy_prints_tables_and_writes_files(folder: Path) -> None:
    line = ("analyze", "anisotropy", "bi", "texts.txt", "--out", "runs")
    done = sbert_search(*line, "--save-whitened", "white", "--whitened-dim", "4", cwd=folder)
    assert done.code == 0, done.err
    assert "60 texts" in done.out
    assert all(remedy in done.out for remedy in ("none", *REMEDIES))
    assert {path.name for path in (folder / "runs").iterdir()} == {
        "anisotropy.json",
        "anisotropy.svg",
    }
    assert Embedder(folder / "white", precision="fp32").dim == 4


def test_json_is_one_line_and_the_remedy_is_chosen(folder: Path) -> None:
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"id": n, "body": text}) + "\n" for n, text in enumerate(TEXTS))
    )
    line = ("analyze", "anisotropy", "bi", "rows.jsonl", "--text-field", "body", "--json")
    done = sbert_search(
        *line, "--remedy", "standardising", "--save-whitened", "out", "-q", cwd=folder
    )
    assert done.code == 0, done.err
    (record,) = map(json.loads, done.out.splitlines())
    assert record["texts"] == 60
    assert len(record["layers"]) == 3
    assert Embedder(folder / "out", precision="fp32").dim == 16
    assert done.err == ""


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (("bi",), 2, "Name SOURCE: a text file with a sentence in each line"),
        (("bi", "absent.txt"), 1, "absent.txt"),
        (("absent", "texts.txt"), 1, "absent"),
        (("bi", "texts.txt", "--texts", str(FEWEST - 1)), 2, "--texts"),
        (("bi", "texts.txt", "--save-whitened", "bi"), 2, "bi already exists"),
        (("bi", "texts.txt", "--sts", "absent.tsv"), 1, "absent.tsv is not a file"),
        (("bi", "texts.txt", "--directions", "16"), 2, "directions is 16"),
        (
            ("bi", "texts.txt", "--remedy", "standardising"),
            2,
            "--remedy has no effect without --save-whitened",
        ),
    ],
)
def test_bad_lines_end_by_name(folder: Path, line: tuple[str, ...], code: int, says: str) -> None:
    done = sbert_search("analyze", "anisotropy", *line, cwd=folder)
    assert done.code == code, done.err
    assert says in done.err
    assert "Traceback" not in done.err


def test_attention_prints_heads_and_writes_files(folder: Path) -> None:
    line = ("analyze", "attention", "bi", "the cat sat", "a dog", "--out", "runs")
    done = sbert_search(*line, cwd=folder)
    assert done.code == 0, done.err
    assert "8 tokens" in done.out
    assert "sep." in done.out
    names = {path.name for path in (folder / "runs").iterdir()}
    assert names == {"attention.npz", "attention.json", "attention.html"}


def test_heads_are_removed_with_a_source(folder: Path) -> None:
    MaskedLanguageModel(tiny_encoder(), tiny_tokenizer(folder / "tokens")).save(folder / "mlm")
    line = ("analyze", "attention", "mlm", "the cat", "--source", "texts.txt", "--out", "runs")
    done = sbert_search(*line, cwd=folder)
    assert done.code == 0, done.err
    assert "heads removed" in done.out
    assert "of 4 heads, the MLM loss is at most 1 % worse than with all heads." in " ".join(
        done.out.split()
    )
    assert (folder / "runs" / "heads.json").is_file()


def test_json_has_a_line_for_each_head(folder: Path) -> None:
    done = sbert_search("analyze", "attention", "bi", "the cat", "--json", "-q", cwd=folder)
    first, *heads = map(json.loads, done.out.splitlines())
    assert first["tokens"] == ["[CLS]", "the", "cat", "[SEP]"]
    assert [(each["layer"], each["head"]) for each in heads] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    rows = [row for each in heads for row in each["probabilities"]]
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in rows)


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (("bi",), 2, "Missing argument 'TEXT'"),
        (("bi", " "), 2, "TEXT is blank"),
        (("absent", "cat"), 1, "absent"),
        (("bi", "cat", "--sts", "texts.txt"), 2, "--sts needs --source"),
        (("bi", "cat", "--source", "absent.txt"), 1, "absent.txt"),
        (("bi", "cat", "--texts", "5"), 2, "--texts has no effect without --source"),
        (("bi", "cat", "--seed", "5"), 2, "--seed has no effect without --source"),
    ],
)
def test_bad_lines_of_attention_end_by_name(
    folder: Path, line: tuple[str, ...], code: int, says: str
) -> None:
    done = sbert_search("analyze", "attention", *line, cwd=folder)
    assert done.code == code, done.err
    assert says in done.err
    assert "Traceback" not in done.err
