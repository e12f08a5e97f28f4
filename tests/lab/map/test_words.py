from __future__ import annotations

import math

import numpy as np
import pytest

from sbert_search.index.settings import LexicalSettings
from sbert_search.lab.map.clusters import WordCounts, class_weights

NONE = LexicalSettings(language="none")


def test_weights_by_hand() -> None:
    # Two clusters of 4 and 8 words: A = 6. The first has a 3 times and b once; b is 3 times in all.
    weights = class_weights(np.array([3, 1]), np.array([3.0, 3.0]), [4, 8])
    assert weights.tolist() == pytest.approx(
        [3 / 4 * math.log(1 + 6 / 3), 1 / 4 * math.log(1 + 6 / 3)]
    )


def test_words_by_hand() -> None:
    counts = WordCounts(NONE, 2)
    counts.add("mill mill mill bread", 0)
    counts.add("bread bread oven oven oven oven yeast yeast", 1)
    # A = 6; mill 3/4 ln(3), bread 1/4 ln(3); oven 4/8 ln(2.5), yeast 2/8 ln(4), bread 2/8 ln(3).
    assert counts.telling() == [["mill", "bread"], ["oven", "yeast", "bread"]]
    assert counts.telling(1) == [["mill"], ["oven"]]


def test_a_word_that_all_clusters_share_comes_after_one_of_its_own() -> None:
    counts = WordCounts(NONE, 3)
    for cluster, word in enumerate(("mill", "oven", "virus")):
        counts.add("common " * 5 + f"{word} " * 4, cluster)
    assert [words[0] for words in counts.telling()] == ["mill", "oven", "virus"]


def test_inflections_count_together_and_the_most_frequent_form_is_shown() -> None:
    counts = WordCounts(LexicalSettings(), 2)
    counts.add("mills mills mill grinding bakery bakery", 0)
    counts.add("ovens", 1)
    assert counts.telling()[0] == ["mills", "bakery", "grinding"]


def test_stop_words_and_numbers_are_no_names() -> None:
    counts = WordCounts(LexicalSettings(), 1)
    counts.add("he himself from the 1999 2000 mill", 0)
    assert counts.telling() == [["mill"]]
    german = WordCounts(LexicalSettings(language="german"), 1)
    german.add("die der und Mühle", 0)
    assert german.telling() == [["mühle"]]


def test_equal_weights_are_in_the_order_of_the_alphabet() -> None:
    counts = WordCounts(NONE, 1)
    counts.add("pear apple fig", 0)
    assert counts.telling() == [["apple", "fig", "pear"]]


def test_rare_words_are_dropped_only_if_there_are_too_many() -> None:
    counts = WordCounts(NONE, 1)
    counts.add("mill mill oven", 0)
    counts.drop_rare(2)
    assert counts.telling() == [["mill", "oven"]]
    counts.drop_rare(1)
    assert counts.telling() == [["mill"]]


def test_a_cluster_without_words_has_no_names() -> None:
    counts = WordCounts(NONE, 2)
    counts.add("mill", 0)
    assert counts.telling() == [["mill"], []]
