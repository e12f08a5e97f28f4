"""Run a comparison of model families piece by piece."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.processor import cpu
from sbert_search.base.progress import duration, note
from sbert_search.config import to_mapping, to_toml
from sbert_search.errors import ConfigError
from sbert_search.lab.variants.measuring import Measuring
from sbert_search.lab.variants.recipe import (
    BUDGETS,
    TEACHER,
    Piece,
    Pieces,
    Result,
    VariantsRecipe,
    at_budget,
    estimator,
    load_variants,
    operations,
    plan,
    pretrain_recipe,
    with_data,
)
from sbert_search.lab.variants.report import VariantsReport, collect, write_variants
from sbert_search.train.loop.log import LOG


class PlannedPiece(TypedDict):
    """A piece of a comparison."""

    piece: str
    seconds: float | None  # estimated; None: finished


class VariantsOptions(TypedDict, total=False):
    """Options of `analyze_variants`.

    Attributes:
        data: Folder of the data sets, for which ``@/`` stands in the recipe; default "data".
        seeds: Number of seeds, which are 0, 1 and so on; default 3.
        minutes: Time limit of this call; None, the default: no limit. A piece is not started if,
            by its estimate, it would end after the limit.
        device: Device of trainings and measurements, as for `Embedder`.
        plan_only: Whether to stop after the plan is shown, without writing a report; default
            False.
    """

    data: str | Path
    seeds: int
    minutes: float | None
    device: str
    plan_only: bool


def analyze_variants(
    recipe: str | Path, out: str | Path, **options: Unpack[VariantsOptions]
) -> VariantsReport:
    """Compare model families of equal size after an equal pre-training and fine-tuning.

    Every family is trained on the same tokens of one corpus, with one vocabulary. Each run is
    measured twice: at its last step, after the same number of tokens for all families, and at its
    last checkpoint within a limit of processor time that is the same for all families.

    Each finished piece is a file in ``out/work``. A later call with the same recipe goes on where
    an earlier one ended; an interrupted training resumes from its newest checkpoint.

    Args:
        recipe: A TOML file with the fields of `VariantsRecipe`.
        out: Folder of the report; the runs are in its subfolder ``work``, the logs in ``logs``.
        options: Data, seeds and limits; see `VariantsOptions`.

    Returns:
        The report, which names the pieces that are not finished. It is also written to ``out``,
        unless ``plan_only`` is set.

    Raises:
        ConfigError: The recipe is invalid, or ``out`` holds the pieces of another recipe.
        CorpusError: A text or a data set cannot be read.
        EvaluationError: A test task does not exist, or its data differ from the hashes in its file.
        SbertSearchError: A training fails; the message names the cause.
    """
    run = _Run(recipe, Path(out), options)
    for line in plan_lines(run.planned()):
        note(line)
    if options.get("plan_only", False):
        return run.report()
    claim(run.out / "work", run.recorded)
    run.work_off(options.get("minutes"))
    report = run.report()
    write_variants(report, run.out)
    return report


def plan_variants(
    recipe: str | Path, out: str | Path, **options: Unpack[VariantsOptions]
) -> list[PlannedPiece]:
    """List the pieces of a comparison with their estimated times; nothing is written."""
    return _Run(recipe, Path(out), options).planned()


def plan_lines(planned: Sequence[PlannedPiece]) -> Iterator[str]:
    """Yield a line for each piece, then a line with number and time of unfinished pieces."""
    for each in planned:
        seconds = each["seconds"]
        yield f"{each['piece']}: {'done' if seconds is None else f'about {duration(seconds)}'}"
    left = [each["seconds"] for each in planned if each["seconds"] is not None]
    yield f"{len(left)} of {len(planned)} pieces are left; they take about {duration(sum(left))}."


class _Run:
    def __init__(self, recipe: str | Path, out: Path, options: VariantsOptions) -> None:
        data, work = Path(options.get("data", "data")), out / "work"
        # The record and the report keep the recipe's ``@/``, so that a comparison can resume on a
        # machine with another folder of data sets. The trainings need the paths themselves.
        self.recorded = load_variants(recipe)
        self.recipe = with_data(self.recorded, data)
        claim(work, self.recorded, record=False)
        self.pieces, self.out = Pieces(work / "pieces"), out
        self.measuring = Measuring(self.recipe, work, data, options.get("device", "auto"))
        self.plan = plan(self.recipe, options.get("seeds", 3))

    def estimate(self) -> Callable[[Piece], float]:
        folder = self.out / "work"
        model = pretrain_recipe(
            self.recipe, TEACHER, 0, vocabulary=folder / "vocabulary", tokens=folder / "tokens"
        ).model
        cost = operations(
            self.recipe.tokens,
            model.layers,
            model.hidden_size,
            model.intermediate_size,
            self.recipe.vocab_size,
        )
        return estimator(self.plan, self.pieces.found, cost)

    def planned(self) -> list[PlannedPiece]:
        estimate = self.estimate()
        return [
            {"piece": each.name, "seconds": None if self.pieces.found(each) else estimate(each)}
            for each in self.plan
        ]

    def work_off(self, minutes: float | None) -> None:
        """Carry out the pieces in turn; skip pieces that would exceed the time limit."""
        started = time.monotonic()
        for piece in self.plan:
            if self.pieces.found(piece) and piece.part == "pretrain":
                self.measuring.slim(piece)  # an earlier call may have been interrupted before this
            if self.pieces.found(piece) or not self.is_ready(piece):
                continue
            needed = self.estimate()(piece)
            if minutes is not None and time.monotonic() - started + needed > 60 * minutes:
                note(f"{piece.name} needs about {duration(needed)}, more than is left.")
                continue
            note(piece.name)
            result = self.carry_out(piece)
            if piece.part == "pretrain":
                self.copy_log(piece)
            self.pieces.keep(piece, {"cpu": cpu().title, **result})
            if piece.part == "pretrain":
                self.measuring.slim(piece)

    def is_ready(self, piece: Piece) -> bool:
        if piece.part != "pretrain":
            families = self.recipe.ordered
            return all(
                self.pieces.found(Piece("pretrain", family, piece.seed)) for family in families
            )
        teacher = self.teacher(piece)
        return teacher is None or bool(self.pieces.found(teacher))

    def carry_out(self, piece: Piece) -> Result:
        """Carry out one piece, or copy its figures if its checkpoint was measured already."""
        if piece.part == "pretrain":
            teacher = self.teacher(piece)
            trained = self.pieces.found(teacher) if teacher else None
            last = trained["readings"][-1] if trained else None
            return self.measuring.pretrain(piece, last)
        assert piece.budget is not None
        readings = {}
        for family in self.recipe.ordered:
            result = self.pieces.found(Piece("pretrain", family, piece.seed))
            assert result is not None
            readings[family] = result["readings"]
        reading = at_budget(readings, piece.family, piece.budget, self.recipe.seconds)
        for budget in BUDGETS:
            other = self.pieces.found(Piece(piece.part, piece.family, piece.seed, budget))
            if other and other["step"] == reading["step"]:
                return {**other, "seconds": 0.0}
        return self.measuring.measure(piece, reading)

    def teacher(self, piece: Piece) -> Piece | None:
        return Piece("pretrain", TEACHER, piece.seed) if piece.family == "distilbert" else None

    def copy_log(self, piece: Piece) -> None:
        logs = self.out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        name = f"{piece.family}-{piece.seed}.jsonl"
        replace_file(logs / name, (self.measuring.run_folder(piece) / LOG).read_bytes())

    def report(self) -> VariantsReport:
        return collect(
            to_mapping(self.recorded),
            self.recipe.ordered,
            self.plan,
            self.pieces.found,
            self.recipe.seconds,
            made_with(),
        )


def claim(work: Path, recipe: VariantsRecipe, *, record: bool = True) -> None:
    """Refuse a folder of another recipe; if ``record``, write the recipe into the folder."""
    file, text = work / "recipe.toml", to_toml(to_mapping(recipe))
    results = file.exists() and any(each != file for each in work.iterdir())
    if results and file.read_text(encoding="utf-8") != text:
        raise ConfigError(
            f"{work} holds results of another recipe, {file}. Name another folder, or restore the "
            "recipe."
        )
    if record:
        work.mkdir(parents=True, exist_ok=True)
        replace_file(file, text.encode())
