from __future__ import annotations

from dataclasses import replace

import numpy as np

from sbert_search.lab.map.record import CorpusMap


def test_outliers_are_farthest_first_and_of_equal_ones_the_first(drawn: CorpusMap) -> None:
    distances = np.zeros(len(drawn), np.float32)
    distances[[4, 9, 2]] = [0.5, 0.7, 0.5]
    assert replace(drawn, distances=distances).outliers(3) == [9, 2, 4]


def test_groups_list_their_documents_largest_first(drawn: CorpusMap) -> None:
    group = np.full(len(drawn), -1, np.int32)
    group[[8, 3, 5]], group[[1, 2]] = 0, 1
    assert replace(drawn, group=group).groups() == [[3, 5, 8], [1, 2]]
    assert replace(drawn, group=np.full(len(drawn), -1, np.int32)).groups() == []
