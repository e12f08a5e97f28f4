"""Which way is the fastest: chosen from known times, measured in turns, kept and checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sbert_search.base import verdicts
from sbert_search.base.cache import cache_folder
from sbert_search.base.verdicts import (
    Candidate,
    Timed,
    Verdict,
    choose,
    measure,
    stored_verdicts,
    verdict_on,
)


class Clock:
    """A clock that moves by what work costs, and a list of the work done."""

    def __init__(self) -> None:
        self.now, self.done = 0.0, list[str]()

    def perf_counter(self) -> float:
        return self.now

    def way(
        self, name: str, *a_token: float, probe: float | None = None
    ) -> Callable[[], Candidate]:
        """Make a way whose rounds take these seconds for a token; the last one is repeated."""
        rounds = list(a_token)

        def work(tokens: int, cost: Callable[[], float], kind: str) -> Timed:
            def run() -> None:
                self.done.append(f"{name} {kind}")
                self.now += tokens * cost()

            return Timed(run, tokens)

        def next_round() -> float:
            return rounds.pop(0) if len(rounds) > 1 else rounds[0]

        small = a_token[-1] if probe is None else probe
        trials = [work(10, next_round, "sentences"), work(10, next_round, "passages")]
        return lambda: Candidate(work(2, lambda: small, "probe"), trials)


@pytest.fixture(autouse=True)
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(verdicts, "_measured", {})
    made = Clock()
    monkeypatch.setattr(verdicts, "time", made)
    return made


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ({"fp32": 1.0, "bf16": 2.0}, "fp32"),
        ({"fp32": 2.0, "bf16": 1.0}, "bf16"),
        ({"fp32": 1.0, "bf16": 1.0}, "fp32"),
        ({"fp32": 1.05, "bf16": 1.0}, "fp32"),  # 5 % are not enough
        ({"fp32": 1.06, "bf16": 1.0}, "bf16"),
        ({"fp32": 3.0, "bf16": 1.04, "int8": 1.0}, "bf16"),  # the more exact one of the two fast
        ({"fp32": 3.0, "bf16": 2.0, "int8": 1.0}, "int8"),
        ({"fp32": 1.0}, "fp32"),
    ],
)
def test_the_most_exact_way_within_5_percent_is_chosen(
    costs: dict[str, float], expected: str
) -> None:
    assert choose(costs) == expected


def test_costs_are_microseconds_a_token_of_the_fastest_round(clock: Clock) -> None:
    # The first two runs warm up. Then each round takes first sentences and then passages.
    ways = {"fp32": clock.way("fp32", 9, 9, 5, 7, 4), "bf16": clock.way("bf16", 9, 9, 8, 3)}
    costs = measure(ways)
    assert costs == {"fp32": pytest.approx(4e6), "bf16": pytest.approx(3e6)}


def test_rounds_alternate_and_their_number_is_bounded(clock: Clock) -> None:
    measure({"fp32": clock.way("fp32", 1e-6), "bf16": clock.way("bf16", 2e-6)})
    rounds = clock.done[8:]  # two probes and one run of each trial warm up
    assert rounds[:4] == ["fp32 sentences", "fp32 passages", "bf16 sentences", "bf16 passages"]
    assert len(rounds) == 4 * verdicts.ROUNDS


def test_a_machine_without_two_equal_rounds_is_measured_longer_but_not_for_ever(
    clock: Clock,
) -> None:
    falling = [1.2**-n * 1e-4 for n in range(100)]
    measure({"fp32": clock.way("fp32", *falling), "bf16": clock.way("bf16", *falling)})
    assert len(clock.done) == 8 + 4 * verdicts.MOST_ROUNDS


def test_a_slow_machine_does_the_fewest_rounds(clock: Clock) -> None:
    measure({"fp32": clock.way("fp32", 1.0), "bf16": clock.way("bf16", 1.0)})
    assert len(clock.done) == 8 + 4 * verdicts.FEWEST_ROUNDS


def test_a_reference_kernel_is_left_after_its_probe(clock: Clock) -> None:
    ways = {"fp32": clock.way("fp32", 1.0), "bf16": clock.way("bf16", 0.5, probe=3.1)}
    costs = measure(ways)
    assert choose(costs) == "fp32"
    assert costs["bf16"] == pytest.approx(3.1e6)
    assert clock.done == ["fp32 probe", "fp32 probe", "bf16 probe", "bf16 probe"]


def test_even_the_most_exact_way_may_be_hopeless(clock: Clock) -> None:
    ways = {"fp32": clock.way("fp32", 4.0), "bf16": clock.way("bf16", 1.0)}
    assert choose(measure(ways)) == "bf16"


def test_a_way_that_torch_refuses_is_no_candidate(clock: Clock) -> None:
    def refuses() -> Candidate:
        raise RuntimeError("no kernel")

    assert list(measure({"fp32": clock.way("fp32", 1.0), "bf16": refuses})) == ["fp32"]
    with pytest.raises(RuntimeError, match="no kernel"):
        measure({"fp32": refuses})


def ask(clock: Clock, shapes: object = "shapes", bf16: float = 1.0) -> Verdict:
    ways = {"fp32": clock.way("fp32", 2.0), "bf16": clock.way("bf16", bf16)}
    return verdict_on("precision of tests", shapes, "a layer", ways)


def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask as another process does."""
    monkeypatch.setattr(verdicts, "_measured", {})


def test_a_verdict_is_kept_with_its_figures(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask(clock)
    assert first.choice == "bf16"
    assert first.costs == pytest.approx({"fp32": 2e6, "bf16": 1e6})
    assert str(first).startswith("bf16, 2.00 times as fast as fp32, measured on ")
    anew(monkeypatch)
    done = len(clock.done)
    assert ask(clock, bf16=9.0) == first
    assert len(clock.done) == done
    assert ask(clock, "other shapes", bf16=9.0).choice == "fp32"
    assert sorted(verdict.choice for verdict in stored_verdicts()) == ["bf16", "fp32"]


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"])
def test_a_switch_of_the_environment_asks_anew(
    name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(clock).choice == "bf16"
    monkeypatch.setenv(name, "AVX2")
    assert ask(clock, bf16=9.0).choice == "fp32"


def test_another_number_of_threads_asks_anew(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(clock).choice == "bf16"
    monkeypatch.setattr("torch.get_num_threads", lambda: 77)
    other = ask(clock, bf16=9.0)
    assert (other.choice, other.threads) == ("fp32", 77)


def _changed(**values: object) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({**json.loads(data), **values}).encode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-9],
        lambda data: b"[]",
        lambda data: b'"bf16"',
        lambda data: data.replace(b"2000000.0", b"NaN"),
        _changed(choice="int8"),
        _changed(choice="fp32"),  # which the figures do not support
        _changed(costs={"bf16": 1.0}),
        _changed(costs={"fp32": 0.0, "bf16": 1.0}),
        _changed(costs={"fp32": 9.0, "bf16": 8.0, "int8": 7.0}, choice="bf16"),
        _changed(more=1),
    ],
)
def test_a_damaged_verdict_is_measured_anew(
    damage: Callable[[bytes], bytes], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(clock)
    (file,) = cache_folder(verdicts.FOLDER).iterdir()
    file.write_bytes(damage(file.read_bytes()))
    anew(monkeypatch)
    done = len(clock.done)
    assert ask(clock).choice == first.choice
    assert len(clock.done) > done
    assert json.loads(file.read_bytes())["choice"] == "bf16"


def test_without_a_writable_cache_the_verdict_holds_for_the_process(
    clock: Clock, tmp_path: Path
) -> None:
    (tmp_path / "sbert-search").write_text("a file where the folder would be")
    assert ask(clock).choice == "bf16"
    assert ask(clock, bf16=9.0).choice == "bf16"
    assert stored_verdicts() == []


def test_verdicts_are_listed_without_what_is_damaged(clock: Clock) -> None:
    ask(clock)
    (cache_folder(verdicts.FOLDER) / "x.json").write_text("{")
    (cache_folder(verdicts.FOLDER) / "y.json").write_text("[]")
    (cache_folder(verdicts.FOLDER) / "z.json").write_text("{}")
    assert [verdict.work for verdict in stored_verdicts()] == ["a layer"]
