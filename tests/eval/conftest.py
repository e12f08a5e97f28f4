"""The scripts of `eval/` as modules, and small data laid out as they expect them."""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.evaluate.tasks import EvalTask, find_task
from tests.cli.process import ROOT
from tests.models.tiny import WORDS, tiny_bi_encoder

Row = dict[str, Any]
Script = Callable[..., Any]

LABELS = ("entailment", "neutral", "contradiction")
STS = ("stsb/train", "stsb/dev", "stsb/test", "sts12/test", "sts13/test", "sts14/test")
NLI = ("snli/train_subset_18k", "snli/train_subset_2k", "mnli/train_subset", "cad-nli/train")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """Run where `eval/tasks` lies, and find the scripts."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT / "eval"))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Run the `main` of a script of `eval/` with arguments, in this process."""

    def run(name: str, *arguments: object) -> Any:
        module = importlib.import_module(name)
        line = [str(ROOT / "eval" / f"{name}.py"), *map(str, arguments)]
        monkeypatch.setattr("sys.argv", line)
        module.main()
        return module

    return run


def any_revision(*arguments: Any, **more: Any) -> EvalTask:
    """Find a task as `find_task` does, for data of other bytes."""
    return replace(find_task(*arguments, **more), sha256={})


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bi-encoder of 16 numbers."""
    folder = tmp_path_factory.mktemp("model")
    tiny_bi_encoder(folder / "tokens").save(folder / "tiny")
    return folder / "tiny"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data sets, some dozens of rows each."""
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(7)

    def text(words: int = 6) -> str:
        return " ".join(draw.choice(WORDS, words))

    def pairs() -> Iterator[Row]:
        for _ in range(24):
            yield {"sentence1": text(), "sentence2": text()}

    for name in (*STS, "sts15/test", "sick/dev"):
        write(folder / f"{name}.jsonl.gz", [{**p, "score": n % 6} for n, p in enumerate(pairs())])
    for name in NLI:
        rows = [{**pair, "label": LABELS[n % 3]} for n, pair in enumerate(pairs())]
        write(folder / f"{name}.jsonl.gz", rows)
    for name in ("train-0", "valid", "test"):
        articles = [
            {"id": n, "text": "\n".join(f"# {part}\n" + f"{text()}.\n" * 3 for part in ("a", "b"))}
            for n in range(12)
        ]
        write(folder / f"wikipedia-en-2014/{name}.jsonl.xz", articles)
    for name in ("scifact", "cranfield"):
        write_collection(folder / name, text)
    questions = [{"question": text(), "context": text(20)} for _ in range(9)]
    write(folder / "squad/dev_b.jsonl.gz", questions)
    return folder


def write_collection(folder: Path, text: Callable[..., str]) -> None:
    """Write a BEIR folder in which query n asks for document n."""
    documents = [{"_id": str(n), "title": text(2), "text": text(20)} for n in range(40)]
    write(folder / "corpus.jsonl.gz", documents)
    queries = [{"_id": str(n), "text": documents[n]["text"][:30]} for n in range(30)]
    write(folder / "queries.jsonl.gz", queries)
    (folder / "qrels").mkdir()
    for split, chosen in (("train", range(20)), ("test", range(20, 30))):
        judged = "".join(f"{n}\t{n}\t1\n" for n in chosen)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)


def write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(lzma.compress(lines) if path.suffix == ".xz" else gzip.compress(lines))


def assert_no_paths(record: Path, *paths: Path) -> None:
    """Check that a record names no folder of this machine."""
    text = record.read_text("utf-8")
    for path in (*paths, ROOT):
        assert str(path) not in text
