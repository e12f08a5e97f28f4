from __future__ import annotations

import numpy as np

from sbert_search.lab.map.record import CorpusMap
from sbert_search.lab.map.saving import cluster_names, rows, summary, to_table
from tests.lab.map.conftest import N


def test_rows_have_the_values_of_the_map(drawn: CorpusMap) -> None:
    table, listed = to_table(drawn), list(rows(drawn))
    assert table.num_rows == len(listed) == N
    for number in (0, 17, N - 1):
        row, group = listed[number], int(drawn.group[number])
        assert row["doc_id"] == f"d{number}"
        assert (row["x"], row["y"]) == tuple(drawn.layout[number].tolist())
        assert (row["pca_x"], row["pca_y"]) == tuple(drawn.axes[number].tolist())
        assert row["cluster"] == number % 3
        assert row["cluster_name"] == cluster_names(drawn)[number % 3]
        assert row["distance"] == float(drawn.distances[number])
        assert row["duplicates"] == (None if group < 0 else group)


def test_the_summary_adds_up(drawn: CorpusMap) -> None:
    made = summary(drawn, outliers=4)
    assert made["documents"] == made["mapped"] == N
    assert isinstance(clusters := made["clusters"], list)
    assert [each["documents"] for each in clusters] == [30, 30, 30]
    assert isinstance(outliers := made["outliers"], list)
    assert len(outliers) == 4
    assert outliers[0]["distance"] == float(drawn.distances.max())
    assert isinstance(groups := made["duplicates"], list)
    assert sum(map(len, groups)) == int(np.sum(drawn.group >= 0))
