"""`eval/small_encoder.py` on small data."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.eval.conftest import Script, any_revision, assert_no_paths, write
from tests.models.tiny import TOKENS, WORDS, tiny_tokenizer

SHAPE = ("model.layers=1", "model.hidden_size=16", "model.heads=2", "model.intermediate_size=16")
PRETRAIN = (*SHAPE, "model.max_positions=32", "segments.max_len=16", "batching.size=4")
STEPS = ("table", "pretrain", "distil", "nli")


@pytest.fixture
def small() -> Any:
    return importlib.import_module("small_encoder")


def pair(one: str, two: str, **more: object) -> dict[str, object]:
    return {"sentence1": one, "sentence2": two, **more}


def test_texts_of_sts_sets_are_left_out(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, work = tmp_path / "data", tmp_path / "work"
    for name in small.STS_FILES:
        write(data / f"{name}.jsonl.gz", [pair(f"in {name}", "a CAT  sleeps .", score=1)])
    groups = ["a dog runs .", "a cat sleeps .", "A dog\truns ."], ["In stsb/dev", "two birds"]
    write(data / "flickr8k-captions/captions.jsonl.gz", [{"captions": each} for each in groups])
    write(data / "mpe/train.jsonl.gz", [{"premises": ["one", "two"], "sentence2": "three"}])
    for name in small.NLI:
        rows = [pair("one", "two", label="neutral"), pair("three", "A cat sleeps .", label="x")]
        write(data / f"{name}.jsonl.gz", rows)
    articles = [{"title": str(n), "text": f"article {n}"} for n in range(3)]
    write(data / "wikipedia-en-2014/train-0.jsonl.xz", articles)
    monkeypatch.setattr(small, "training_texts", lambda data, count: ["one", "in sts13/test", "x"])
    work.mkdir()
    small.write_texts(Namespace(data=data, work=work, texts=8, articles=2))
    captions = ["a dog runs .", "A dog runs .", "two birds", "one", "two", "three"]
    assert sorted((work / "texts.txt").read_text().splitlines()) == sorted([*captions, "x"])
    found = [json.loads(line) for line in (work / "nli.jsonl").read_text().splitlines()]
    assert found == [pair("one", "two", label="neutral")] * len(small.NLI)
    found = [json.loads(line) for line in (work / "articles.jsonl").read_text().splitlines()]
    assert found == [{"text": "article 0"}, {"text": "article 1"}]


def test_word_embeddings_start_as_the_centred_rows_of_the_table(small: Any, tmp_path: Path) -> None:
    rows = torch.randn(len(TOKENS), 8, generator=torch.Generator().manual_seed(1)) + 3
    (tmp_path / "table-0/model").mkdir(parents=True)
    save_file({"embedding.weight": rows}, tmp_path / "table-0/model/model.safetensors")
    tiny_tokenizer(tmp_path / "vocabulary")
    settings = ["size=mini", f"tokenizer={tmp_path}/vocabulary", "data.train=x", *PRETRAIN]
    folder = small.start_from_table(tmp_path, settings, 0)
    words = load_file(folder / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert words.std().item() == pytest.approx(small.SPREAD, rel=1e-3)
    centred = rows - rows.mean(dim=0)
    cosines, expected = (torch.nn.functional.normalize(each) for each in (words, centred))
    assert torch.allclose(cosines @ cosines.T, expected @ expected.T, atol=1e-5)


@pytest.mark.thorough
def test_all_steps_run_once_and_are_reported(
    small: Any,
    data: Path,
    model: Path,
    tmp_path: Path,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [" ".join(WORDS[n % 7 : n % 7 + 4] + WORDS[-1 - n % 5 :]) for n in range(70)]
    monkeypatch.setattr(small, "training_texts", lambda data, count: texts)
    monkeypatch.setattr(small, "captions", lambda data: iter(["a cat", "the mat"]))
    monkeypatch.setattr(small, "find_task", any_revision)
    monkeypatch.setattr(small, "measured", lambda collection, options: [])
    monkeypatch.setattr(small, "held_out", lambda data, count: ["the cat sat"])
    work, out = tmp_path / "work", tmp_path / "out"
    chosen = [f"pretrain.{each}" for each in PRETRAIN] + [
        f"{step}.budget={{steps=2}}" for step in STEPS
    ]
    told = ["--data", data, "--teacher", model, "--texts", 60, "--articles", 9, "--seeds", 1]
    told += ["--vocabulary", 60, "--peer-python", "/bin/false", "--work", work, "--out", out]
    told += [word for each in chosen for word in ("--set", each)]
    script("small_encoder", *told)
    report = json.loads((out / "tiny" / "report.json").read_text())
    assert set(report["rows"]) == {"teacher", "distil-0", "nli-0", "table-0"}
    tested = [name for name, row in report["rows"].items() if "stsb" in row and name[-1] == "0"]
    assert len(tested) == 2  # one of the encoders, and
    assert "table-0" in tested
    assert set(report["minutes"]) == {"texts", "vocabulary", "teacher", *(f"{s}-0" for s in STEPS)}
    assert_no_paths(out / "tiny" / "report.json", data, model, tmp_path)
    for name in tested:
        assert "## Licences of the data" in (work / name / "model/README.md").read_text()

    for name in ("timed", "scores"):  # nothing is done again
        monkeypatch.setattr(small, name, lambda *arguments: pytest.fail("called again"))
    script("small_encoder", *told)
    with pytest.raises(SystemExit, match="another folder for --work"):
        script("small_encoder", *told, "--set", "distil.optim.lr=1e-3")
