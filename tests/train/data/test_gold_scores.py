import math

import pytest

from sbert_search.errors import TrainingError
from sbert_search.evaluate.metrics.correlation import GoldScores

SOURCES = ["dev:1", "dev:2", "dev:3"]


def test_equal_predictions_have_no_correlation_and_end_no_training() -> None:
    gold = GoldScores([1, 2, 3], SOURCES)
    assert gold.correlations([2, 4, 6]) == pytest.approx({"spearman": 1.0, "pearson": 1.0})
    for predicted in ([0.5, 0.5, 0.5], [math.nan] * 3, [1, math.nan, 2], [math.inf, 1, 2]):
        undefined = gold.correlations(predicted)
        assert [*undefined] == ["spearman", "pearson"]
        assert all(map(math.isnan, undefined.values()))


def test_equal_gold_scores_are_refused() -> None:
    with pytest.raises(TrainingError, match=r"All 3 dev rows from dev:1 to dev:3 have the score 4"):
        GoldScores([4, 4, 4], SOURCES)
