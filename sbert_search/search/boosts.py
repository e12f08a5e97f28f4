"""Boosts: documents are raised or lowered by a number or a date in their metadata."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from numbers import Real
from typing import TYPE_CHECKING, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from sbert_search.config import unknown_name
from sbert_search.errors import QueryError
from sbert_search.records import MetadataValue
from sbert_search.search.ranking import Ranking

if TYPE_CHECKING:
    from sbert_search.index.snapshot import Snapshot

BoostKind = Literal["log", "linear", "recency"]
KINDS: tuple[BoostKind, ...] = get_args(BoostKind)

_DAY_S = 86_400
_WRITTEN = re.compile(r"(?P<column>.+):(?P<kind>[a-z]+):(?P<weight>[^:]+?)(:(?P<days>[^:]+))?")


@dataclass(frozen=True, slots=True)
class Boost:
    """Raises or lowers the scores of documents by a value in their metadata.

    ``weight * f(value)`` is added to the score of each candidate. The scores are those of hybrid
    search; in dense and lexical search, their dense or lexical part alone (see `Fusion`), so that 1
    is the best score there too. After a reranker, its scores are used, of a `Reranker` as
    probabilities. The score of a document without a value does not change.

    Attributes:
        column: A metadata column of numbers, or for ``recency`` of dates or times.
        weight: Weight of the value; below 0, documents with a high value are lowered.
        kind: ``log``: f is ln(1 + value), for counts such as views; values below 0 count as 0.
            ``linear``: f is the value itself. ``recency``: f is 0.5 ** (age / half-life), which is
            1 for a document of age 0 and 0.5 for a document as old as the half-life; a time in the
            future counts as now.
        half_life_days: The half-life in days; ``recency`` needs it.
        now: The time from which ages are measured, in UTC if it names no zone; None: the time of
            the search.

    Raises:
        QueryError: The kind is unknown, a number is not finite, ``half_life_days`` is missing or
            not above 0, ``now`` is no date or time, or ``half_life_days`` or ``now`` is given for
            another kind than ``recency``.
    """

    column: str
    weight: float = 0.1
    kind: BoostKind = "log"
    half_life_days: float | None = None
    now: datetime | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise QueryError(unknown_name(self.kind, self.kind, KINDS, "kind of boost"))
        largest = sys.float_info.max  # an integer may be larger, and no float can represent it
        if not (isinstance(self.weight, Real) and -largest <= self.weight <= largest):
            raise QueryError(
                f"The weight of a boost is {self.weight!r:.100}; it must be a finite number."
            )
        days = self.half_life_days
        if self.kind != "recency":
            if days is not None or self.now is not None:
                raise QueryError(
                    f"half_life_days and now are for a boost by recency, not by {self.kind}."
                )
        elif not (isinstance(days, Real) and 0 < days <= sys.float_info.max):
            raise QueryError(
                f"half_life_days is {days!r:.100}; recency needs a number of days above 0."
            )
        elif not isinstance(self.now, date | None):
            raise QueryError(f"now is {self.now!r}; pass a datetime.")

    @classmethod
    def parse(cls, text: str) -> Boost:
        """Read a boost written as ``COLUMN:KIND:WEIGHT`` or ``COLUMN:recency:WEIGHT:DAYS``.

        Raises:
            QueryError: The text has another form, or a value is wrong.
        """
        match = _WRITTEN.fullmatch(text)
        try:
            weight = float(match["weight"]) if match else math.nan
            days = float(match["days"]) if match and match["days"] else None
        except ValueError:
            match = None
        if match is None:
            raise QueryError(
                f"{text!r} is not a boost; write COLUMN:log:WEIGHT, COLUMN:linear:WEIGHT or "
                "COLUMN:recency:WEIGHT:DAYS, such as views:log:0.2 or published:recency:0.5:30."
            )
        return cls(match["column"], weight, cast("BoostKind", match["kind"]), days)


def boosted(snapshot: Snapshot, ranking: Ranking, boosts: Sequence[Boost]) -> Ranking:
    """Add boosts to the scores of a ranking, and order it by the sums.

    Documents with equal sums keep their present order.

    Raises:
        QueryError: A column is absent, its type does not suit the boost, or a score is not finite.
    """
    scores = ranking.scores
    for boost in boosts:
        _check_type(snapshot, boost)
        gains = _gains(boost, snapshot.metadata(boost.column, ranking.docs))
        with np.errstate(over="ignore", invalid="ignore"):
            scores = scores + boost.weight * gains
        if not np.isfinite(scores).all():
            raise QueryError(
                f"The boost of {boost.column!r} by {boost.weight:g} gives scores that are not "
                "finite; use a smaller weight."
            )
    order = np.argsort(-scores, kind="stable")
    return ranking.take(order, scores[order]).with_stage("boost")


def _check_type(snapshot: Snapshot, boost: Boost) -> None:
    kind = snapshot.column_type(boost.column)
    suited = ("date", "timestamp") if boost.kind == "recency" else ("int64", "float64")
    if kind not in suited:
        raise QueryError(
            f"The column {boost.column!r} is {kind}; a {boost.kind} boost needs a column of "
            f"{'dates or times' if boost.kind == 'recency' else 'numbers'}."
        )


def _gains(boost: Boost, values: Sequence[MetadataValue]) -> NDArray[np.float64]:
    """Return f(value) for each value, as `Boost` defines f, float64 (n,); 0 for a missing value."""
    if boost.kind == "recency":
        now = _seconds(boost.now or datetime.now(UTC))
        assert boost.half_life_days is not None
        half_life_s = boost.half_life_days * _DAY_S
        ages = [None if v is None else max(now - _seconds(v), 0.0) for v in values]
        return np.array([0.0 if age is None else 0.5 ** (age / half_life_s) for age in ages])
    numbers = np.array([0.0 if value is None else value for value in values]).astype(np.float64)
    return numbers if boost.kind == "linear" else np.log1p(np.maximum(numbers, 0.0))


def _seconds(moment: object) -> float:
    """Return a date or time as seconds since 1970; a date stands for its beginning in UTC."""
    if isinstance(moment, datetime):
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    assert isinstance(moment, date)
    return datetime.combine(moment, time(), UTC).timestamp()
