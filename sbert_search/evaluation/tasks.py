"""What is evaluated: one revision of a data set with its split, licence and main metric."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from sbert_search.config import from_mapping, read_toml
from sbert_search.errors import ConfigError, EvaluationError
from sbert_search.models.loading.identity import sha256_of

Kind = Literal["sts", "retrieval", "rerank", "nli", "triplets"]

MAIN_METRICS: Mapping[Kind, str] = {
    "sts": "spearman",
    "retrieval": "nDCG@10",
    "rerank": "MAP",
    "nli": "accuracy",
    "triplets": "accuracy",
}
DATA: Mapping[Kind, str] = {
    "sts": "a file of scored pairs",
    "retrieval": "a BEIR folder",
    "rerank": "a file of graded pairs",
    "nli": "a file of labelled pairs",
    "triplets": "a file of triplets",
}
_FILE_NAME = re.compile(r"[^./\\\0][^/\\\0]*")
SHIPPED = Path("eval/tasks")  # beside the package in a checkout, where a bare name is looked up


@dataclass(frozen=True, kw_only=True, slots=True)
class PairColumns:
    """Columns of a file of pairs; None: detected by their usual names."""

    text1: str | None = None
    text2: str | None = None
    score: str | None = None
    label: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalTask:
    """One data set as it is evaluated; a file ``eval/tasks/NAME.toml`` holds these fields.

    Attributes:
        name: The file's stem, unless the file says otherwise.
        kind: ``sts`` (scored pairs), ``retrieval`` (a BEIR folder), ``rerank`` (pairs with a grade,
            candidates of a query sharing the first text), ``nli`` (pairs with a label) or
            ``triplets``.
        path: File of pairs or BEIR folder, relative to the data folder.
        split: Which judgements of a BEIR folder; of pairs, a word for the report.
        main_metric: What tables show first.
        licence: Of the data, as its source states it.
        source: Where this revision comes from.
        note: What a reader of the score must know.
        on_error: Whether a bad document stops the evaluation or is counted and left out.
        columns: Where the two texts and the score or label of a pair are.
        depth: Documents retrieved for each query.
        queries: ``raw``: all that are judged; ``clean``: of candidates to rerank, only those that
            hold relevant and other texts.
        sha256: Hash of each data file, by its name relative to the data folder.
    """

    name: str
    kind: Kind
    path: Path
    split: str = "test"
    main_metric: str = ""
    licence: str = "not stated"
    source: str = ""
    note: str = ""
    on_error: Literal["stop", "skip"] = "stop"
    columns: PairColumns = field(default_factory=PairColumns)
    depth: int = 1000
    queries: Literal["raw", "clean"] = "raw"
    sha256: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ConfigError(f"{self.name}: depth is {self.depth}; it must be at least 1.")
        if not _FILE_NAME.fullmatch(self.name):
            raise ConfigError(f"The task name {self.name!r} names files, and no file can have it.")
        if not self.main_metric:
            object.__setattr__(self, "main_metric", MAIN_METRICS[self.kind])


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSuite:
    """Tasks that are reported together; a file ``eval/suites/NAME.toml`` holds these fields.

    Attributes:
        title: What the tasks have in common.
        tasks: Names of the tasks that belong here.
        absent: Those among them that cannot be run, each with the reason.
        average: Whether the mean over all of them is a figure that people compare.
        beside: Names of tasks that are shown too and are no part of the mean.
    """

    title: str
    tasks: tuple[str, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    average: bool = False
    beside: tuple[str, ...] = ()

    @property
    def runnable(self) -> list[str]:
        """Names of the tasks to evaluate, in the order of the report."""
        return [name for name in (*self.tasks, *self.beside) if name not in self.absent]


def load_task(path: Path) -> EvalTask:
    """Read a task file.

    Raises:
        ConfigError: It cannot be read, or a field is unknown, missing or wrong.
    """
    return from_mapping(EvalTask, {"name": path.stem, **read_toml(path)})


def load_suite(path: Path) -> EvalSuite:
    """Read a suite file; errors as `load_task`."""
    return from_mapping(EvalSuite, read_toml(path))


def find_task(kind: Kind, name: str, *, split: str = "test") -> EvalTask:
    """Read what a person named: a task file, a shipped task's name, or the data themselves.

    Args:
        kind: What the caller evaluates.
        name: A ``.toml`` file, a name under ``eval/tasks``, a BEIR folder or a file of pairs.
        split: Judgements to use when the data are named directly.

    Raises:
        EvaluationError: Nothing of that name exists, or the task is of another kind.
        ConfigError: The task file is wrong.
    """
    path = Path(name)
    shipped = SHIPPED / f"{name}.toml"
    if path.suffix == ".toml" or (shipped.is_file() and not path.exists()):
        task = load_task(path if path.suffix == ".toml" else shipped)
    elif not path.exists():
        known = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.toml"))) or "none here"
        raise EvaluationError(f"{name} is no file, no folder and no shipped task ({known}).")
    elif path.is_dir() != (kind == "retrieval"):
        raise EvaluationError(f"{name} is not {DATA[kind]}, which eval {kind} needs.")
    else:
        whole = path.resolve().name
        task = EvalTask(
            name=whole.strip(".").partition(".")[0], kind=kind, path=path.resolve(), split=split
        )
    if task.kind != kind:
        raise EvaluationError(f"{name} is a task for eval {task.kind}, not for eval {kind}.")
    return task


def distinct_tasks(tasks: Sequence[EvalTask]) -> list[EvalTask]:
    """Give tasks names of their own, since the files of reports are called by them.

    A task that was named twice is kept once. Namesakes get so many folders before their name that
    it tells their data apart, such as ``a-pairs`` and ``b-pairs``; else the whole name of the file,
    or a number.
    """
    kept = [task for place, task in enumerate(tasks) if task not in tasks[:place]]
    groups: dict[str, list[EvalTask]] = {}
    for task in kept:
        groups.setdefault(task.name.casefold(), []).append(task)
    names: dict[int, str] = {}
    for group in groups.values():
        # Each way to name a group; the first that gives every task another name is taken.
        ways = zip(*map(_possible_names, group), strict=False)
        apart = (way for way in ways if len({name.casefold() for name in way}) == len(group))
        for task, name in zip(group, next(apart, [task.name for task in group]), strict=True):
            names[id(task)] = name
    taken: set[str] = set()
    named = []
    for task in kept:
        name, number = names[id(task)], 2
        while name.casefold() in taken:
            name, number = f"{names[id(task)]}-{number}", number + 1
        taken.add(name.casefold())
        named.append(replace(task, name=name))
    return named


def _possible_names(task: EvalTask) -> list[str]:
    """Name a task as it is, by its whole file, and with more and more folders before its name."""
    folders = [part for part in task.path.parent.parts if part.strip("/\\.")]
    longer = ["-".join([*folders[-n:], task.name]) for n in range(1, len(folders) + 1)]
    return [task.name, task.path.name, *longer]


def check_files(task: EvalTask, data: Path, files: Sequence[Path]) -> dict[str, str]:
    """Hash the files of a task and compare them with the revision that the task names.

    Returns:
        sha256 of each file, by its path relative to the data folder.

    Raises:
        EvaluationError: A file is absent, or is another revision.
    """
    found: dict[str, str] = {}
    for file in files:
        if not file.is_file():
            raise EvaluationError(
                f"{task.name}: {file} does not exist; point --data at the folder of the data sets."
            )
        name = file.relative_to(data).as_posix() if file.is_relative_to(data) else file.name
        found[name] = sha256_of(file)
        if task.sha256.get(name, found[name]) != found[name]:
            raise EvaluationError(
                f"{task.name}: {file} has sha256 {found[name]} and the task names "
                f"{task.sha256[name]}; scores on another revision cannot be compared."
            )
    return found
