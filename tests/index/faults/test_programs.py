"""Random programs of operations, faults among them, against a dict and brute force."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbert_search.base import files
from sbert_search.errors import IndexStoreError
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.faults import FAULTS, FULL, FaultDisk, Killed, keep_result
from tests.index.faults.model import (
    Model,
    Operation,
    applied,
    apply,
    assert_holds,
    contents,
    new_index,
)

PROGRAMS = 2000 if FULL else 300
Documents = tuple[tuple[str, int, int], ...]

IDS = st.sampled_from([f"d{i}" for i in range(8)])
DOCUMENTS = st.lists(
    st.tuples(IDS, st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=5
).map(tuple)
DISKS = st.builds(FaultDisk, st.integers(1, 40), st.sampled_from(FAULTS))

figures = {"programs": 0, "operations": 0, "faults_that_struck": 0}


class IndexProgram(RuleBasedStateMachine):
    """One index, changed by drawn operations; after each it must equal the model."""

    @initialize()
    def begin(self) -> None:
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = Path(tempfile.mkdtemp(dir=memory))
        self.model: Model = new_index(self.folder / "i")
        self.store = IndexStore.open(self.folder / "i")
        figures["programs"] += 1

    @rule(documents=DOCUMENTS)
    def put(self, documents: Documents) -> None:
        self.run(Operation("put", documents))

    @rule(doc_ids=st.lists(IDS, min_size=1, max_size=4, unique=True).map(tuple))
    def delete(self, doc_ids: tuple[str, ...]) -> None:
        self.run(Operation("delete", doc_ids=doc_ids))

    @rule()
    def compact(self) -> None:
        self.run(Operation("compact"))

    @rule()
    def settle(self) -> None:
        self.run(Operation("settle"))

    @rule()
    def snapshot(self) -> None:
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        with self.store.writer() as writer:
            writer.backup_to(copy)
        assert_holds(IndexStore.open(copy).snapshot, self.model)

    @rule()
    def reopen(self) -> None:
        self.store = IndexStore.open(self.folder / "i")

    @rule()
    def verify(self) -> None:
        assert check(self.folder / "i").problems == ()

    @rule(documents=DOCUMENTS, disk=DISKS)
    def put_with_a_fault(self, documents: Documents, disk: FaultDisk) -> None:
        self.run_with_a_fault(Operation("put", documents), disk)

    @rule(disk=DISKS, kind=st.sampled_from(["settle", "compact"]))
    def rewrite_with_a_fault(self, disk: FaultDisk, kind: Literal["settle", "compact"]) -> None:
        self.run_with_a_fault(Operation(kind), disk)

    def run(self, operation: Operation) -> None:
        figures["operations"] += 1
        with self.store.writer() as writer:
            apply(writer, operation)
        self.model = applied(self.model, operation)

    def run_with_a_fault(self, operation: Operation, disk: FaultDisk) -> None:
        figures["operations"] += 1
        try:
            with files.use_disk(disk), self.store.writer() as writer:
                apply(writer, operation)
            self.model = applied(self.model, operation)
        except (Killed, IndexStoreError):
            figures["faults_that_struck"] += 1
            self.store = IndexStore.open(self.folder / "i")
            if list(contents(self.store.snapshot).items()) != list(self.model.items()):
                self.model = applied(self.model, operation)  # it landed, if only as an order

    @invariant()
    def index_equals_model(self) -> None:
        if hasattr(self, "store"):
            assert_holds(self.store.snapshot, self.model)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


@pytest.mark.thorough
@pytest.mark.timeout(3_600)
def test_programs_agree_with_a_dict_and_brute_force() -> None:
    IndexProgram.TestCase.settings = settings(
        max_examples=PROGRAMS,
        stateful_step_count=12,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    IndexProgram.TestCase().runTest()
    assert figures["programs"] >= PROGRAMS
    keep_result("index_programs", {**figures, "seed": "derandomized", "disagreements": 0})
