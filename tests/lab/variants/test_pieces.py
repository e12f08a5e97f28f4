from pathlib import Path

import pytest

from sbert_search.lab.variants.recipe import (
    Piece,
    Pieces,
    Reading,
    Tuning,
    VariantsRecipe,
    at_budget,
    plan,
)


def readings(*seconds: float) -> list[Reading]:
    return [
        Reading(step=n, tokens=100 * n, processor_seconds=each, figures={})
        for n, each in enumerate(seconds, 1)
    ]


RUNS = {"bert": readings(1.0, 2.0, 3.0, 4.0), "deberta": readings(2.0, 4.0, 6.0, 8.0)}


@pytest.mark.parametrize(
    ("family", "budget", "seconds", "step"),
    [
        ("bert", "tokens", None, 4),
        ("deberta", "tokens", 1.0, 4),
        ("bert", "seconds", None, 4),  # the fastest family is read at its end
        ("deberta", "seconds", None, 2),  # at 4 seconds
        ("deberta", "seconds", 3.9, 1),
        ("deberta", "seconds", 0.5, 1),  # before its first checkpoint
        ("bert", "seconds", 100.0, 4),
    ],
)
def test_the_checkpoint_at_a_budget(
    family: str, budget: str, seconds: float | None, step: int
) -> None:
    assert budget in ("tokens", "seconds")
    chosen = at_budget(RUNS, family, "tokens" if budget == "tokens" else "seconds", seconds)
    assert chosen["step"] == step


def test_the_plan_pretrains_all_families_of_a_seed_first() -> None:
    recipe = VariantsRecipe(
        corpus=("a",),
        held_out=("b",),
        tokens=10,
        families=("distilbert", "bert"),
        nli=Tuning(recipe="nli"),
    )
    names = [piece.name for piece in plan(recipe, 2)]
    assert names[:4] == [
        "bert-0-pretrain",
        "distilbert-0-pretrain",
        "bert-0-tokens-raw",
        "bert-0-tokens-sts",
    ]
    assert len(names) == 2 * (2 + 2 * 2 * 2)


def test_the_second_budget_may_have_fewer_measures() -> None:
    recipe = VariantsRecipe(
        corpus=("a",),
        held_out=("b",),
        tokens=10,
        families=("bert",),
        pairs=Tuning(recipe="query-passage"),
        at_seconds=("raw",),
    )
    assert [piece.name for piece in plan(recipe, 1)] == [
        "bert-0-pretrain",
        "bert-0-tokens-raw",
        "bert-0-tokens-pairs",
        "bert-0-seconds-raw",
    ]


def test_results_are_kept(tmp_path: Path) -> None:
    pieces, piece = Pieces(tmp_path / "new"), Piece("raw", "bert", 1, "tokens")
    assert pieces.found(piece) is None
    pieces.keep(piece, {"seconds": 1.5, "figures": {"a": 0.25}, "step": 3})
    assert pieces.found(piece) == {"seconds": 1.5, "figures": {"a": 0.25}, "step": 3}
    assert piece.training == Piece("pretrain", "bert", 1)
