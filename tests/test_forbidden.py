"""What this code never does: run code that a file brings, or write past `base/files.py`.

`findings` reads source as a tree, so that strings and comments do not count. It is itself tested:
every rule finds what is planted for it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [
    path for room in ("sbert_search", "tests", "benchmarks") for path in (ROOT / room).rglob("*.py")
]

CODE_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
}
CODE_CALLS = {
    *("eval", "exec", "compile", "__import__", "torch.load", "torch.jit.load", "torch.hub.load"),
    *("yaml.load", "yaml.unsafe_load", "os.system", "os.popen"),
}
CODE_FLAGS = {"allow_pickle": True, "trust_remote_code": True, "shell": True, "weights_only": False}
WRITING_CALLS = {
    *("os.replace", "os.rename", "os.renames", "os.remove", "os.unlink", "os.link", "os.truncate"),
    *("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree", "shutil.move"),
    *("shutil.rmtree", "np.save", "np.savez", "numpy.save", "json.dump", "torch.save"),
    *("safetensors.torch.save_file", "safetensors.numpy.save_file", "save_file"),
}
WRITING_METHODS = {"write_text", "write_bytes", "tofile", "touch"}
THE_WRITER = "sbert_search/base/files.py"
THE_OPENER = "sbert_search/base/folders.py"  # of folders, which are only read


def findings(source: str, path: str) -> list[str]:
    """Name what a file does that it must not, each with its line.

    Args:
        source: Python source.
        path: Relative to the root of the project; writing is judged in the package alone.
    """
    judge_writes = path.startswith("sbert_search/") and path not in (THE_WRITER, THE_OPENER)
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call | ast.Import | ast.ImportFrom):
            continue
        reasons = [*_runs_code(node), *(_writes(node) if judge_writes else ())]
        found += [f"{path}:{getattr(node, 'lineno', 0)}: {reason}" for reason in reasons]
    return found


def _runs_code(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _top(alias.name) in CODE_MODULES)
    elif isinstance(node, ast.ImportFrom):
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        if _top(node.module or "") in CODE_MODULES or names & CODE_CALLS:
            yield f"from {node.module}"
    elif isinstance(node, ast.Call):
        if (name := ast.unparse(node.func)) in CODE_CALLS:
            yield f"{name}()"
        for keyword in node.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else ...
            if keyword.arg in CODE_FLAGS and value is not (not CODE_FLAGS[keyword.arg]):
                yield f"{keyword.arg}={ast.unparse(keyword.value)}"


def _writes(node: ast.AST) -> Iterator[str]:
    if not isinstance(node, ast.Call):
        return
    name = ast.unparse(node.func)
    if name.startswith("Path('/proc/self/"):
        return  # a setting of the process, on no disk
    last = name.rpartition(".")[2]
    opens = last == "open" and name not in ("webbrowser.open", "os.open")
    if (
        name in WRITING_CALLS
        or last in WRITING_METHODS
        or (opens and _mode(node, name) & set("wax+"))
    ):
        yield f"{name}()"
    if name == "os.open" and ast.unparse(node.args[0]) != "os.devnull":
        yield "os.open()"


def _mode(node: ast.Call, name: str) -> set[str]:
    """The letters of a mode given to ``open(path, mode)``, ``path.open(mode)`` and their like."""
    given = [*node.args[0 if name.endswith(".open") else 1 :], *(k.value for k in node.keywords)]
    texts = [a.value for a in given if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return set("".join(text for text in texts if set(text) <= set("rwaxbt+")))


def _top(name: str) -> str:
    return name.partition(".")[0]


def test_no_file_does_what_none_may() -> None:
    assert len(SOURCES) > 300
    names = {path: path.relative_to(ROOT).as_posix() for path in SOURCES}
    assert [found for path in SOURCES for found in findings(path.read_text(), names[path])] == []


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "import joblib.memory as m",
        "from cloudpickle import loads",
        "from torch import load",
        "x = torch.load(path)",
        "torch.load(path, weights_only=True)",
        "eval(text)",
        "exec(text, {})",
        "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=chosen)",
        "subprocess.run(command, shell=True)",
        "yaml.load(text)",
        "def f():\n    return __import__(name)",
        "open(path, 'w')",
        "open(path, mode='ab')",
        "path.open('x')",
        "gzip.open(path, 'wt')",
        "path.write_text(text)",
        "os.replace(a, b)",
        "np.save(path, array)",
        "vectors.tofile(path)",
        "os.open(path, os.O_WRONLY)",
        "shutil.rmtree(folder)",
    ],
)
def test_what_is_planted_is_found(planted: str) -> None:
    [finding] = findings(planted, "sbert_search/index/planted.py")
    assert finding.startswith("sbert_search/index/planted.py:")


@pytest.mark.parametrize(
    "harmless",
    [
        "'import pickle'",
        "open(path)",
        "open(path, 'rb')",
        "path.open(encoding='utf-8')",
        "model.eval()",
        "text.replace('a', 'b')",
        "np.load(path, allow_pickle=False)",
        "re.compile(pattern)",
        "webbrowser.open(address)",
        "os.open(os.devnull, os.O_WRONLY)",
    ],
)
def test_what_is_harmless_is_not(harmless: str) -> None:
    assert findings(harmless, "sbert_search/index/planted.py") == []


def test_the_one_writer_and_the_tests_may_write() -> None:
    assert findings("open(path, 'w')", "sbert_search/base/files.py") == []
    assert findings("path.write_text('x')", "tests/test_x.py") == []
    assert findings("import pickle", "tests/test_x.py") != []
