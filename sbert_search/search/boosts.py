"""Boosts: documents are raised or lowered by a number or a date in their metadata."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import QueryError
from sbert_search.records import MetadataValue
from sbert_search.search.fusion import Ranking
from sbert_search.search.options import Boost

if TYPE_CHECKING:
    from sbert_search.index.snapshot import Snapshot

_DAY_S = 86_400


def add_boosts(snapshot: Snapshot, ranking: Ranking, boosts: Sequence[Boost]) -> Ranking:
    """Add boosts to the scores of a ranking and order it by the sums; ties keep their order."""
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
