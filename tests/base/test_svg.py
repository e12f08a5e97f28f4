"""Axes and panels: where values lie, which round numbers stand beside them."""

from __future__ import annotations

import re

import pytest

from sbert_search.base.svg import Axis, Panel, document


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis(-0.1648, 0.9978), [0, 0.2, 0.4, 0.6, 0.8]),
        (Axis(1, 17934), [5000, 10000, 15000]),
        (Axis(0, 77), [0, 20, 40, 60]),
        (Axis(1, 7), [1, 2, 3, 4, 5, 6, 7]),
        (Axis(6.138, 6.804), [6.2, 6.4, 6.6, 6.8]),
        (Axis(0, 0.3), [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3]),
        (Axis(0.14, 0.25), [0.14, 0.16, 0.18, 0.2, 0.22, 0.24]),
        (Axis(1, 100, log=True), [1, 10, 100]),
        (Axis(10, 500, log=True), [10, 20, 50, 100, 200, 500]),
        (Axis(1e4, 1e6, log=True), [1e4, 1e5, 1e6]),
        (Axis(310, 450, log=True), [350, 400, 450]),
    ],
)
def test_ticks_are_round_and_on_the_axis(axis: Axis, ticks: list[float]) -> None:
    assert axis.ticks() == ticks


def test_one_value_has_an_axis_around_it() -> None:
    for axis in (Axis.of([3.0]), Axis.of([3.0], log=True)):
        assert axis.low < 3 < axis.high
        assert axis.share(3.0) == pytest.approx(0.5)


@pytest.mark.parametrize("value", [1e16, -3e38, 1e304])
def test_a_huge_value_has_an_axis_with_ticks(value: float) -> None:
    axis = Axis.of([value, value])
    assert axis.low < value < axis.high
    assert len(axis.ticks()) >= 2


def test_logarithms_are_evenly_spaced() -> None:
    axis = Axis(1, 10_000, log=True)
    assert [axis.share(10**power) for power in range(5)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_a_panel_puts_numbers_beside_its_lines() -> None:
    panel = Panel("a < b", Axis(0, 4), Axis(0, 2), 20, 120)
    drawn = document(panel.frame(), 140)
    assert "a &lt; b" in drawn
    middle = re.search(r'd="M70 ([\d.]+)H700" stroke="#ddd"/><text [^>]*>1<', drawn)
    assert middle is not None
    assert float(middle[1]) == panel.place(0, 1)[1] == 70.0
