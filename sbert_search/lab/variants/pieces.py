"""The pieces of work of a comparison, such as a pre-training or a measurement of its model.

Each finished piece is a JSON file, so an interrupted comparison can resume.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from sbert_search.base.files import replace_file
from sbert_search.lab.variants.recipe import Measure, VariantsRecipe

Budget = Literal["tokens", "seconds"]
Part = Literal["pretrain"] | Measure
BUDGETS: tuple[Budget, ...] = ("tokens", "seconds")


class Reading(TypedDict):
    """A checkpoint of a pre-training at which its model can be measured.

    ``figures`` has the losses and metrics that the pre-training computed on the held-out text.
    """

    step: int
    tokens: int
    processor_seconds: float
    figures: dict[str, float]


class Result(TypedDict, total=False):
    """The content of a piece's file.

    Attributes:
        seconds: Seconds that the piece took, for estimates; 0 if its figures were copied from the
            piece of the other budget.
        figures: Figures of the table, by name.
        readings: Checkpoints of a pre-training; other pieces lack this key.
        step: Step of the checkpoint that was measured; a pre-training lacks this key.
        cpu: Model of the CPU on which the piece ran.
    """

    seconds: float
    figures: dict[str, float]
    readings: list[Reading]
    step: int
    cpu: str


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of work.

    Attributes:
        part: pretrain, or a measurement of the pre-trained model: raw (without fine-tuning), sts
            (after NLI and STSb), pairs (after in-batch training on pairs) or classify (as a
            classifier).
        family: Family of the model, such as bert.
        seed: Seed of the run.
        budget: Budget at which the model is measured; None: the piece is the pre-training.
    """

    part: Part
    family: str
    seed: int
    budget: Budget | None = None

    @property
    def name(self) -> str:
        """Name of the piece's file."""
        return "-".join([self.family, str(self.seed), *filter(None, [self.budget]), self.part])

    @property
    def training(self) -> Piece:
        """The pre-training that this piece needs."""
        return Piece("pretrain", self.family, self.seed)


class Pieces:
    """The results of finished pieces in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def found(self, piece: Piece) -> Result | None:
        """Return the result of a piece, or None if it is not finished."""
        file = self.folder / f"{piece.name}.json"
        if not file.exists():
            return None
        result: Result = json.loads(file.read_bytes())
        return result

    def keep(self, piece: Piece, result: Result) -> None:
        """Write the result of a piece; the piece then counts as finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(result, indent=1, allow_nan=False) + "\n"
        replace_file(self.folder / f"{piece.name}.json", content.encode())


def plan(recipe: VariantsRecipe, seeds: int) -> list[Piece]:
    """List all pieces, seed by seed: the pre-trainings, then the measurements at each budget."""
    return [piece for seed in range(seeds) for piece in _of_seed(recipe, seed)]


def _of_seed(recipe: VariantsRecipe, seed: int) -> Iterator[Piece]:
    measures: Mapping[Measure, object] = {
        "raw": True,
        "sts": recipe.nli,
        "pairs": recipe.pairs,
        "classify": recipe.classifier,
    }
    for family in recipe.ordered:
        yield Piece("pretrain", family, seed)
    for budget in BUDGETS:
        for family in recipe.ordered:
            for measure, wanted in measures.items():
                if wanted and (budget == "tokens" or measure in recipe.at_seconds):
                    yield Piece(measure, family, seed, budget)


def at_budget(
    readings: Mapping[str, list[Reading]], family: str, budget: Budget, seconds: float | None
) -> Reading:
    """Choose the checkpoint of a family at a budget.

    Args:
        readings: Checkpoints of each family of one seed, in order of their steps.
        family: The family.
        budget: ``tokens``: the last checkpoint. ``seconds``: the last checkpoint within the limit
            of the argument ``seconds``; the first checkpoint if all are later.
        seconds: Limit in seconds of processor time; None: the time of the family whose
            pre-training took the least processor time.
    """
    own = readings[family]
    if budget == "tokens":
        return own[-1]
    if seconds is None:
        seconds = min(each[-1]["processor_seconds"] for each in readings.values())
    return [own[0], *(each for each in own if each["processor_seconds"] <= seconds)][-1]
