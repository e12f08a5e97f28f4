"""The section of docs/scale.md about a billion documents, and the simulation behind it."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.cli.process import ROOT

BENCHMARKS = ROOT / "benchmarks"
SCALE = ROOT / "docs" / "scale.md"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("cluster_simulation", "scale_page", "scale_costs", "bench_large")
    return {name: importlib.import_module(name) for name in names}


def lives(*hours: float) -> Iterator[float]:
    """A machine fails after so many hours; the last one that replaces it does not."""
    return chain(hours, repeat(math.inf))


@pytest.mark.thorough
def test_the_page_is_what_both_scripts_write(modules: dict[str, ModuleType]) -> None:
    results = BENCHMARKS / "results"
    costs, large = modules["scale_costs"], modules["bench_large"]
    record = json.loads(costs.newest(results, "bench_large").read_text())
    sizes = large.page({name: figure["value"] for name, figure in record["figures"].items()})
    written = f"{sizes}\n{costs.section(costs.measured(results))}"
    assert SCALE.read_text() == written, "run benchmarks/scale_costs.py"


def test_each_script_replaces_its_own_part_of_the_page(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    pages, page = modules["scale_page"], tmp_path / "scale.md"
    pages.write_sizes(page, "# Sizes\n\nold\n")
    pages.write_costs(page, f"{pages.COSTS}\n\nold\n")
    pages.write_sizes(page, "# Sizes\n\nnew\n")
    assert page.read_text() == f"# Sizes\n\nnew\n\n{pages.COSTS}\n\nold\n"
    pages.write_costs(page, f"{pages.COSTS}\n\nnew\n")
    assert page.read_text() == f"# Sizes\n\nnew\n\n{pages.COSTS}\n\nnew\n"


def test_costs_of_a_known_speed(modules: dict[str, ModuleType]) -> None:
    way = modules["scale_costs"].Way("a machine", 1e9 / 3600 / 100, 0.5)  # 100 h for all
    assert way.machine_hours == pytest.approx(100)
    assert way.dollars == pytest.approx(50)
    assert way.machines == 5  # 100 h in 24 h


@pytest.mark.parametrize(("machines", "shards"), [(1, 1), (4, 8), (4, 9), (7, 3), (260, 1000)])
def test_without_faults_the_time_is_known(
    modules: dict[str, ModuleType], machines: int, shards: int
) -> None:
    simulation = modules["cluster_simulation"]
    cluster = simulation.Cluster(
        machines=machines, shards=shards, shard_hours=2.5, commit_hours=0.1, restart_hours=1.0
    )
    times = simulation.finishing_times(cluster, trials=3, seed=0)
    assert times == pytest.approx(math.ceil(shards / machines) * 2.5)


def test_a_failure_costs_the_work_since_the_last_commit_and_the_restart(
    modules: dict[str, ModuleType],
) -> None:
    simulation = modules["cluster_simulation"]
    cluster = simulation.Cluster(
        machines=1, shards=1, shard_hours=10.0, commit_hours=1.0, restart_hours=0.5
    )

    def hours(*failures: float) -> float:
        time: float = simulation.finishing_time(cluster, [1.0], [lives(*failures)])
        return time

    assert hours() == 10.0
    assert hours(3.5) == 3.5 + 0.5 + 7.0  # 3 of 10 h are committed
    assert hours(3.5, 2.25) == 3.5 + 0.5 + 2.25 + 0.5 + 5.0
    assert hours(0.75) == 0.75 + 0.5 + 10.0  # nothing is committed
    assert hours(10.5) == 10.0  # after the end


def test_free_machines_take_the_shards_of_slow_ones(modules: dict[str, ModuleType]) -> None:
    simulation = modules["cluster_simulation"]

    def hours(shards: int) -> float:
        cluster = simulation.Cluster(
            machines=2, shards=shards, shard_hours=1.0, commit_hours=1.0, restart_hours=0.0
        )
        time: float = simulation.finishing_time(cluster, [1.0, 3.0], [lives(), lives()])
        return time

    assert hours(5) == 4.0  # the first machine does 4 shards in 4 h, the slow one 1 in 3 h
    assert hours(6) == 6.0  # the slow one begins the sixth after 3 h


def test_the_mean_of_random_failures_is_that_of_the_formula(
    modules: dict[str, ModuleType],
) -> None:
    """A segment of c hours takes (1 / rate + restart) * (exp(rate * c) - 1) on average."""
    simulation = modules["cluster_simulation"]
    segments, mean, restart, hours = 4, 5.0, 0.5, 2.0
    cluster = simulation.Cluster(
        machines=1,
        shards=1,
        shard_hours=segments * hours,
        commit_hours=hours,
        restart_hours=restart,
        failure_hours=mean,
    )
    times = simulation.finishing_times(cluster, trials=4000, seed=1)
    expected = segments * (mean + restart) * (math.exp(hours / mean) - 1)
    error = times.std() / math.sqrt(len(times))
    assert abs(times.mean() - expected) < 4 * error
    assert error < 0.02 * expected
    again = simulation.finishing_times(cluster, trials=4000, seed=1)
    assert np.array_equal(times, again)
