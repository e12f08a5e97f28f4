import pytest

from sbert_search.lab.variants.recipe import (
    GUESSED,
    GUESSED_RATE,
    Piece,
    Result,
    estimator,
    operations,
)

BERT, DEBERTA = Piece("pretrain", "bert", 0), Piece("pretrain", "deberta", 0)
RAW = Piece("raw", "bert", 0, "tokens")


def test_operations_by_hand() -> None:
    # 2 layers of 4 * 9 + 2 * 3 * 5 = 66 weights, and 0.15 * 100 * 3 = 45 for the output.
    assert operations(10, 2, 3, 5, 100) == pytest.approx(6 * 10 * (132 + 45))


def test_before_anything_was_measured_operations_decide() -> None:
    estimate = estimator([BERT, DEBERTA, RAW], lambda piece: None, 10 * GUESSED_RATE)
    assert estimate(BERT) == pytest.approx(10)
    assert estimate(DEBERTA) == pytest.approx(20)
    assert estimate(RAW) == pytest.approx(10 * GUESSED["raw"])


def test_finished_pieces_decide_for_their_part() -> None:
    results: dict[Piece, Result] = {
        DEBERTA: {"seconds": 60.0, "figures": {}},
        Piece("raw", "bert", 0, "seconds"): {"seconds": 0.0, "figures": {}},  # a copy
    }
    estimate = estimator([*results, BERT, RAW], results.get, 1.0)
    assert estimate(BERT) == pytest.approx(30)
    assert estimate(RAW) == pytest.approx(30 * GUESSED["raw"])
