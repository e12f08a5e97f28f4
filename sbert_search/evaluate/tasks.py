"""Evaluation tasks: data sets with the hashes of their files, split, licence and main metric."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from sbert_search.config import from_mapping, read_toml
from sbert_search.errors import ConfigError, EvaluationError
from sbert_search.models.loading.identity import sha256_of
from sbert_search.text.sources import TABLES

Kind = Literal["sts", "retrieval", "rerank", "nli", "binary", "triplets", "classify", "tag", "qa"]


class KindFacts(NamedTuple):
    """What all tasks of a kind have in common."""

    title: str
    data: str  # description of the data
    units: str  # that are scored; also the name of their count
    main_metric: str  # unless the task names another one


KINDS: Mapping[Kind, KindFacts] = {
    "sts": KindFacts("Textual similarity", "a file of scored pairs", "pairs", "spearman"),
    "retrieval": KindFacts("Retrieval", "a BEIR folder or a file of pairs", "queries", "nDCG@10"),
    "rerank": KindFacts("Reranking", "a file of graded pairs", "queries", "MAP"),
    "nli": KindFacts("Natural language inference", "a file of labelled pairs", "pairs", "accuracy"),
    "binary": KindFacts("Pairs of two classes", "a file of pairs labelled 0 or 1", "pairs", "F1"),
    "triplets": KindFacts("Triplets", "a file of triplets", "triplets", "accuracy"),
    "classify": KindFacts("Classification", "a file of labelled texts", "texts", "accuracy"),
    "tag": KindFacts("Entities", "a file of tagged sentences", "sentences", "F1"),
    "qa": KindFacts("Question answering", "a file of questions", "questions", "F1"),
}
_FILE_NAME = re.compile(r"[^./\\\0][^/\\\0]*")
# The task files that users may name without a path. The folder is relative to the working
# directory, so it is found only if the working directory is a clone of the repository.
SHIPPED = Path("eval/tasks")


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskColumns:
    """Names of the columns of a data file; None: the column is found by its usual names."""

    text1: str | None = None
    text2: str | None = None
    score: str | None = None
    label: str | None = None
    tokens: str | None = None
    tags: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalTask:
    """One data set and how it is evaluated; a file ``eval/tasks/NAME.toml`` has these fields.

    Attributes:
        name: Name of the task; by default the file's name without its ending.
        kind: ``sts`` (scored pairs), ``retrieval`` (a BEIR folder, or a file of pairs of a query
            and a relevant text), ``rerank`` (pairs with a grade; pairs with the same first text
            belong to one query), ``nli`` (pairs with a label), ``binary`` (pairs with the label 0
            or 1), ``triplets``, ``classify`` (texts with a label), ``tag`` (sentences with tags)
            or ``qa`` (questions).
        path: Data file or BEIR folder, relative to the data folder.
        more: Further data files, whose rows follow those of ``path``. Only the tasks of task heads
            (``classify``, ``tag`` and ``qa``) read them.
        split: Split of the judgements of a BEIR folder. For a data file, it is only a name: reports
            show it, and only runs on the same split can be compared.
        main_metric: The metric that tables show first.
        licence: Licence of the data, as its source states it.
        source: Where the data files come from.
        note: A remark for readers of the score.
        on_error: Treatment of a bad document of a ``retrieval`` task. ``stop``: it ends the
            evaluation. ``skip``: it is skipped and counted.
        columns: Columns of the texts and of the score or label.
        bad_tags: Treatment of tags that break the rules of their scheme, such as IOB2. ``refuse``:
            they are an error. ``repair``: they are read as ``conlleval`` reads them.
        depth: Number of documents retrieved per query of a ``retrieval`` task.
        ignore_identical_ids: Whether the results of a query leave out the document with the query's
            id (``retrieval``). None: they leave it out if it has the query's text too, and is not
            judged relevant to the query. The run, and what is reranked, leave it out as well.
        queries: ``raw``: all judged queries; ``clean``, for reranking: only queries with relevant
            and irrelevant candidates.
        sha256: Hash of each data file, by its path relative to the data folder.
    """

    name: str
    kind: Kind
    path: Path
    more: tuple[Path, ...] = ()
    split: str = "test"
    main_metric: str = ""
    licence: str = "not stated"
    source: str = ""
    note: str = ""
    on_error: Literal["stop", "skip"] = "stop"
    columns: TaskColumns = field(default_factory=TaskColumns)
    bad_tags: Literal["refuse", "repair"] = "refuse"
    depth: int = 1000
    ignore_identical_ids: bool | None = None
    queries: Literal["raw", "clean"] = "raw"
    sha256: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ConfigError(f"{self.name}: depth is {self.depth}; it must be at least 1.")
        if self.ignore_identical_ids is not None and self.kind != "retrieval":
            raise ConfigError(
                f"{self.name}: ignore_identical_ids is for tasks of the kind retrieval, not for "
                f"{self.kind}; remove it."
            )
        if self.more and self.kind not in ("classify", "tag", "qa"):
            raise ConfigError(
                f"{self.name}: more is given, but tasks of the kind {self.kind} read one file; "
                "make a task of each file."
            )
        if not _FILE_NAME.fullmatch(self.name):
            raise ConfigError(f"The task name {self.name!r} is not a valid file name; rename it.")
        if not self.main_metric:
            # The default depends on `kind`, and a frozen dataclass allows no plain assignment.
            object.__setattr__(self, "main_metric", KINDS[self.kind].main_metric)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSuite:
    """Tasks that are reported together; a file ``eval/suites/NAME.toml`` has these fields.

    Attributes:
        title: Title of the report.
        tasks: Names of the tasks.
        absent: Tasks that cannot be run: the reason, by task name.
        average: Whether the report shows the mean over ``tasks``, as publications do.
        beside: Names of further tasks to report, which the mean does not include.
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


def suite_of(suite: EvalSuite, tasks: Sequence[EvalTask]) -> EvalSuite:
    """Return a copy of a suite with the unique task names that `distinct_tasks` makes for reports.

    ``tasks`` are those of ``suite.runnable``, in its order. A mean over different main metrics is
    refused.
    """
    own = tasks[: sum(name not in suite.absent for name in suite.tasks)]
    metrics = dict.fromkeys(task.main_metric for task in own)
    if suite.average and not suite.absent and len(metrics) > 1:
        raise ConfigError(
            f"The suite {suite.title!r} has average = true, but its tasks have different main "
            f"metrics: {', '.join(metrics)}; remove average, or set main_metric in the task files."
        )
    names = [task.name for task in distinct_tasks(tasks)]
    n_own = len(distinct_tasks(own))
    return replace(suite, tasks=tuple(names[:n_own]), beside=tuple(names[n_own:]))


def load_task(path: Path) -> EvalTask:
    """Read a task file."""
    return from_mapping(EvalTask, {"name": path.stem, **read_toml(path)})


def load_suite(path: Path) -> EvalSuite:
    """Read a suite file."""
    return from_mapping(EvalSuite, read_toml(path))


def find_task(kind: Kind, name: str, *, split: str = "test") -> EvalTask:
    """Return the task of a task file, a shipped task's name, a BEIR folder or a data file.

    ``split`` is the split of the judgements if ``name`` is a data path.
    """
    path = Path(name)
    shipped = SHIPPED / f"{name}.toml"
    if path.suffix == ".toml" or (shipped.is_file() and not path.exists()):
        task = load_task(path if path.suffix == ".toml" else shipped)
    elif not path.exists():
        raise EvaluationError(f"{name} is not a file, a folder or a shipped task. {_remedy(kind)}")
    elif path.is_dir() != (kind == "retrieval") and not (
        kind == "retrieval" and path.name.endswith(TABLES)
    ):
        raise EvaluationError(f"{name} is not {KINDS[kind].data}, which eval {kind} needs.")
    else:
        name_in_folder = path.resolve().name
        stem = name_in_folder.strip(".").partition(".")[0]
        task = EvalTask(name=stem, kind=kind, path=path.resolve(), split=split)
    if task.kind != kind:
        raise EvaluationError(f"{name} is a task for eval {task.kind}, not for eval {kind}.")
    return task


def _remedy(kind: Kind) -> str:
    known = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.toml")))
    if known:
        return f"Shipped: {known}."
    return (
        f"The shipped tasks are in {SHIPPED} of a clone of the repository; run the command in that "
        f"clone, or name {KINDS[kind].data}."
    )


def distinct_tasks(tasks: Sequence[EvalTask]) -> list[EvalTask]:
    """Remove repeated tasks and make task names unique, since report files are named after them.

    Different tasks with one name get the names of their data files or, if these are equal too,
    names of parent folders before the task's name, as in ``a-pairs``; at last, a number is added.
    """
    kept = [task for index, task in enumerate(tasks) if task not in tasks[:index]]
    groups: dict[str, list[EvalTask]] = {}
    for task in kept:
        groups.setdefault(task.name.casefold(), []).append(task)
    names: dict[int, str] = {}
    for group in groups.values():
        # The first naming scheme that gives every task of the group a different name is used.
        schemes = zip(*map(_possible_names, group), strict=False)
        unique = (scheme for scheme in schemes if len({*map(str.casefold, scheme)}) == len(group))
        for task, name in zip(group, next(unique, [task.name for task in group]), strict=True):
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
    """Return the task's name, its file's name, and the task's name after 1, 2, ... folder names."""
    folders = [part for part in task.path.parent.parts if part.strip("/\\.")]
    longer = ["-".join([*folders[-n:], task.name]) for n in range(1, len(folders) + 1)]
    return [task.name, task.path.name, *longer]


def check_files(task: EvalTask, data: Path, files: Sequence[Path]) -> dict[str, str]:
    """Hash the files of a task and compare them with the hashes in the task.

    The sha256 is by the path relative to the data folder or, for a file outside it, by the file
    name, unless another file has this name.
    """
    hashes: dict[str, str] = {}
    for file in files:
        if not file.is_file():
            absolute = Path(task.path).is_absolute()
            remedy = (
                "correct its path" if absolute else "point --data at the folder of the data sets"
            )
            raise EvaluationError(f"{task.name}: {file} does not exist; {remedy}.")
        name = file.relative_to(data).as_posix() if file.is_relative_to(data) else file.name
        name = file.as_posix() if name in hashes else name
        hashes[name] = sha256_of(file)
        if task.sha256.get(name, hashes[name]) != hashes[name]:
            raise EvaluationError(
                f"{task.name}: {file} has sha256 {hashes[name]}, but the task names "
                f"{task.sha256[name]}; scores on different files cannot be compared."
            )
    if unused := sorted(task.sha256.keys() - hashes.keys()):
        raise EvaluationError(
            f"{task.name}: [sha256] names {unused[0]!r}, which is none of the files: "
            f"{', '.join(hashes)}. Correct the name."
        )
    return hashes
