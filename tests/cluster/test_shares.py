"""How the machines of a cluster are divided between workers."""

from __future__ import annotations

import pytest

from sbert_search.cluster.connection import Machine, Share, share_of
from sbert_search.errors import ConfigError


def cpus(*counts: int) -> list[Machine]:
    return [Machine(f"host{n}", count, 0) for n, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("machines", "workers", "share"),
    [
        (cpus(2, 2, 2), None, Share(3, 2, 0)),  # one for each machine, with all its CPUs
        (cpus(0, 4), None, Share(1, 4, 0)),  # a machine without CPUs computes nothing
        (cpus(8), 3, Share(3, 2, 0)),
        (cpus(8, 2), 2, Share(2, 4, 0)),  # both on the large machine
        (cpus(8, 2), 5, Share(5, 2, 0)),  # four and one
        (cpus(1, 1), 1, Share(1, 1, 0)),
    ],
)
def test_each_worker_gets_as_many_cpus_as_fit(
    machines: list[Machine], workers: int | None, share: Share
) -> None:
    assert share_of(machines, workers, on_gpu=False) == share


def test_the_cpus_of_a_worker_can_be_given() -> None:
    assert share_of(cpus(4, 4), None, on_gpu=False, cpus=1) == Share(2, 1, 0)
    assert share_of(cpus(4, 4), 4, on_gpu=False, cpus=2) == Share(4, 2, 0)
    with pytest.raises(ConfigError, match="too few CPUs for 3 workers"):
        share_of(cpus(4, 4), 3, on_gpu=False, cpus=3)
    with pytest.raises(ConfigError, match="cpus is 0"):
        share_of(cpus(4), None, on_gpu=False, cpus=0)


def test_on_gpus_there_is_a_worker_for_each_gpu() -> None:
    machines = [Machine("a", 16, 2), Machine("b", 8, 1), Machine("c", 4, 0)]
    assert share_of(machines, None, on_gpu=True) == Share(3, 8, 1)
    assert share_of(machines, 2, on_gpu=True) == Share(2, 8, 1)
    with pytest.raises(ConfigError, match=r"The cluster has 3 GPUs.*fewer workers"):
        share_of(machines, 4, on_gpu=True)


def test_a_worker_on_a_gpu_needs_a_cpu_beside_it() -> None:
    machines = [Machine("a", 2, 4), Machine("b", 8, 1), Machine("c", 64, 0)]
    assert share_of(machines, 3, on_gpu=True) == Share(3, 1, 1)  # two on a, and one on b
    assert share_of(machines, 2, on_gpu=True) == Share(2, 2, 1)
    message = r"too few CPUs for 5 workers with a GPU each: a has 2 CPUs and 4 GPUs"
    with pytest.raises(ConfigError, match=message):
        share_of(machines, None, on_gpu=True)
    with pytest.raises(ConfigError, match="for 2 workers of 4 CPUs with a GPU each"):
        share_of(machines, 2, on_gpu=True, cpus=4)
    with pytest.raises(ConfigError, match="for 1 workers with a GPU each: z has 0 CPUs"):
        share_of([Machine("z", 0, 1)], None, on_gpu=True)


def test_a_remedy_names_no_option_that_was_not_given() -> None:
    few = [Machine("a", 1, 1), Machine("b", 0, 0)]
    for machines, workers, on_gpu, size, remedy in (
        (few, None, False, 2, "Pass fewer cpus, or connect more machines with `ray start"),
        (few, 2, False, None, "Pass fewer workers, or connect more machines with `ray"),
        (few[1:], None, False, None, "b has 0 CPUs and 0 GPUs. Connect more machines with"),
        (few, 2, True, None, "Pass fewer workers, or device='cpu'."),
        (few[1:], None, True, None, "b has 0 CPUs and 0 GPUs. Pass device='cpu'."),
    ):
        with pytest.raises(ConfigError) as raised:
            share_of(machines, workers, on_gpu=on_gpu, cpus=size)
        assert remedy in str(raised.value)
        assert ("fewer workers" in str(raised.value)) == (workers is not None)


def test_too_few_machines_are_an_error_that_names_them() -> None:
    with pytest.raises(ConfigError, match=r"too few CPUs for 4 workers: host0 has 2 CPUs"):
        share_of(cpus(2, 1), 4, on_gpu=False)
    with pytest.raises(ConfigError, match="too few CPUs"):
        share_of([], None, on_gpu=False)
    with pytest.raises(ConfigError, match="workers is 0"):
        share_of(cpus(2), 0, on_gpu=False)
