"""When a cluster has worked through all shards, if machines are slow or fail.

A shard is a part of the documents that one machine embeds and indexes. A machine that is free takes
the next shard. It commits its work at intervals. When a machine fails, another machine takes its
place and goes on with the shard from the last commit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

NEVER = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Machines, their work and their faults; all times in hours.

    Attributes:
        machines: Number of machines.
        shards: Number of shards.
        shard_hours: Time that a machine needs for a shard if it is neither slow nor fails.
        commit_hours: Time between two commits of a shard.
        restart_hours: Time from a failure until a machine goes on with the shard.
        failure_hours: Mean time that a machine runs until it fails.
        slow_share: Share of the machines that are slow.
        slow_factor: Time that a slow machine needs, divided by that of the others.
    """

    machines: int
    shards: int
    shard_hours: float
    commit_hours: float
    restart_hours: float
    failure_hours: float = NEVER
    slow_share: float = 0.0
    slow_factor: float = 1.0


def finishing_times(cluster: Cluster, *, trials: int, seed: int) -> NDArray[np.float64]:
    """Simulate a cluster; return the hours until all shards are done in each trial, (trials,)."""
    draw = np.random.default_rng(seed)
    times = np.empty(trials)
    for trial in range(trials):
        slow = draw.random(cluster.machines) < cluster.slow_share
        factors = np.where(slow, cluster.slow_factor, 1.0).tolist()
        lives = [_lives(cluster.failure_hours, draw) for _ in factors]
        times[trial] = finishing_time(cluster, factors, lives)
    return times


def finishing_time(
    cluster: Cluster, factors: Sequence[float], lives: Sequence[Iterator[float]]
) -> float:
    """Return the hours until all shards are done.

    Args:
        cluster: The cluster; its distributions of faults are not used.
        factors: For each machine, the time that it needs, divided by that of a usual machine.
        lives: For each machine, how long it runs until it fails, then how long the machine that
            replaces it runs, and so on.
    """
    left = [next(each) for each in lives]  # hours until the machine fails
    free = [(0.0, machine) for machine in range(len(factors))]  # a heap by time
    end = 0.0
    for _ in range(cluster.shards):
        now, machine = heapq.heappop(free)
        needed = cluster.shard_hours * factors[machine]
        while needed > left[machine]:
            committed = left[machine] // cluster.commit_hours * cluster.commit_hours
            needed -= committed
            now += left[machine] + cluster.restart_hours
            left[machine] = next(lives[machine])
        now, left[machine] = now + needed, left[machine] - needed
        end = max(end, now)
        heapq.heappush(free, (now, machine))
    return end


def _lives(mean: float, draw: np.random.Generator) -> Iterator[float]:
    if mean == NEVER:
        yield from repeat(NEVER)
    while True:
        yield float(draw.exponential(mean))
