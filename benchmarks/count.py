"""Count what a reader of the package has to hold in the head.

    python benchmarks/count.py [--tree TREE] [--json] [--out F.json]

Each line of `sbert_search/` is of one kind, in this order: docstring, comment, blank, import,
header (of a function), raise (with the `if` that guards only it), code. Three traces count the
functions of the package that are entered, and the files that these are in: indexing four documents,
one hybrid query, and encoding one text. Each was done before, so that nothing is imported, loaded
or exported in the trace. The model is the default one (extra `model`), in fp32 on the CPU.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import subprocess
import sys
import tempfile
import threading
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType

import click

import sbert_search
from sbert_search import Document, Embedder, Index, SearchEngine

KINDS = ("code", "docstring", "comment", "blank", "import", "header", "raise")
DOCUMENTS = [
    "The river turns the wheel.",
    "The baker mixes flour and water.",
    "A vaccine trains the immune system.",
    "The moon turns around the earth.",
]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def kinds_of_lines(path: Path) -> Counter[str]:
    """Count the lines of a file by kind."""
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    kinds = dict.fromkeys(range(1, len(text.splitlines()) + 1), "code")
    for kind, find in (("raise", _raises), ("header", _headers), ("import", _imports)):
        kinds.update(dict.fromkeys((n for node in nodes for n in find(node)), kind))
    kinds.update({n: "blank" for n, line in enumerate(text.splitlines(), 1) if not line.strip()})
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
                kinds[token.start[0]] = "comment"
    kinds.update(dict.fromkeys((n for node in nodes for n in _docstring(node)), "docstring"))
    return Counter(kinds.values())


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _raises(node: ast.AST) -> Iterable[int]:
    if isinstance(node, ast.Raise):
        return _lines(node)
    if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[0], ast.Raise):
        return _lines(node)
    return ()


def _headers(node: ast.AST) -> Iterable[int]:
    if not isinstance(node, FUNCTIONS):
        return ()
    return range(node.lineno, max(node.lineno + 1, node.body[0].lineno))


def _imports(node: ast.AST) -> Iterable[int]:
    return _lines(node) if isinstance(node, (ast.Import, ast.ImportFrom)) else ()


def _docstring(node: ast.AST) -> Iterable[int]:
    if not isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
        return ()
    return _lines(node.body[0]) if ast.get_docstring(node) else ()


def count_lines(package: Path) -> dict[str, int]:
    files = sorted(package.rglob("*.py"))
    total = sum((kinds_of_lines(file) for file in files), Counter[str]())
    return {"modules": len(files), "lines": total.total(), **{kind: total[kind] for kind in KINDS}}


def option_slots(command: click.Command, context: click.Context) -> Iterator[int]:
    """Count the options of each command; a group of commands counts for nothing itself."""
    if not isinstance(command, click.Group):
        yield sum(isinstance(each, click.Option) for each in command.params)
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from option_slots(below, click.Context(below, parent=context, info_name=name))


def entered(package: Path, work: Callable[[], object]) -> dict[str, int]:
    """Run a function, and count the functions of the package, and their files, that it enters."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    own = {code for code in seen if Path(code.co_filename).is_relative_to(package)}
    functions = {(c.co_filename, c.co_qualname) for c in own if c.co_name != "<module>"}
    return {"functions": len(functions), "files": len({file for file, _ in functions})}


def traces(package: Path) -> dict[str, dict[str, int]]:
    """Count what indexing, a query and an encoding enter, each for the second time."""
    embedder = Embedder(device="cpu", precision="fp32")
    documents = [Document(str(n), text) for n, text in enumerate(DOCUMENTS)]
    with tempfile.TemporaryDirectory() as folder:
        first = Index.build(documents, out=Path(folder) / "first", model=embedder)
        engine = SearchEngine(first, embedder)
        works: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "indexing": (
                lambda: None,
                lambda: Index.build(documents, out=Path(folder) / "next", model=embedder),
            ),
            "query": (
                lambda: engine.search("moon", mode="hybrid"),
                lambda: engine.search("grain", mode="hybrid"),
            ),
            "encoding": (lambda: embedder.encode("moon"), lambda: embedder.encode("grain")),
        }
        counted = {}
        for name, (before, work) in works.items():
            before()
            counted[name] = entered(package, work)
    return counted


def count(tree: Path) -> dict[str, object]:
    """Count everything about a tree; its package is the one that Python imports."""
    package = tree / "sbert_search"
    if Path(str(sbert_search.__file__)).resolve().parent != package:
        raise SystemExit(f"{sbert_search.__file__} is not in {tree}; set PYTHONPATH={tree}")
    settings = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    module, _ = settings["project"]["scripts"]["sbert-search"].split(":")
    root: click.Command = importlib.import_module(module).cli
    slots = list(option_slots(root, click.Context(root, info_name="sbert-search")))
    head = ["git", "-C", str(tree), "rev-parse", "HEAD"]
    return {
        "commit": subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip(),
        **count_lines(package),
        "commands": len(slots),
        "option slots": sum(slots),
        "public names": len(import_module("sbert_search").__all__),
        "import contracts": len(settings["tool"]["importlinter"]["contracts"]),
        **{
            f"{name}: {what} entered": number
            for name, counts in traces(package).items()
            for what, number in counts.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--tree", type=Path, default=here, help="default: this repository")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file, too")
    options = parser.parse_args()
    counts = count(options.tree.resolve())
    text = json.dumps(counts, indent=1)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    width = max(map(len, counts))
    table = "\n".join(f"{name:{width}}  {value}" for name, value in counts.items())
    print(text if options.json else table)


if __name__ == "__main__":
    main()
