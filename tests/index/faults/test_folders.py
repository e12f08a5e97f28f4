"""Folders that are moved, replaced, linked or emptied while a command works in them.

Nothing outside the index changes, no acknowledged document is lost, and every refusal is by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sbert_search.base.folders import Identity, identity_of
from sbert_search.errors import IndexStoreError, SbertSearchError
from sbert_search.index.index import Index
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.tuning.settings import TuneSettings
from sbert_search.index.tuning.tune import tune as tune_index
from sbert_search.index.upkeep.check import check
from tests.faults import FULL, keep_result
from tests.index.faults.happenings import HAPPENINGS, Yard
from tests.index.faults.model import Model, Operation, applied, apply, contents, new_index
from tests.index.faults.test_steps import BEFORE
from tests.index.faults.trap import Trap, set_trap

PROGRAMS = 2_000 if FULL else 60
SEED = 11
AFTER = Operation("put", (("after", 0, 1), ("d0", 9, 1)))
FOREIGN = tuple(
    Operation("put", tuple((f"f{n}-{i}", n, 1 + i % 2) for i in range(6)), cursor=n)
    for n in range(4)
)
OLDER = BEFORE[:2]
TARGET = "target"


@dataclass
class Told:
    """What a command told its user.

    Attributes:
        done: Each operation that was acknowledged, and the folder it was acknowledged in.
        begun: The operation that was going on at the end.
        seen: What was read.
    """

    done: list[tuple[Identity, Operation]] = field(default_factory=list)
    begun: Operation | None = None
    seen: list[Model] = field(default_factory=list)


Command = Callable[[Yard, Told], None]


def changing(*operations: Operation) -> Command:
    """Change an index by some commits of one writer."""

    def command(yard: Yard, told: Told) -> None:
        store = IndexStore.open(yard.live)
        with store.writer() as writer:
            for told.begun in operations:
                apply(writer, told.begun)
                told.done.append((store.snapshot.folder.identity, told.begun))
            told.begun = None

    return command


def repair(yard: Yard, told: Told) -> None:
    Index.open(yard.live).repair()


def set_lexical(yard: Yard, told: Told) -> None:
    IndexStore.open(yard.live)
    with IndexStore.open(yard.live).writer() as writer:
        writer.set_lexical(LexicalSettings(language="english"))


def backup(yard: Yard, told: Told) -> None:
    IndexStore.open(yard.live).backup_to(yard.root / TARGET)
    told.seen.append(contents(IndexStore.open(yard.root / TARGET).snapshot))


def check_it(yard: Yard, told: Told) -> None:
    check(yard.live)


def read(yard: Yard, told: Told) -> None:
    store = IndexStore.open(yard.live)
    told.seen.append(contents(store.snapshot))
    store.refresh()
    told.seen.append(contents(store.snapshot))


def build(yard: Yard, told: Told) -> None:
    Index.build(yard.root / "private" / "source.jsonl", out=yard.live, model="hashing:8")


def tune(yard: Yard, told: Told) -> None:
    tune_index(IndexStore.open(yard.live), TuneSettings(k=2, n_queries=4))


COMMANDS: dict[str, Command] = {
    "add": changing(*(Operation("put", ((f"n{n}", 0, 2), (f"m{n}", 1, 1))) for n in range(3))),
    "upsert": changing(
        Operation("put", (("d0", 1, 1), ("e1", 1, 3))), Operation("put", (("d0", 2, 2),))
    ),
    "delete": changing(
        Operation("delete", doc_ids=("d3", "e2")), Operation("delete", doc_ids=("d4",))
    ),
    "settle": changing(Operation("delete", doc_ids=("d5", "d6")), Operation("settle")),
    "compact": changing(Operation("compact"), Operation("put", (("n", 0, 1),))),
    "repair": repair,
    "set_lexical": set_lexical,
    "backup": backup,
    "build": build,
    "tune": tune,
    "check": check_it,
    "read": read,
}

figures: Counter[str] = Counter()
happened: Counter[str] = Counter()
given: Counter[str] = Counter()


class Bases:
    """What every program starts from, made once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.old = new_index(root / "live", BEFORE)
        self.foreign = new_index(root / "foreign", FOREIGN)
        self.older = new_index(root / "backup", OLDER)
        for name in ("ann/000005.faiss", "del/000009.npy", "seg/000040.vec.npy"):
            (root / "foreign" / name).write_bytes(b"not named by its manifest")
        for file in (root / "foreign").rglob("*"):
            os.utime(file, (0, 0))  # old enough to be removed by who takes them for its own
        (root / "private").mkdir()
        (root / "private" / "note").write_bytes(b"mine")
        rows = [{"_id": f"b{n}", "text": f"row {n}"} for n in range(5)]
        (root / "private" / "source.jsonl").write_text("\n".join(map(json.dumps, rows)))
        self.steps: dict[str, int] = {}

    def yard(self, path: Path) -> Yard:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.root, path)
        return Yard(path)

    def models_of(self, yard: Yard, place: Path) -> list[Model]:
        """What an index may have held at first."""
        if place == yard.real:
            return [self.old, self.older] if yard.rolled_back else [self.old]
        return [self.foreign if yard.others[place] == yard.foreign else self.older]


@pytest.fixture
def bases(fast_path: Path) -> Bases:
    (fast_path / "base").mkdir()
    return Bases(fast_path / "base")


def run(command: Command, yard: Yard, told: Told, trap: Trap) -> BaseException | None:
    with warnings.catch_warnings(), set_trap(trap):
        warnings.simplefilter("ignore")  # derived files that are gone are told of, rightly
        try:
            command(yard, told)
        except SbertSearchError as error:
            return error
    return None


def steps_of(bases: Bases, path: Path, name: str) -> int:
    """Count the steps of a command to which nothing happens."""
    if name not in bases.steps:
        trap = Trap(0, lambda: None)
        yard = bases.yard(path)
        prepare(name, yard)
        assert run(COMMANDS[name], yard, Told(), trap) is None
        bases.steps[name] = trap.steps
    return bases.steps[name]


def prepare(name: str, yard: Yard) -> None:
    """Give a command something to do."""
    if name == "repair":
        next((yard.live / "lex").iterdir()).unlink()
    if name == "build":
        shutil.rmtree(yard.live)


def assert_built(yard: Yard, told: Told) -> None:
    """The same command ends what is where it was begun, unless something strange is there now."""
    for place, model in yard.others.items():
        found, meant = (contents(IndexStore.open(path).snapshot) for path in (place, model))
        assert found == meant
    if yard.real != yard.live:
        return
    try:
        build(yard, told)
    except IndexStoreError:
        return
    documents = IndexStore.open(yard.live).snapshot.iter_documents()
    assert sorted(document.doc_id for document in documents) == [f"b{n}" for n in range(5)]
    # A sub-folder replaced before its first access has the derived files until it is taken away.
    Index.open(yard.live).repair()
    assert check(yard.live).problems == ()


def assert_nothing_lost(bases: Bases, yard: Yard, told: Told) -> None:
    """Compare every index, wherever it is now, with what was acknowledged in it."""
    for place in [yard.real, *yard.others]:
        if place is None:
            continue
        may = bases.models_of(yard, place)
        for identity, operation in told.done:
            if identity == identity_of(place.stat()):
                may = [applied(model, operation) for model in may]
        may += [applied(model, told.begun) for model in may if told.begun]
        may += [bases.older] if yard.rolled_back else []
        assert contents(IndexStore.open(place).snapshot) in may
        Index.open(place).repair()
        assert check(place).problems == ()
        with IndexStore.open(place).writer() as writer:
            apply(writer, AFTER)
        assert contents(IndexStore.open(place).snapshot) in [applied(m, AFTER) for m in may]


@pytest.mark.thorough
@pytest.mark.timeout(7_200)
def test_folders_that_change_while_a_command_works(bases: Bases, fast_path: Path) -> None:
    rng = random.Random(SEED)
    pairs = [(command, happening) for command in COMMANDS for happening in HAPPENINGS]
    rng.shuffle(pairs)
    for program in range(PROGRAMS):
        name, happening = pairs[program % len(pairs)]
        at_step = rng.randint(1, steps_of(bases, fast_path / "yard", name))
        one_program(bases, fast_path / "yard", name, happening, at_step)
    keep_result(
        "index_folders",
        {
            **figures,
            "commands": given,
            "kinds_of_changes": happened,
            "seed": SEED,
            "changed_outside": 0,
            "acknowledged_documents_lost": 0,
            "refusals_without_a_name": 0,
        },
    )


def happen(yard: Yard, happening: str) -> None:
    """Do it, as far as there is a folder to do it to."""
    with contextlib.suppress(FileNotFoundError):
        if yard.live.exists():
            HAPPENINGS[happening](yard)


def one_program(bases: Bases, path: Path, name: str, happening: str, at_step: int) -> None:
    yard, told = bases.yard(path), Told()
    prepare(name, yard)
    before = yard.untouchable()
    trap = Trap(at_step, lambda: happen(yard, happening))
    where = f"{name}, {happening} before step {at_step}"
    raised = run(COMMANDS[name], yard, told, trap)
    assert yard.untouchable() == before, where
    assert not list(yard.root.glob(".*")), where
    if raised:
        assert not (yard.root / TARGET).exists(), where
    yard.undo()
    models = [bases.old, bases.older, bases.foreign]
    try:
        assert all(model in models for model in told.seen)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name == "build":
                assert_built(yard, told)
            else:
                assert_nothing_lost(bases, yard, told)
    except (AssertionError, SbertSearchError) as error:
        raise AssertionError(f"{where}; raised {raised!r}") from error
    assert yard.untouchable() == before, where
    figures["programs"] += 1
    figures["struck"] += trap.sprung
    figures["refused_by_name"] += raised is not None
    happened[happening] += 1
    given[name] += 1
