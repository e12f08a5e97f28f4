import math

import pytest

from sbert_search.base.machine import made_with
from sbert_search.evaluate.metrics.significance import mean_interval
from sbert_search.lab.variants.recipe import Piece, Result
from sbert_search.lab.variants.report import collect, figure, figures_of


def test_a_figure_over_seeds_by_hand() -> None:
    found = figure({0: 0.5, 1: 0.7, 2: 0.9}, {0: 0.4, 1: 0.5, 2: 0.7, 3: 0.0})
    assert found.mean == pytest.approx(0.7)
    assert found.interval == mean_interval([0.5, 0.7, 0.9])
    # Student's half width: t of 2 degrees of freedom, 4.3027, times 0.2 / sqrt(3).
    assert found.interval is not None
    assert found.interval[0] == pytest.approx(0.7 - 4.30265 * 0.2 / math.sqrt(3), abs=1e-4)
    # Seed by seed: 0.1, 0.2, 0.2.
    assert found.difference == pytest.approx(0.5 / 3)
    assert found.difference_interval is not None
    assert found.difference_interval[0] > 0
    assert found.beyond_spread


def test_one_seed_has_no_interval() -> None:
    found = figure({0: 0.5}, {0: 0.4})
    assert (found.interval, found.difference_interval) == (None, None)
    assert found.difference == pytest.approx(0.1)
    assert not found.beyond_spread
    assert figure({1: 0.5}, {0: 0.4}).difference is None


def test_differences_are_from_the_first_family() -> None:
    results = {
        "bert": {0: {"loss": 3.0}, 1: {"loss": 3.2}},
        "electra": {0: {"rtd": 0.2}, 1: {"rtd": 0.2}},
        "albert": {0: {"loss": 3.5}, 1: {"loss": 3.6}},
    }
    table = figures_of(["bert", "electra", "albert"], results)
    assert table["bert"]["loss"].difference is None
    assert "loss" not in table["electra"]
    assert table["electra"]["rtd"].difference is None
    assert table["albert"]["loss"].difference == pytest.approx(0.45)


def test_unfinished_pieces_are_named_and_left_out() -> None:
    reading = {"step": 1, "tokens": 5, "processor_seconds": 2.0, "figures": {}}
    results: dict[Piece, Result] = {
        Piece("pretrain", "bert", 0): {
            "seconds": 1.0,
            "figures": {"parameters": 7},
            "readings": [reading],  # type: ignore[list-item]
        },
        Piece("raw", "bert", 0, "tokens"): {"seconds": 1.0, "figures": {"loss": 3.0}, "step": 1},
    }
    pieces = [*results, Piece("pretrain", "albert", 0), Piece("raw", "bert", 0, "seconds")]
    report = collect({}, ["bert", "albert"], pieces, results.get, None, made_with())
    assert report.missing == ("albert-0-pretrain", "bert-0-seconds-raw")
    assert report.tables["tokens"]["bert"]["loss"].mean == 3.0
    assert report.tables["seconds"] == {"bert": {}, "albert": {}}
    assert report.training["bert"]["parameters"].values == {0: 7}
    assert report.readings["tokens"]["bert"] == {}  # albert of the seed is not finished
