"""Write small files of every kind with the code of one commit, and record what they answer.

`tests/test_formats.py` opens them with today's code. To add the files of a later version, as after
a change of a format or before a release:

    git worktree add /tmp/then COMMIT
    PYTHONPATH=/tmp/then python tests/formats/make.py tests/formats/COMMIT

and add the folder's name to ``VERSIONS`` of the test. Folders that are there stay as they are: what
later code writes anew proves nothing about earlier code. A folder holds:

    words/                        index by hashing:16: all column types, FAISS file, three segments
    passages/                     index by bi-encoder/: passages, float16, dot, tuned, compacted
    bi-encoder/, cross-encoder/   models, as their training publishes them
    pretraining/, training/       runs stopped by Ctrl-C; tokenizer/ and *.jsonl are their data
    expected.json                 what these answered, and the end that the two runs came to

Modules of the package may move: only its command line and its own names are used here.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

import sbert_search
from sbert_search import Embedder, Index, Reranker, SearchEngine
from sbert_search.cli.main import run

WORKPLACE = Path("/tmp/sbert-search-formats")  # indexes and model cards keep the paths of models
CODE = Path(sbert_search.__file__).parents[1]
LIBRARIES = ("faiss-cpu", "numpy", "pyarrow", "safetensors", "tokenizers", "torch")

RUNS = {"pretraining": ("pretrain",), "training": ("train", "bi-encoder")}
KEPT = ("words", "passages", "bi-encoder", "cross-encoder", "tokenizer", *RUNS)

QUERY = "red mill river"
FILTERS = {
    "words": (
        None,
        "year >= 1990 AND kind = 'mill' AND weight < 3.5",
        "open AND seen >= '2020-03-01' AND born < '1990-01-01'",
    ),
    "passages": (None, "kind IN ('red', 'old')"),
}
RED = {"string": """tags LIKE '%"red"%'""", "list[string]": "'red' IN tags"}
"""A filter over the column ``tags`` by its type; versions 1 and 2 stored lists as JSON text."""
TEXTS = ("the red mill by the river", "café 東京", "")
PAIRS = (("red mill", "a mill of red stone"), ("river", ""), ("old sea", "the night is cold"))

WORDS = re.findall(
    r"\w+",
    "mill river red old sea night cold stone house wind bread tree snow hill road horse ship song "
    "fire rain moon field bird fish king town bridge garden summer winter café 東京",
)
SHAPE = (
    "layers = 1, hidden_size = 8, heads = 2, intermediate_size = 8, max_positions = 32, "
    "initializer_range = 0.3, hidden_dropout = 0.0, attention_dropout = 0.0, pooler = true"
)  # without dropout, whose draws another machine's torch may make differently


def main() -> None:
    """Write all files into the folder that is named, which must be new."""
    target = Path(sys.argv[1]).absolute()
    assert not git("status", "--porcelain", "--", "sbert_search"), "The code is that of no commit."
    WORKPLACE.mkdir()
    os.chdir(WORKPLACE)  # what is written names other files by relative paths
    write_data()
    write_models()
    write_runs()
    write_words()
    write_passages()
    for name in KEPT:
        shutil.copytree(name, target / name)
    for name in ("texts.jsonl", "pairs.jsonl"):
        shutil.copy(name, target)
    expected = {
        "commit": git("rev-parse", "HEAD"),
        "versions": {"python": sys.version.split()[0]} | {n: version(n) for n in LIBRARIES},
        "found": found(WORKPLACE),
        "documents": {name: digest(documents(WORKPLACE / name)) for name in FILTERS},
        "embeddings": embeddings(WORKPLACE),
        "scores": scores(WORKPLACE),
        "runs": {name: resumed(WORKPLACE, name) for name in RUNS},
    }
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[^][]*\]", lambda numbers: " ".join(numbers[0].split()), text)
    (target / "expected.json").write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(WORKPLACE)


# What is asked, by `main` then and by the test now.


def found(folder: Path) -> dict[str, dict[str, list[Any]]]:
    """Ask the indexes: ids and scores of the hits, by index, mode and filter."""
    answers: dict[str, dict[str, list[Any]]] = {}
    for name in FILTERS:
        engine = open_engine(folder / name)
        for mode in ("dense", "lexical", "hybrid"):
            for where in filters(folder / name):
                hits = engine.search(QUERY, 8, mode=mode, where=where)
                scores = [round(hit.score, 8) for hit in hits]
                answers[f"{name}, {mode}, {where}"] = {
                    "ids": [hit.doc_id for hit in hits],
                    "scores": scores,
                }
    return answers


def filters(index: Path) -> tuple[str | None, ...]:
    """Return the filters of an index; one of them depends on the types of its columns."""
    tags = manifest_of(index)["columns"].get("tags")
    red = (f"{RED[tags]} OR note IS NOT NULL",) if tags else ()
    return *FILTERS[index.name], *red


def documents(index: Path) -> dict[str, str]:
    """Read title, text and metadata of all documents, by id."""
    engine = open_engine(index)
    hits = engine.search(QUERY, len(engine.index), full_text=True)
    return {h.doc_id: repr((h.title, h.text, sorted(h.metadata.items()))) for h in hits}


def digest(rows: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(rows.items())).encode()).hexdigest()


def embeddings(folder: Path) -> list[list[float]]:
    """Embed the texts by the bi-encoder."""
    return [[round(x, 7) for x in row] for row in open_bi_encoder(folder).encode(TEXTS).tolist()]


def scores(folder: Path) -> list[float]:
    """Score the pairs by the cross-encoder."""
    reranker = Reranker(folder / "cross-encoder", device="cpu", precision="fp32")
    return [round(x, 7) for x in reranker.predict(PAIRS).tolist()]


def resumed(folder: Path, run: str, *options: str) -> dict[str, Any]:
    """Finish a run: the losses of all its steps and its last dev figures."""
    with chdir(folder):
        cli(*RUNS[run], "--resume", run, *options)
        lines = [json.loads(line) for line in Path(run, "log.jsonl").read_text().splitlines()]
    *_, figures = [line["figures"] for line in lines if line["kind"] == "dev"]
    return {
        "losses": [round(line["loss"], 6) for line in lines if line["kind"] == "step"],
        "figures": {name: round(value, 6) for name, value in figures.items()},
    }


def open_engine(index: Path) -> SearchEngine:
    return SearchEngine(index, None if index.name == "words" else open_bi_encoder(index.parent))


def open_bi_encoder(folder: Path) -> Embedder:
    return Embedder(folder / "bi-encoder", device="cpu", precision="fp32")


def cli(*arguments: object) -> None:
    """Run a command in this process, which has loaded torch already, and goes on afterwards."""
    if code := run([*map(str, arguments)]):
        raise SystemExit(code)


# What is written.


def write_data() -> None:
    """Write what the models learn from: documents, and pairs with a score."""
    draw = random.Random(1)

    def words(n: int) -> str:
        return " ".join(draw.choices(WORDS, k=n))

    texts = [{"text": "\n".join(words(6) for _ in range(4))} for _ in range(40)]
    pairs = [{"text1": words(5), "text2": words(5), "score": draw.randrange(6)} for _ in range(64)]
    write_lines("texts.jsonl", *texts)
    write_lines("pairs.jsonl", *pairs)


def write_models() -> None:
    """Train an encoder, a bi-encoder and a cross-encoder for a few steps each."""
    short = settings({"budget.steps": 20})
    cli("tokenizer", "train", "texts.jsonl", "--out", "tokenizer", "--vocab-size", 90)
    cli(*pretraining(), *short, "--out", "encoder")
    for kind, more in (("bi-encoder", {}), ("cross-encoder", {"max_len": 24})):
        chosen = settings({"model": "encoder/ckpt-00000020/model", **more})
        cli("train", kind, "stsb", *training(), *chosen, *short, "--out", f"{kind}-run")
        shutil.copytree(f"{kind}-run/model", kind)


def write_runs() -> None:
    """Start a pre-training and a training, and interrupt each after its first checkpoint."""
    steps = {"budget.steps": 60, "checkpoint.every": 20, "checkpoint.keep": 1}
    longer = settings({**steps, "evaluation.every": 60})
    interrupt("pretraining", *pretraining(), *longer)
    model = settings({"model": "bi-encoder"})
    interrupt("training", "train", "bi-encoder", "stsb", *training(), *model, *longer)


def pretraining() -> list[object]:
    chosen = {
        "tokenizer": "tokenizer",
        "data.train": "texts.jsonl",
        "data.held_out": 0.1,
        "model": f"{{{SHAPE}}}",
        "segments.max_len": 24,
        "batching.size": 8,
        "optim.lr": 0.01,
        "schedule.warmup": 0.1,
    }
    return ["pretrain", "bert", *settings({**chosen, "device": "cpu", "precision": "fp32"})]


def training() -> list[object]:
    chosen = {
        "data.train": "pairs.jsonl",
        "data.dev": "pairs.jsonl",
        "batching.size": 8,
        "optim.lr": 0.005,
    }
    return settings({**chosen, "device": "cpu", "precision": "fp32"})


def settings(chosen: Mapping[str, object]) -> list[object]:
    return [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]


def interrupt(out: str, *arguments: object) -> None:
    """Start a run, and send it Ctrl-C when it has a checkpoint."""
    command = [sys.executable, "-m", "sbert_search", *map(str, arguments), "--out", out]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(CODE)})
    while process.poll() is None and not list(Path(out).glob("ckpt-????????")):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130, "The run ended before it was interrupted; try again."


def write_words() -> None:
    """Build an index of all column types, then add, replace and delete a document."""
    pq.write_table(pa.table(columns(200)), "words.parquet")
    model = ("--model", "hashing:16", "--spec", "IVF4,Flat")
    with small_limits(MIN_ANN_ROWS=100):
        cli("index", "build", "words.parquet", "--out", "words", *model)
    new = {"_id": "new", "title": "Mill", "text": "An old red mill.", "note": "of a new column"}
    write_lines("added.jsonl", new)
    write_lines("replaced.jsonl", {"_id": "doc-7", "text": "A red river, again.", "year": 2001})
    cli("index", "add", "words", "added.jsonl")
    cli("index", "upsert", "words", "replaced.jsonl")
    cli("index", "delete", "words", "--ids", "doc-8")
    manifest = manifest_of(Path("words"))
    assert [segment["ann"] is None for segment in manifest["segments"]] == [False, True, True]
    assert manifest["tombstones"]


def write_passages() -> None:
    """Index texts longer than the model reads; tune, compact, delete a document."""
    drawn = columns(24)
    texts = zip(drawn["_id"], drawn["text"], drawn["kind"], strict=True)
    rows = [{"_id": i, "text": f"{text}. " * (1 + len(i)), "kind": kind} for i, text, kind in texts]
    write_lines("long.jsonl", *rows)
    model = ("--model", "bi-encoder", "--device", "cpu", "--precision", "fp32")
    stored = ("--metric", "dot", "--dtype", "float16", "--language", "none")
    build = ("index", "build", "long.jsonl", "--out", "passages", "--on-truncate", "chunk")
    cli(*build, *model, *stored)
    cli("index", "tune", "passages", "--max-minutes", 0.5)
    cli("index", "delete", "passages", "--ids", "doc-3")
    with small_limits(BATCH_BYTES=4096, PIECE_BYTES=512):  # see docs/formats.md, rows per batch
        cli("index", "compact", "passages")
    cli("index", "delete", "passages", "--ids", "doc-4")
    manifest = manifest_of(Path("passages"))
    assert manifest["tuning"]
    assert manifest["tombstones"]
    assert manifest["segments"][0]["n_rows"] > manifest["segments"][0]["n_docs"]


def columns(n: int) -> dict[str, list[Any]]:
    """Draw documents, as columns."""
    draw = random.Random(2)
    noon = datetime(2020, 1, 1, 12, tzinfo=UTC)
    rows = range(n)
    values: dict[str, list[Any]] = {
        "kind": [draw.choice(WORDS[:4]) for _ in rows],
        "year": [1980 + row % 50 for row in rows],
        "weight": [row / 64 for row in rows],
        "open": [row % 2 == 0 for row in rows],
        "seen": [noon + timedelta(days=row, microseconds=row) for row in rows],
        "born": [date(1970, 1, 1) + timedelta(days=37 * row) for row in rows],
        "tags": [draw.sample(["red", "green", "blue"], row % 3) for row in rows],
    }
    some = {k: [None if draw.random() < 0.1 else v for v in vs] for k, vs in values.items()}
    return {
        "_id": [f"doc-{row}" if row else "dóc 零" for row in rows],
        "title": [draw.choice(WORDS).title() if row % 3 else "" for row in rows],
        "text": [" ".join(draw.choices(WORDS, k=4 + row % 5)) for row in rows],
        **some,
    }


@contextmanager
def small_limits(**limits: int) -> Iterator[None]:
    """Lower constants in every module of the package that has them: few rows then count as many."""
    _ = Index.build  # imports them
    with ExitStack() as stack:
        for module in [m for name, m in sys.modules.items() if name.startswith("sbert_search.")]:
            for name in limits.keys() & vars(module).keys():
                stack.enter_context(patch.object(module, name, limits[name]))
        yield


def write_lines(path: str, *rows: Mapping[str, object]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    Path(path).write_text("".join(lines), encoding="utf-8")


def manifest_of(index: Path) -> dict[str, Any]:
    """Read a manifest as docs/formats.md describes it."""
    manifest: dict[str, Any] = json.loads((index / "MANIFEST.json").read_text().splitlines()[1])
    return manifest


def git(*arguments: str) -> str:
    return subprocess.check_output(["git", "-C", CODE, *arguments], text=True).strip()


if __name__ == "__main__":
    main()
