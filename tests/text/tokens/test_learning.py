from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbert_search.errors import ConfigError, CorpusError
from sbert_search.text.tokens.vocabulary import SPECIAL_TOKENS
from sbert_search.text.tokens.wordpiece import alphabet, learn_bpe, learn_wordpiece
from sbert_search.text.tokens.words import WordRules

MANY = 1_000


def merges(words: dict[str, int], n: int) -> list[str]:
    n_start = len(SPECIAL_TOKENS) + len(alphabet(words, MANY))
    return learn_wordpiece(words, n_start + n)[n_start:]


def reference_merges(words: dict[str, int], n: int) -> list[str]:
    """The definition: after each merge, all pairs are counted again, word by word."""
    cut = {word: [word[0], *("##" + char for char in word[1:])] for word in words}
    known, new = {*alphabet(words, MANY)}, list[str]()
    while len(new) < n:
        single, pairs = Counter[str](), Counter[tuple[str, str]]()
        for word, count in words.items():
            for piece in cut[word]:
                single[piece] += count
            for pair in zip(cut[word], cut[word][1:], strict=False):
                pairs[pair] += count
        total = sum(single.values())
        gains = {
            (a, b): f * math.log(f * total / (single[a] * single[b]))
            for (a, b), f in pairs.items()
            if f >= 2
        }
        best = max(gains.values(), default=0.0)
        if best <= 1e-12:
            break
        a, b = min(pair for pair, gain in gains.items() if gain >= best * (1 - 1e-9))
        for word, pieces in cut.items():
            done = list[str]()
            for piece in pieces:
                if done and done[-1] == a and piece == b:
                    done[-1] = a + b.removeprefix("##") + "\0"  # a piece merges once a round
                else:
                    done.append(piece)
            cut[word] = [piece.rstrip("\0") for piece in done]
        if (text := a + b.removeprefix("##")) not in known:
            known.add(text)
            new.append(text)
    return new


def test_rare_pieces_that_belong_together_come_before_the_most_frequent_pair() -> None:
    """Worked by hand.

    ``ab`` 10 times, ``a`` and ``cb`` 20 times each, ``qu`` 8 times. Pieces: a 30, ##b 30, c 20,
    q 8, ##u 8; N = 96.
      (c, ##b)  f = 20: 20 ln(20 * 96 / (20 * 30)) = 20 ln 3.2 = 23.26
      (q, ##u)  f =  8:  8 ln( 8 * 96 / ( 8 *  8)) =  8 ln 12  = 19.88
      (a, ##b)  f = 10: 10 ln(10 * 96 / (30 * 30)) = 10 ln 1.067 = 0.65
    After cb: ##b 10, cb 20, N = 76.
      (a, ##b)  10 ln(10 * 76 / (30 * 10)) = 10 ln 2.53 = 9.30
      (q, ##u)   8 ln( 8 * 76 / 64)        =  8 ln 9.5  = 18.01
    By count, BPE takes cb (20), ab (10), qu (8).
    """
    words = {"ab": 10, "a": 20, "cb": 20, "qu": 8}
    assert merges(words, 3) == ["cb", "qu", "ab"]
    text = " ".join(" ".join([word] * count) for word, count in words.items())
    assert learn_bpe([[text]], WordRules(), 5 + 7 + 3, 100)[-3:] == ["cb", "ab", "qu"]


def test_the_gain_of_a_pair_rises_when_its_piece_becomes_rarer() -> None:
    """Worked by hand: a pair that lost at first wins because another merge used up its piece.

    ``xy`` 9, ``zy`` 6, ``z`` 2, ``pq`` 5. x 9, ##y 15, z 8, p 5, ##q 5; N = 42.
      (x, ##y)  9 ln(9 * 42 / (9 * 15)) = 9 ln 2.8  = 9.27
      (p, ##q)  5 ln(5 * 42 / 25)       = 5 ln 8.4  = 10.64   first
      (z, ##y)  6 ln(6 * 42 / (8 * 15)) = 6 ln 2.1  = 4.45
    N = 37: xy 9 ln(9 * 37 / 135) = 8.13 second. Then ##y is 6, N = 28, and
      (z, ##y)  6 ln(6 * 28 / (8 * 6))  = 6 ln 3.5  = 7.52: more than ever before.
    """
    assert merges({"xy": 9, "zy": 6, "z": 2, "pq": 5}, 3) == ["pq", "xy", "zy"]


def test_equal_gains_go_by_string() -> None:
    assert merges({"xy": 4, "ab": 4, "mn": 4}, 3) == ["ab", "mn", "xy"]


def test_overlapping_pairs_merge_from_the_left() -> None:
    # In c ##a ##a ##a ##a the pair (##a, ##a) stands three times; its first and third merge, and
    # c ##aa ##aa goes on. The four long words only keep N high.
    words = {"caaaa": 4} | dict.fromkeys(["defg", "hijk", "lmno", "pqrs"], 40)
    assert merges(words, 15)[-3:] == ["##aa", "caa", "caaaa"]
    assert merges(words, 15) == reference_merges(words, 15)


def test_a_pair_seen_once_is_never_merged() -> None:
    assert merges({"ab": 1, "cd": 2}, 5) == ["cd"]


def test_merging_stops_where_no_pair_raises_the_likelihood() -> None:
    # (a, ##b): 2 ln(2 * 304 / (102 * 102)) < 0; (c, ##b): 100 ln(100 * 304 / (100 * 102)) > 0,
    # and after that (a, ##b): 2 ln(2 * 204 / (102 * 2)) > 0.
    assert merges({"a": 100, "ab": 2, "cb": 100}, 5) == ["cb", "ab"]
    # Here ##b stays frequent in twenty pairs seen once: 2 ln(2 * 144 / (102 * 22)) < 0.
    others = {char + "b": 1 for char in "cdefghijklmnopqrstuv"}
    assert merges({"a": 100, "ab": 2} | others, 5) == []


@pytest.mark.thorough
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=7), st.integers(1, 9), min_size=1),
    st.integers(1, 40),
)
@settings(max_examples=150, deadline=None)
def test_merges_equal_the_definition(words: dict[str, int], n: int) -> None:
    assert merges(words, n) == reference_merges(words, n)


@pytest.mark.thorough
@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=5), st.integers(1, 99), min_size=9))
@settings(max_examples=60, deadline=None)
def test_merges_equal_the_definition_with_more_letters(words: dict[str, int]) -> None:
    assert merges(words, 60) == reference_merges(words, 60)


def test_special_tokens_then_alphabet_then_merges() -> None:
    vocabulary = learn_wordpiece({"ab": 3, "ba": 2, ".": 9}, 100)
    assert vocabulary[:5] == list(SPECIAL_TOKENS)
    assert vocabulary[5:] == [".", "a", "b", "##a", "##b", "ab", "ba"]


def test_the_alphabet_keeps_the_most_frequent_characters() -> None:
    words = {"ab": 5, "z": 5, "y": 5, "a": 1}
    assert alphabet(words, 3) == ["a", "b", "y", "##a", "##b"]
    # A word with a character that is left out is [UNK] whatever is learned from it.
    assert "zq" not in learn_wordpiece({"ab": 5, "zq": 4}, 100, alphabet_limit=2)


def test_words_that_are_all_unknown_leave_the_alphabet() -> None:
    assert learn_wordpiece({"ab": 5, "ac": 2}, 9, alphabet_limit=1)[5:] == ["a", "##a"]


def test_extending_keeps_the_old_ids_and_merges_on() -> None:
    old = learn_wordpiece({"lower": 5, "low": 9}, 100)
    new = learn_wordpiece({"lowland": 9, "königin": 4}, len(old) + 30, vocabulary=old)
    assert new[: len(old)] == old
    assert len(set(new)) == len(new)
    assert {"lowland", "königin", "ö", "##ö"} <= set(new)
    # Merging began at the longest matches: no piece of "low" was made again.
    assert not {"lo", "##ow"} & set(new[len(old) :])


def test_no_words_are_refused() -> None:
    with pytest.raises(CorpusError, match="no words"):
        learn_wordpiece({}, 100)


def test_a_size_below_the_alphabet_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 9"):
        learn_wordpiece({"ab": 2}, 8)
