"""Measure which of several ways to compute the same result is the fastest on this machine.

A processor's flags say what it can compute, not how fast: bfloat16 may be twice as fast as float32,
or half as fast. So each way is timed once for a machine, and the verdict is cached.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from sbert_search.base.cache import cache_folder, cached_or_computed, digest_of
from sbert_search.base.processor import cpu, switches
from sbert_search.config import from_mapping, to_mapping
from sbert_search.errors import ConfigError

FOLDER = "verdicts"  # in the user's cache
# A less exact way is chosen only if it is faster than a more exact way by this factor.
GAIN = 1.05
# Each round times all trials once. Only the fastest round of a trial counts, but on a busy machine,
# a few rounds may all be slow. So measuring goes on after `ROUNDS` rounds, until for each trial
# `AGREEING` rounds took at most `NEAR` times as long as its fastest round. Measuring always ends
# after `MOST_ROUNDS` rounds. Once `BUDGET_S` seconds have passed, it ends as soon as there are
# `FEWEST_ROUNDS` rounds.
AGREEING, NEAR = 2, 1.1
FEWEST_ROUNDS, ROUNDS, MOST_ROUNDS = 3, 6, 18
BUDGET_S = 0.25
# A way whose probe takes more than this many times as long as the fastest probe is not timed
# further. For a data type without fast instructions, a library may use a reference kernel, which
# can be a thousand times slower.
HOPELESS = 3.0
_FORMAT = 1  # increase it with every change of what is timed, so that older verdicts are not used

_anew = False
_measured: dict[str, Verdict] = {}  # verdicts of this process, by digest of the key


class Timed(NamedTuple):
    """Work to be timed, and the number of tokens that it processes."""

    run: Callable[[], object]
    tokens: int


class Candidate(NamedTuple):
    """One way to compute: a short probe that shows whether it is `HOPELESS`, and typical work."""

    probe: Timed
    trials: Sequence[Timed]


Candidates = Mapping[str, Callable[[], Candidate]]
"""Functions that prepare each way to compute, by name; the most exact way is the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The chosen way to compute, and the measured times that decided."""

    subject: str  # such as "precision of inference"
    choice: str  # name of the chosen way
    costs: Mapping[str, float]  # microseconds for a token, by name of the way
    work: str  # description of what was timed
    cpu: str
    threads: int

    def __str__(self) -> str:
        rest = {name: cost for name, cost in self.costs.items() if name != self.choice}
        own = self.costs[self.choice]
        compared = ", ".join(f"{cost / own:.2f} times as fast as {n}" for n, cost in rest.items())
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.choice}, {compared or 'the only way'}, measured on {self.cpu} with {threads}"


def choose(costs: Mapping[str, float]) -> str:
    """Return the first, most exact way that takes at most `GAIN` times the time of the fastest."""
    limit = GAIN * min(costs.values())
    return next(name for name, cost in costs.items() if cost <= limit)


def measure(candidates: Candidates) -> dict[str, float]:
    """Time each way to compute; return microseconds for a token, in the order of ``candidates``.

    Each round times all ways, so that a drift of the machine's speed affects all equally; only the
    fastest round counts. Of a `HOPELESS` way, the time of its probe is returned. A way that raises
    a RuntimeError, because torch does not support it, is left out, but not the first way.
    """
    first = next(iter(candidates))
    ready: dict[str, Candidate] = {}
    probed: dict[str, float] = {}
    for name, prepare in candidates.items():
        with suppress(*(() if name == first else (RuntimeError,))):
            made = prepare()
            made.probe.run()  # warms up: threads start, and oneDNN compiles its kernels
            probed[name], ready[name] = _seconds(made.probe.run) / made.probe.tokens, made
    limit = HOPELESS * min(probed.values())
    slow = {name: cost for name, cost in probed.items() if cost > limit}
    ready = {name: made for name, made in ready.items() if name not in slow}
    best = _best_rounds(ready) if len(ready) > 1 else probed
    return {name: 1e6 * (slow | best)[name] for name in probed}


def _best_rounds(ready: Mapping[str, Candidate]) -> dict[str, float]:
    """Return each way's seconds for a token: those of the fastest round of each trial, added up."""
    runs = {
        (name, number): trial.run
        for name, made in ready.items()
        for number, trial in enumerate(made.trials)
    }
    for run in runs.values():
        run()  # warms up for the shapes of this trial
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    start = time.perf_counter()
    for number in range(MOST_ROUNDS):
        late = number >= FEWEST_ROUNDS and time.perf_counter() - start > BUDGET_S
        if late or (number >= ROUNDS and all(map(_agree, seconds.values()))):
            break
        for key, run in runs.items():
            seconds[key].append(_seconds(run))
    return {
        name: sum(min(seconds[name, number]) for number in range(len(made.trials)))
        / sum(trial.tokens for trial in made.trials)
        for name, made in ready.items()
    }


def _agree(seconds: Sequence[float]) -> bool:
    return sum(value <= NEAR * min(seconds) for value in seconds) >= AGREEING


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return max(time.perf_counter() - start, 1e-9)  # a clock may be coarse


@contextmanager
def measured_anew() -> Iterator[None]:
    """Within this context, `verdict_on` always measures, and replaces cached verdicts."""
    global _anew
    _anew = True
    try:
        yield
    finally:
        _anew = False


def verdict_on(subject: str, shapes: object, work: str, candidates: Candidates) -> Verdict:
    """Return the verdict of this machine, from the cache or by measuring.

    ``shapes`` is a JSON value with everything about the model that the verdict depends on.
    """
    key = {"format": _FORMAT, "subject": subject, "shapes": shapes, "machine": machine_key()}
    digest = digest_of(key)
    if _anew or digest not in _measured:
        found = cached_or_computed(
            FOLDER,
            key,
            lambda: to_mapping(_measure(subject, work, candidates)),
            lambda value: not _anew and _is_verdict(value, candidates),
        )
        _measured[digest] = from_mapping(Verdict, found)
    return _measured[digest]


def _measure(subject: str, work: str, candidates: Candidates) -> Verdict:
    import torch

    costs = measure(candidates)
    return Verdict(
        subject=subject,
        choice=choose(costs),
        costs=costs,
        work=work,
        cpu=cpu().title,
        threads=torch.get_num_threads(),
    )


def machine_key() -> dict[str, object]:
    """Return the facts about machine and process that decide the speed, as a JSON object."""
    import torch

    return {
        "cpu": [cpu().title, *cpu().flags],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "switches": switches(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def stored_verdicts() -> list[Verdict]:
    """Return the verdicts in the user's cache, sorted; damaged files are left out."""
    found = []
    for path in cache_folder(FOLDER).glob("*.json"):
        with suppress(OSError, ValueError, ConfigError):
            if isinstance(value := json.loads(path.read_bytes()), dict):
                found.append(from_mapping(Verdict, value))
    return sorted(found, key=lambda verdict: (verdict.subject, verdict.work, verdict.threads))


def _is_verdict(value: object, candidates: Candidates) -> bool:
    """Whether a cached value is a verdict on these candidates whose costs give its choice."""
    if not isinstance(value, dict):
        return False
    try:
        verdict = from_mapping(Verdict, value)
    except ConfigError:
        return False
    costs = {name: verdict.costs[name] for name in candidates if name in verdict.costs}
    return (
        len(costs) == len(verdict.costs)
        and next(iter(candidates)) in costs
        and min(costs.values()) > 0
        and verdict.choice == choose(costs)
    )
