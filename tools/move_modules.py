"""Move and merge modules of the package, and change every place that names them.

    python tools/move_modules.py PLAN.toml [--check]

A plan has up to five tables; module names in it leave out ``sbert_search.``:

    [move]                              # a module or a package, with all that it contains
    "runtime.disk" = "base.disk"
    [merge]                             # the modules become one, in an order that can be imported
    "search.fusion" = ["search.stages.fusion", "search.ranking"]
    [rename]                            # a top-level name of a module that is merged
    "search.ranking:_order" = "_ranked"
    [doc]                               # the docstring of a module, or its first line
    "search.fusion" = "Fuse rankings."
    [folders]                           # other folders and files of the repository
    "tests/runtime" = "tests/base"

The docstring of a merged module is the first line of its main part, or that of the plan, and all
further paragraphs of all its parts, unless the plan gives several lines. If two parts have the same
assignment, such as a type alias, it is written once.

Changed are imports (also inside functions and under TYPE_CHECKING), dotted names in strings, such
as the targets of monkeypatch, and paths of files in documentation and settings. A name that two
merged modules define, or that an import would hide, and modules that would import one another, end
the run before a file is written. With --check no file is written at all.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = "sbert_search"
_TEXT = {".py", ".md", ".toml", ".ini", ".yml", ".yaml", ".sh", ".txt", ".cfg", ".html", ".js"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LEFT_OUT = ("CHANGELOG.md", "tools/", "benchmarks/results/", "eval/reports/")


class PlanError(Exception):
    """The plan cannot be carried out; no file was changed."""


@dataclass(slots=True)
class Plan:
    """Where each module goes."""

    new: dict[str, str]  # new dotted name of every module, by the old one
    merged: dict[str, list[str]]  # old names of the modules that a module is made of
    renamed: dict[str, dict[str, str]]  # new top-level names, by old module and old name
    folders: dict[str, str] = field(default_factory=dict)
    docs: dict[str, str] = field(default_factory=dict)  # first lines, by new name


def modules_of(root: Path) -> dict[str, Path]:
    """Return the file of each module and package by dotted name."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def read_plan(path: Path, modules: Mapping[str, Path]) -> Plan:
    """Read a plan, and resolve it for the modules that exist."""
    table = tomllib.loads(path.read_text())
    moves = {f"{PACKAGE}.{old}": f"{PACKAGE}.{new}" for old, new in table.get("move", {}).items()}

    def moved(name: str) -> str:
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            if (head := ".".join(parts[:end])) in moves:
                return ".".join([moves[head], *parts[end:]])
        return name

    new = {name: moved(name) for name in modules}
    merged: dict[str, list[str]] = {}
    for target, sources in table.get("merge", {}).items():
        own = [f"{PACKAGE}.{source}" for source in sources]
        if absent := [name for name in own if name not in modules]:
            raise PlanError(f"no module {absent[0]}")
        new |= dict.fromkeys(own, f"{PACKAGE}.{target}")
        merged[f"{PACKAGE}.{target}"] = own
    renamed: dict[str, dict[str, str]] = defaultdict(dict)
    for place, name in table.get("rename", {}).items():
        module, _, old = place.partition(":")
        renamed[f"{PACKAGE}.{module}"][old] = name
    docs = {f"{PACKAGE}.{target}": line for target, line in table.get("doc", {}).items()}
    if unused := docs.keys() - set(new.values()):
        raise PlanError(f"[doc] names {min(unused)}, which no module becomes")
    plan = Plan(new, merged, renamed, table.get("folders", {}), docs)
    _check_targets(plan, modules)
    return plan


def _check_targets(plan: Plan, modules: Mapping[str, Path]) -> None:
    sources: dict[str, list[str]] = defaultdict(list)
    for old, now in plan.new.items():
        sources[now].append(old)
        if plan.new.get(now, now) != now:
            raise PlanError(f"{now} is the new name of {old}, and moves itself; use two plans")
    for target, own in sources.items():
        if target in plan.merged:
            if left := set(own) - set(plan.merged[target]):
                raise PlanError(f"{target}: {left} also have this new name")
        elif len(own) > 1 and any(modules[name].name != "__init__.py" for name in own):
            raise PlanError(f"{' and '.join(own)} both become {target}")


class Source:
    """The text of one Python file and the edits to it."""

    def __init__(self, text: str, name: str | None, plan: Plan) -> None:
        self.text, self.name, self.plan = text, name, plan
        self.tree = ast.parse(text)
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line.encode()))
        self._starts = starts
        self._edits: list[tuple[int, int, str]] = []

    def offset(self, line: int, column: int) -> int:
        """Return the byte offset of a position that ast reports."""
        return self._starts[line - 1] + column

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """Return the byte offsets of a node."""
        end = self.offset(node.end_lineno or 0, node.end_col_offset or 0)
        return self.offset(node.lineno, node.col_offset), end

    def edit(self, node: ast.stmt | ast.expr, text: str) -> None:
        """Put a text in the place of a node."""
        self._edits.append((*self.span(node), text))

    def edited(self) -> str:
        """Return the text with all edits."""
        data = self.text.encode()
        for start, end, text in sorted(self._edits, reverse=True):
            data = data[:start] + text.encode() + data[end:]
        return data.decode()

    # Imports

    def rewrite_imports(self) -> None:
        """Change each import of a module of the package."""
        own = self.plan.new.get(self.name) if self.name else None
        for body in _bodies(self.tree):
            left = len(body)
            for node in body:
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                    lines = self._imports(node, own)
                    if lines is None:
                        continue
                    left -= not lines
                    indent = " " * node.col_offset
                    self.edit(node, f"\n{indent}".join(lines) or ("pass" if not left else ""))
                elif isinstance(node, ast.Import):
                    for alias in node.names:
                        if alias.name in self.plan.new and self.plan.new[alias.name] != alias.name:
                            raise PlanError(f"{self.name}: import {alias.name} is not supported")

    def _imports(self, node: ast.ImportFrom, own: str | None) -> list[str] | None:
        lines, changed = [], False
        assert node.module is not None
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            if name in self.plan.new:  # a module
                target, known = self.plan.new[name], alias.asname or alias.name
                if target == own:
                    self._inline(known, self.plan.renamed.get(name, {}))
                    changed = True
                    continue
                parent, _, leaf = target.rpartition(".")
                changed |= target != name
                lines.append(f"from {parent} import {leaf}" + (f" as {known}" * (leaf != known)))
                continue
            if node.module not in self.plan.new:
                raise PlanError(f"{self.name}: no module {node.module}")
            target = self.plan.new[node.module]
            new_name = self.plan.renamed.get(node.module, {}).get(alias.name, alias.name)
            if new_name != alias.name and alias.asname is None:
                self.rename(alias.name, new_name)
            if target == own:
                changed = True
                if alias.asname not in (None, new_name):
                    self.rename(alias.asname, new_name)
                continue
            changed |= target != node.module or new_name != alias.name
            suffix = f" as {alias.asname}" if alias.asname else ""
            lines.append(f"from {target} import {new_name}{suffix}")
        return lines if changed else None

    def rewrite_public_names(self) -> None:
        """Change the modules in the table of the names that the package exports."""
        for node in self.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id="_NAMES_IN")], value=ast.Dict() as value):
                    table: dict[str, list[str]] = {}
                    for module, names in ast.literal_eval(value).items():
                        new = self.plan.new[f"{PACKAGE}.{module}"].removeprefix(f"{PACKAGE}.")
                        table.setdefault(new, []).extend(names)
                    if table != ast.literal_eval(value):
                        self.edit(value, repr(table))

    def set_doc(self, summary: str) -> None:
        """Give the module another docstring, or only another first line."""
        doc = ast.get_docstring(self.tree, clean=False) or ""
        text = summary if "\n" in summary else summary + "".join(doc.partition("\n")[1:])
        if doc:
            self.edit(self.tree.body[0], f'"""{text}"""')
        else:
            self._edits.append((0, 0, f'"""{text}"""\n'))

    def _inline(self, known: str, renamed: Mapping[str, str]) -> None:
        """Write ``name`` for ``known.name``, as the module ``known`` is now this one."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == known:
                    self.edit(node, renamed.get(attribute, attribute))

    def rename(self, old: str, new: str) -> None:
        """Rename a top-level name of this file."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and node.id == old:
                self.edit(node, new)
            elif isinstance(node, _DEFINITIONS) and node.name == old and node in self.tree.body:
                line = self.text.encode()[self.offset(node.lineno, 0) :].decode()
                match = re.compile(rf"(?:async )?(?:def|class) +({old})\b").match(line)
                assert match, (self.name, old)
                start = self.offset(node.lineno, match.start(1))
                self._edits.append((start, start + len(old.encode()), new))


def _bodies(tree: ast.AST) -> Iterable[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body


def _new_name(name: str, plan: Plan, least: int = 2) -> str:
    """Return the new dotted name of a module of ``least`` parts, or of something in it."""
    parts = name.split(".")
    for end in range(len(parts), least - 1, -1):
        if (head := ".".join(parts[:end])) in plan.new:
            rest = parts[end:]
            if rest and rest[0] in (own := plan.renamed.get(head, {})):
                rest[0] = own[rest[0]]
            return ".".join([plan.new[head], *rest])
    return name


def rewrite_names(text: str, plan: Plan) -> str:
    """Change dotted names and file paths of modules, in any text."""

    def slashed(match: re.Match[str]) -> str:
        name = match[1].replace("/", ".")
        if name not in plan.new or plan.new[name] == name:
            return match[0]
        return plan.new[name].replace(".", "/") + (match[2] or "")

    def inside(match: re.Match[str]) -> str:  # a path that starts below the package
        name = f"{PACKAGE}.{match[1].replace('/', '.')}"
        now = plan.new.get(name, name)
        return match[0] if now == name else now.split(".", 1)[1].replace(".", "/") + ".py"

    text = re.sub(rf"\b{PACKAGE}(?:\.\w+)+", lambda match: _new_name(match[0], plan), text)
    text = re.sub(rf"\b({PACKAGE}(?:/\w+)+)(\.py)?\b", slashed, text)
    text = re.sub(r"(?<![\w/.-])(\w+(?:/\w+)+)\.py\b", inside, text)
    text = re.sub(  # `room.module.name` in a docstring
        r"(?<=(?<!`)`)\w+(?:\.\w+)+",
        lambda match: _new_name(f"{PACKAGE}.{match[0]}", plan, 3).removeprefix(f"{PACKAGE}."),
        text,
    )
    for old, new in plan.folders.items():
        text = re.sub(rf"(?<![\w/]){re.escape(old)}(?![\w-])", new, text)
        if old.startswith("tests/"):
            before, after = (name.removesuffix(".py").replace("/", ".") for name in (old, new))
            text = re.sub(rf"\b{re.escape(before)}(?!\w)", after, text)
    return text


@dataclass(slots=True)
class Parts:
    """A module to merge: its imports and the rest of its text."""

    doc: str | None
    imports: list[str] = field(default_factory=list)
    typing: list[str] = field(default_factory=list)
    body: str = ""
    defined: set[str] = field(default_factory=set)
    assigned: dict[str, str] = field(default_factory=dict)  # names, by the statement

    def leave_out(self, other: Parts) -> None:
        """Leave out assignments that another module has too."""
        for segment in self.assigned.keys() & other.assigned.keys():
            line = re.compile(rf"^{re.escape(segment)}[^\n]*\n?", re.MULTILINE)
            self.body = line.sub("", self.body, count=1).strip("\n")
            self.defined.discard(self.assigned.pop(segment))


def parts_of(text: str) -> Parts:
    """Take a module apart."""
    source = Source(text, None, Plan({}, {}, {}))
    parts, data, cut = Parts(ast.get_docstring(source.tree, clean=False)), text.encode(), []
    for position, node in enumerate(source.tree.body):
        start, end = source.span(node)
        segment = data[start:end].decode()
        if position == 0 and parts.doc is not None:
            cut.append((start, end))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            line_end = data.find(b"\n", end)
            parts.imports.append(data[start:line_end].decode())  # with its comment
            cut.append((start, line_end))
        elif isinstance(node, ast.If) and segment.startswith("if TYPE_CHECKING:"):
            inner = [item for item in node.body if isinstance(item, (ast.Import, ast.ImportFrom))]
            if len(inner) == len(node.body) and not node.orelse:
                for item in inner:
                    first, last = source.span(item)
                    parts.typing.append(data[first:last].decode())
                cut.append((start, end))
        else:
            parts.defined |= (names := _names(node))
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and len(names) == 1:
                parts.assigned[segment] = next(iter(names))
    for start, end in reversed(cut):
        data = data[:start] + data[end:]
    parts.body = data.decode().strip("\n")
    return parts


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, _DEFINITIONS):
        return {node.name}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {item.id for target in targets for item in ast.walk(target)
                if isinstance(item, ast.Name)}  # fmt: skip
    return set()


def _imported(lines: Iterable[str]) -> dict[str, str]:
    """Return what each imported name stands for."""
    names = {}
    for line in lines:
        node = ast.parse(line).body[0]
        assert isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names:
            module = getattr(node, "module", None)
            known = alias.asname or (alias.name if module else alias.name.split(".")[0])
            names[known] = f"{module}:{alias.name}" if module else known
    return names


def merge(target: str, sources: Mapping[str, str], order: list[str], doc: str) -> str:
    """Return the text of the modules ``sources`` as one module."""
    parts = {name: parts_of(sources[name]) for name in order}
    for position, later in enumerate(order):
        for earlier in order[:position]:
            parts[later].leave_out(parts[earlier])
    trouble = []
    meaning: dict[str, tuple[str, str]] = {}  # what a name stands for, and in which module
    for name, own in parts.items():
        everything = _imported([*own.imports, *own.typing]) | {
            known: f"{name}:{known}" for known in own.defined
        }
        for known, stands_for in everything.items():
            before, place = meaning.setdefault(known, (stands_for, name))
            if before != stands_for and known != "annotations":
                trouble.append(f"{target}: {known!r} of {place} is another thing in {name}")
    if trouble:
        raise PlanError("\n".join(trouble))
    imports = list(dict.fromkeys(line for own in parts.values() for line in own.imports))
    loaded = set(_imported(imports))
    typing = []
    for line in dict.fromkeys(line for own in parts.values() for line in own.typing):
        if not set(_imported([line])) <= loaded:
            typing.append(line)
    text = f'"""{doc}"""\n\n' + "\n".join(imports) + "\n"
    if typing:
        indented = "\n".join(f"    {line}" for block in typing for line in block.splitlines())
        text += f"\nif TYPE_CHECKING:\n{indented}\n"
    return text + "\n\n" + "\n\n\n".join(own.body for own in parts.values() if own.body) + "\n"


def joined_docs(texts: Iterable[str]) -> str:
    """Return the docstring of the first module, with the further paragraphs of the others."""
    docs = [(ast.get_docstring(ast.parse(text), clean=False) or "").strip() for text in texts]
    further = [rest.strip() for doc in docs if (rest := doc.partition("\n")[2])]
    joined = "\n\n".join([docs[0].partition("\n")[0], *further])
    return (joined + "\n" * bool(further)).replace("\\", "\\\\")


def import_order(sources: Mapping[str, str]) -> list[str]:
    """Order modules so that each stands after those that it imports at the top level."""
    graph: dict[str, list[str]] = {name: [] for name in sources}
    for name, text in sources.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for module in (node.module, *(f"{node.module}.{a.name}" for a in node.names)):
                    if module in graph and module != name:
                        graph[name].append(module)
    return list(TopologicalSorter(graph).static_order())


def carry_out(plan: Plan, root: Path, *, check_only: bool = False) -> None:
    """Change the files of the repository, or only see whether that is possible."""
    modules = modules_of(root)
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    files = [line for line in listed.stdout.splitlines() if (root / line).exists()]
    texts = _rewritten(plan, root, files, modules)
    made = _merged(plan, modules, texts)
    _refuse_circles(plan, {name: texts[path] for name, path in modules.items()})
    if check_only:
        return
    for path, text in texts.items():
        if text != path.read_text():
            path.write_text(text)
    _place_merged(plan, root, modules, made)
    _place_moved(plan, root, modules)
    _place_other_files(plan, root, files, modules)
    for old, new in plan.folders.items():
        _move_tree(root / old, root / new)
    _remove_empty_folders(root)


def _rewritten(
    plan: Plan, root: Path, files: Iterable[str], modules: Mapping[str, Path]
) -> dict[Path, str]:
    """Return the new text of every text file; modules are not merged yet."""
    names, texts = {path: name for name, path in modules.items()}, {}
    for line in files:
        path = root / line
        if path.suffix not in _TEXT or line.startswith(_LEFT_OUT):
            continue
        text = path.read_text()
        if path.suffix == ".py":
            source = Source(text, names.get(path), plan)
            for old, new in plan.renamed.get(names.get(path, ""), {}).items():
                source.rename(old, new)
            source.rewrite_imports()
            if names.get(path) == PACKAGE:
                source.rewrite_public_names()
            now = plan.new.get(names.get(path, ""), "")
            if now in plan.docs and now not in plan.merged:
                source.set_doc(plan.docs[now])
            text = source.edited()
            for old, new in plan.renamed.get(names.get(path, ""), {}).items():
                text = text.replace(f"`{old}`", f"`{new}`")
        texts[path] = rewrite_names(text, plan)
    return texts


def _merged(plan: Plan, modules: Mapping[str, Path], texts: Mapping[Path, str]) -> dict[str, str]:
    """Return the text of each module that several modules become."""
    made, trouble = {}, []
    for target, sources in plan.merged.items():
        order = import_order({name: modules[name].read_text() for name in sources})
        leaf = target.rpartition(".")[2]
        main = next((name for name in sources if name.rpartition(".")[2] == leaf), sources[0])
        own = {name: texts[modules[name]] for name in sources}
        doc = joined_docs([own[main], *(own[name] for name in order if name != main)])
        if target in plan.docs:
            given = plan.docs[target].strip()
            doc = f"{given}\n" if "\n" in given else given + "".join(doc.partition("\n")[1:])
        try:
            made[target] = merge(target, own, order, doc)
        except PlanError as error:
            trouble.append(str(error))
    if trouble:
        raise PlanError("\n".join(trouble))
    return made


def _refuse_circles(plan: Plan, texts: Mapping[str, str]) -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for name, text in texts.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                graph[plan.new[name]].update(
                    module
                    for alias in node.names
                    for module in (str(node.module), f"{node.module}.{alias.name}")
                )
    known = set(plan.new.values())
    try:
        TopologicalSorter({name: own & known - {name} for name, own in graph.items()}).prepare()
    except CycleError as error:
        raise PlanError(f"modules that import one another: {' -> '.join(error.args[1])}") from None


def _place_merged(
    plan: Plan, root: Path, modules: Mapping[str, Path], made: Mapping[str, str]
) -> None:
    for target, sources in plan.merged.items():
        place = _file(root, target)
        for name in sources:
            modules[name].unlink()
        _make_folder(root, place.parent)
        place.write_text(made[target])


def _place_moved(plan: Plan, root: Path, modules: Mapping[str, Path]) -> None:
    merged = {name for sources in plan.merged.values() for name in sources}
    for name, path in modules.items():
        if name in merged or plan.new[name] == name:
            continue
        place = _file(root, plan.new[name], package=path.name == "__init__.py")
        if place.exists() and place.stat().st_size:
            path.unlink()  # two packages become one
        else:
            _make_folder(root, place.parent)
            path.rename(place)


def _place_other_files(
    plan: Plan, root: Path, files: Iterable[str], modules: Mapping[str, Path]
) -> None:
    """Move pages, recipes and other files that lie among the modules."""
    for line in files:
        path = root / line
        if line.startswith(PACKAGE) and path.suffix != ".py":
            folder = path.parent
            while (name := ".".join(folder.relative_to(root).parts)) not in modules:
                folder = folder.parent
            place = root.joinpath(*plan.new[name].split("."), path.relative_to(folder))
            place.parent.mkdir(parents=True, exist_ok=True)
            path.rename(place)


def _remove_empty_folders(root: Path) -> None:
    for folder in sorted((root / PACKAGE).rglob("*"), reverse=True):
        if folder.is_dir() and folder.name != "__pycache__":
            files = [item for item in folder.rglob("*") if item.is_file() and item.suffix != ".pyc"]
            if files == [folder / "__init__.py"]:
                files[0].unlink()


def _file(root: Path, name: str, *, package: bool = False) -> Path:
    path = root.joinpath(*name.split("."))
    return path / "__init__.py" if package else path.with_suffix(".py")


def _make_folder(root: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    while folder.is_relative_to(root / PACKAGE):
        if not (init := folder / "__init__.py").exists():
            init.write_text("")
        folder = folder.parent


def _move_tree(old: Path, new: Path) -> None:
    for path in [old] if old.is_file() else sorted(old.rglob("*")):
        if not path.is_file() or path.suffix == ".pyc":
            continue
        place = new / path.relative_to(old) if path != old else new
        if place.exists() and path.name != "__init__.py":
            raise PlanError(f"{path} and {place} both exist")
        place.parent.mkdir(parents=True, exist_ok=True)
        path.replace(place)


def main() -> None:
    """Carry out the plan that the command line names, and tidy up with ruff."""
    root = Path(__file__).resolve().parent.parent
    plan, *options = sys.argv[1:]
    try:
        only = options == ["--check"]
        carry_out(read_plan(Path(plan), modules_of(root)), root, check_only=only)
    except PlanError as error:
        sys.exit(f"move_modules: {error}")
    if only:
        return
    for command in (
        ["check", "-q", "--fix-only", "--select", "I,F401,TC004,PIE790"],
        ["format", "-q"],
    ):
        subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=root, check=False)
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)


if __name__ == "__main__":
    main()
