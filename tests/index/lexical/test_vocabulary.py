"""Lists of words: which words are near, and merging."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.index.lexical import vocabulary
from sbert_search.index.lexical.vocabulary import NearWord, Vocabulary, WordList, is_listed, merge
from tests.index.lexical.test_edit_distance import distance

COUNTS = {"vaccine": 9, "vaccines": 4, "vaccinate": 2, "machine": 7, "van": 1, "vat": 3, "a1b": 5}


def test_near_words_are_ordered_by_edits_and_then_by_counts() -> None:
    words = Vocabulary([WordList.of(COUNTS), WordList.of({"vat": 1, "vaccins": 5})])
    assert words.near("vaccin", 2) == [
        NearWord("vaccine", 1, 9),
        NearWord("vaccins", 1, 5),
        NearWord("vaccines", 2, 4),
    ]
    assert words.near("vaccin", 1) == words.near("vaccin", 2)[:2]
    assert words.near("vac", 2) == [NearWord("vat", 1, 4), NearWord("van", 1, 1)]  # one edit only
    assert words.near("nachine", 2) == []  # another first character
    assert words.near("vat", 1) == [NearWord("van", 1, 1)]  # not the word itself
    for word in ("va", "v1cc", "", "v" * 65):
        assert words.near(word, 2) == []


@pytest.mark.parametrize("spelt", ["brühgrupe", "bruehgrupe", "bruhgrupe"])
def test_in_german_the_spelling_of_an_umlaut_is_no_edit(spelt: str) -> None:
    words = WordList.of({"brühgruppe": 2, "bruehgruppen": 1, "heißluft": 3, "ärzte": 1})
    german = Vocabulary([words], "german")
    near = [NearWord("brühgruppe", 1, 2), NearWord("bruehgruppen", 2, 1)]
    assert german.near(spelt, 2) == near
    assert german.near("heissluftt", 1) == [NearWord("heißluft", 1, 3)]
    assert german.near("heisluft", 1) == [NearWord("heißluft", 1, 3)]
    for first in ("aerste", "arste", "ärste"):
        assert german.near(first, 1) == [NearWord("ärzte", 1, 1)]
    assert german.near("kuhlschrank", 1) == []  # no word begins with k
    assert not german.has("bruehgruppe")
    assert german.has("brühgruppe")
    if spelt == "bruehgrupe":
        assert Vocabulary([words]).near(spelt, 1) == []


WORDS = st.text(st.sampled_from("abé漢"), min_size=1, max_size=6)
LISTS = st.lists(st.dictionaries(WORDS, st.integers(1, 9)), max_size=4)


@given(LISTS, WORDS, st.integers(1, 2))
def test_near_words_of_several_lists(lists: list[dict[str, int]], word: str, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "BATCH_WORDS", 3)
        words = Vocabulary(list(map(WordList.of, lists)))
    allowed = min(most, 1 if len(word) < 6 else 2) if is_listed(word) else 0
    total = sum((Counter(counts) for counts in lists), Counter[str]())
    listed = {w: n for w, n in total.items() if is_listed(w)}
    near = {w: distance(word, w) for w in listed if w[0] == word[0] and w != word}
    expected = {(w, d, listed[w]) for w, d in near.items() if d <= allowed}
    found = words.near(word, most)
    assert {(n.word, n.edits, n.count) for n in found} == expected
    assert found == sorted(found, key=lambda n: (n.edits, -n.count, n.word))


@pytest.mark.thorough
@given(LISTS)
def test_merged_lists_have_the_sums(lists: list[dict[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "BATCH_WORDS", 2)
        batches = list(merge(list(map(WordList.of, lists))))
    rows = [row for batch in batches for row in batch.to_pylist()]
    total = sum((Counter(counts) for counts in lists), Counter[str]())
    assert rows == [{"word": w, "count": total[w]} for w in sorted(total) if is_listed(w)]
