"""Read the docstrings of Python's standard library, a corpus that needs no download."""

from __future__ import annotations

import ast
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from sbert_search.errors import CorpusError
from sbert_search.records import Document

_SKIPPED_FOLDERS = {
    "dist-packages", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages",
    "test", "tests", "turtledemo",
}  # fmt: skip
MIN_WORDS = 5
MAX_CHARS = 1000  # about 250 tokens

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Documented = ast.Module | ast.ClassDef | _Function
# Statements whose definitions belong to the module or class around the statement.
_BLOCKS = (ast.If, ast.Try, ast.TryStar, ast.ExceptHandler, ast.With)


def stdlib_documents(folder: Path | None = None) -> Iterator[Document]:
    """Yield a document for each public module, class, function and method with a docstring.

    The source files in ``folder`` (None: the standard library of the running Python) are parsed,
    never imported. The id and the title of a document are the qualified name of its object, such as
    ``textwrap.wrap``. Its metadata are ``package``, ``module``, ``kind``, ``line`` and ``words``
    (the number of words). Docstrings of fewer than 5 words are skipped; those of over 1,000
    characters are cut, after a paragraph if possible. Documents are sorted by path and line. If a
    file defines a name several times, the first definition whose docstring is not skipped counts.

    Example:
        >>> document = next(stdlib_documents())
        >>> document.metadata["kind"]
        'module'
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    paths = sorted(_source_files(folder))
    if not paths:
        raise CorpusError(f"{folder}: holds no Python source, so there are no docstrings to index.")
    for path in paths:
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        yield from _documents(path, module.removesuffix(".__init__"))


def _source_files(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS and _is_public(name)]
        for name in files:
            stem, suffix = os.path.splitext(name)
            if suffix == ".py" and (stem == "__init__" or _is_public(stem)):
                yield Path(here, name)


def _documents(path: Path, module: str) -> Iterator[Document]:
    try:
        with warnings.catch_warnings(action="ignore"):  # such as of invalid escape sequences
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # unreadable, or not Python, such as a template
        return
    seen = set()
    for name, kind, node in _definitions(tree, module, "module"):
        text = _first_paragraphs(ast.get_docstring(node) or "")
        if name in seen or len(text.split()) < MIN_WORDS:
            continue
        seen.add(name)
        line = getattr(node, "lineno", 1)
        metadata = {
            "package": module.partition(".")[0],
            "module": module,
            "kind": kind,
            "line": line,
            "words": len(text.split()),
        }
        yield Document(name, text, name, metadata, f"{path}:{line}")


def _definitions(node: ast.AST, name: str, kind: str) -> Iterator[tuple[str, str, _Documented]]:
    if isinstance(node, _Documented):
        yield name, kind, node
    if isinstance(node, _Function):
        return  # nested definitions are not public
    inner = "method" if kind == "class" else "function"
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _BLOCKS):
            yield from _definitions(child, name, kind)
        elif isinstance(child, ast.ClassDef | _Function) and _is_public(child.name):
            own = "class" if isinstance(child, ast.ClassDef) else inner
            yield from _definitions(child, f"{name}.{child.name}", own)


def _is_public(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_")


def _first_paragraphs(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    paragraphs = text[: max(0, text.rfind("\n\n", 0, MAX_CHARS + 2))].rstrip()
    is_enough = len(paragraphs.split()) >= MIN_WORDS
    return paragraphs if is_enough else text[:MAX_CHARS].rstrip()
