"""The table of a comparison: figures by family and budget, over seeds, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from sbert_search.base.machine import MadeWith
from sbert_search.config import to_mapping
from sbert_search.evaluate.metrics.significance import mean_interval
from sbert_search.lab.variants.pieces import BUDGETS, Budget, Piece, Reading, Result, at_budget

Found = Callable[[Piece], Result | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure of a family at a budget.

    Attributes:
        values: Value of each seed that was measured, by seed.
        mean: Mean over the seeds.
        interval: 95 % interval of the mean; None for one seed.
        difference: Mean difference from the first family, over the seeds that both families have;
            None for the first family, and if there are no such seeds.
        difference_interval: 95 % interval of that difference, not corrected for the number of
            figures; None for fewer than two seeds.
    """

    values: dict[int, float]
    mean: float
    interval: tuple[float, float] | None
    difference: float | None
    difference_interval: tuple[float, float] | None

    @property
    def beyond_spread(self) -> bool:
        """Whether the interval of the difference leaves out 0."""
        ends = self.difference_interval
        return ends is not None and (ends[0] > 0 or ends[1] < 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantsReport:
    """The result of `analyze_variants`.

    Attributes:
        recipe: Settings of the comparison.
        seeds: Number of seeds.
        tables: Figures by budget (tokens or seconds), family and name.
        training: Figures of the pre-trainings by family and name: parameters, memory, speed.
        readings: The checkpoint that is measured, by budget, family and seed. Seeds with an
            unfinished pre-training are left out.
        curves: The checkpoints of each pre-training, by family and seed.
        missing: Names of the pieces that are not finished.
        cpus: Number of finished pieces, by the model of the CPU on which they ran.
        made: Version, commit, machine and libraries that made the report.
    """

    recipe: Mapping[str, object]
    seeds: int
    tables: Mapping[str, Mapping[str, Mapping[str, Figure]]]
    training: Mapping[str, Mapping[str, Figure]]
    readings: Mapping[str, Mapping[str, Mapping[int, Reading]]]
    curves: Mapping[str, Mapping[int, Sequence[Reading]]]
    missing: tuple[str, ...]
    cpus: Mapping[str, int]
    made: MadeWith

    def to_mapping(self) -> dict[str, object]:
        """Return all figures as JSON values."""
        return to_mapping(self)


def figure(values: Mapping[int, float], first: Mapping[int, float] | None) -> Figure:
    """Summarize one figure over seeds.

    Args:
        values: Value of each seed.
        first: Values of the first family, for differences seed by seed; None if ``values`` belong
            to the first family.
    """
    shared = [] if first is None else sorted(values.keys() & first.keys())
    gains = [values[seed] - first[seed] for seed in shared] if first else []
    return Figure(
        values=dict(values),
        mean=mean(values.values()),
        interval=mean_interval([*values.values()]) if len(values) > 1 else None,
        difference=mean(gains) if gains else None,
        difference_interval=mean_interval(gains) if len(gains) > 1 else None,
    )


def figures_of(
    families: Sequence[str], results: Mapping[str, Mapping[int, Mapping[str, float]]]
) -> dict[str, dict[str, Figure]]:
    """Summarize the figures of all families.

    Args:
        families: The families; differences are from the first one.
        results: Figures by family, seed and name.
    """
    names = dict.fromkeys(
        name for family in families for own in results[family].values() for name in own
    )

    def values(family: str, name: str) -> dict[int, float]:
        return {seed: own[name] for seed, own in results[family].items() if name in own}

    return {
        family: {
            name: figure(found, None if family == families[0] else values(families[0], name))
            for name in names
            if (found := values(family, name))
        }
        for family in families
    }


def collect(
    recipe: Mapping[str, object],
    families: Sequence[str],
    pieces: Sequence[Piece],
    found: Found,
    seconds: float | None,
    made: MadeWith,
) -> VariantsReport:
    """Gather the results of all finished pieces.

    Args:
        recipe: Settings of the comparison.
        families: The families, in order.
        pieces: All pieces.
        found: Returns the result of a piece, or None if it is not finished.
        seconds: `VariantsRecipe.seconds`.
        made: Code, machine and libraries.
    """
    seeds = sorted({piece.seed for piece in pieces})
    curves = {
        family: {
            seed: result["readings"]
            for seed in seeds
            if (result := found(Piece("pretrain", family, seed)))
        }
        for family in families
    }
    training = {
        family: {
            seed: result["figures"]
            for seed in seeds
            if (result := found(Piece("pretrain", family, seed)))
        }
        for family in families
    }
    measured: dict[Budget, dict[str, dict[int, dict[str, float]]]] = {
        budget: {family: {} for family in families} for budget in BUDGETS
    }
    for piece in pieces:
        if piece.budget and (result := found(piece)):
            own = measured[piece.budget][piece.family].setdefault(piece.seed, {})
            own |= result["figures"]
    whole = [seed for seed in seeds if all(seed in curves[family] for family in families)]
    return VariantsReport(
        recipe=recipe,
        seeds=len(seeds),
        tables={budget: figures_of(families, measured[budget]) for budget in BUDGETS},
        training=figures_of(families, training),
        readings={
            budget: {
                family: {
                    seed: at_budget({f: curves[f][seed] for f in families}, family, budget, seconds)
                    for seed in whole
                }
                for family in families
            }
            for budget in BUDGETS
        },
        curves=curves,
        missing=tuple(piece.name for piece in pieces if not found(piece)),
        cpus=Counter(
            result.get("cpu", "unknown CPU") for piece in pieces if (result := found(piece))
        ),
        made=made,
    )
