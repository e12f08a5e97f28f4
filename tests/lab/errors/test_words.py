import pytest

from sbert_search.errors import ConfigError
from sbert_search.lab.errors.items import WordReader, coverage, overlap


def test_words_are_compared_without_inflection_and_stop_words() -> None:
    reader = WordReader()
    assert reader.shared("The mills of a river", "A river drove the mill") == ("mills", "river")
    assert reader.length("The mills of a river") == 5
    assert len(reader.terms("The mill and the mills")) == 1


def test_without_a_language_every_word_counts_as_it_is() -> None:
    reader = WordReader("none")
    assert reader.shared("the mills", "the mill") == ("the",)
    assert len(reader.terms("the mill and mills")) == 4


def test_shares_of_words_in_common() -> None:
    first, second = frozenset({1, 2, 3}), frozenset({3, 4})
    assert coverage(first, second) == pytest.approx(1 / 3)
    assert coverage(second, first) == pytest.approx(1 / 2)
    assert overlap(first, second) == pytest.approx(1 / 4)
    assert coverage(frozenset(), first) is None
    assert overlap(frozenset(), frozenset()) is None


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(ConfigError, match="englisch"):
        WordReader("englisch")
