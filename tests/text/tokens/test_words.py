from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from sbert_search.errors import TrainingError
from sbert_search.text.tokens.words import MAX_WORD_CHARS, WordRules, count_batch, count_words

TEXTS = [
    ["the cat sat on the mat.", "Über-Café 東京 the"],
    ["a\u00a0cat\x0bnap\ta\r\ncat"],
    ["mat"],
]


def library_words(texts: list[str], rules: WordRules) -> dict[str, int]:
    """Words by BERT's rules on whole texts, which are not split at blanks first."""
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    normalize = rules.normalizer().normalize_str
    words = (word for text in texts for word, _ in split(normalize(text)))
    return dict(Counter(word for word in words if len(word) <= MAX_WORD_CHARS))


CHARS = st.one_of(
    st.sampled_from(
        "ab \n\t\r.,'-ÄéİßΣς\u0301\u200b\u00a0\u2028\x0b\x0c\x1c\x85\u3000東京か한ﬁ\ufffd#"
    ),
    st.characters(exclude_categories=["Cs"]),
)


@given(
    st.lists(st.text(CHARS, max_size=60), max_size=4),
    st.builds(
        WordRules,
        lowercase=st.booleans(),
        strip_accents=st.sampled_from([None, True, False]),
        split_cjk=st.booleans(),
    ),
)
@example(["한" * 60], WordRules())  # without accents, a syllable is three characters
def test_words_are_those_of_the_whole_text(texts: list[str], rules: WordRules) -> None:
    assert count_batch(texts, rules) == library_words(texts, rules)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (WordRules(), {"uber", "-", "cafe", "東", "京", "the"}),
        (WordRules(lowercase=False), {"Über", "-", "Café", "東", "京", "the"}),
        (WordRules(strip_accents=False), {"über", "-", "café", "東", "京", "the"}),
        (WordRules(split_cjk=False), {"uber", "-", "cafe", "東京", "the"}),
    ],
)
def test_case_accents_and_cjk(rules: WordRules, words: set[str]) -> None:
    assert set(count_batch(["Über-Café 東京 the"], rules)) == words


def test_a_word_longer_than_bert_reads_is_left_out() -> None:
    assert count_batch(["a" * 100 + " " + "b" * 101], WordRules()) == {"a" * 100: 1}


def test_counts_do_not_depend_on_the_number_of_processes() -> None:
    alone = count_words(TEXTS, WordRules())
    together = count_words(TEXTS, WordRules(), workers=2)
    assert list(alone.items()) == list(together.items())
    assert alone["the"] == 3
    assert alone["catnap"] == 1  # a vertical tab is a control character to BERT, and goes


def test_the_rarest_words_are_forgotten_when_there_are_too_many(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbert_search.text.tokens.words.MAX_DISTINCT_WORDS", 4)
    batches = [["a a a b b c"], ["a b d e"]]
    assert count_words(batches, WordRules()) == {"a": 4, "b": 3}
    assert "dropped" in capsys.readouterr().err


def test_a_killed_worker_is_an_error() -> None:
    def batches() -> Iterator[list[str]]:
        yield from TEXTS
        for worker in multiprocessing.active_children():
            worker.kill()
        while True:
            yield TEXTS[0]

    with pytest.raises(TrainingError, match="was killed"):
        count_words(batches(), WordRules(), workers=2)
