"""Words of several scripts, with the combining marks on their letters."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search import Index, LexicalSettings, SearchEngine
from sbert_search.index.lexical.analyzer import all_words, folded, indexed_words
from sbert_search.index.lexical.vocabulary import is_listed
from sbert_search.search.words import Phrase

HINDI = "भारत की राजधानी दिल्ली है"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HINDI, ["भारत", "की", "राजधानी", "दिल्ली", "है"]),
        ("தமிழ் நாடு", ["தமிழ்", "நாடு"]),
        ("שָׁלוֹם", ["שָׁלוֹם"]),
        ("كِتَاب", ["كِتَاب"]),
        ("ẹ̀kọ́ dára", ["ẹ̀kọ́", "dára"]),
        ("İş İzmir", ["iş", "izmir"]),
        ("Cafe\u0301, 3 A", ["café", "3", "a"]),
        ("Donau\u00addampf", ["donaudampf"]),
        ("oﬃce ﬁsh ﬆ", ["office", "fish", "st"]),
        ("TiO₂ H₂O 10⁻³ x²⁰ m₁", ["tio2", "h2o", "10", "3", "x20", "m1"]),
        ("ﻛﺘﺎﺏ كتاﺏ\ufe76", ["كتاب", "كتاب\u064e"]),
        ("\ufe8d\u0653", ["آ"]),  # the form of a letter and its mark are one letter
        ("\u0301 a\u0301b", ["áb"]),
        ("plain words, a_b 12", ["plain", "words", "a_b", "12"]),
        ("Vitamin C, 'B' and #7 (x) _", ["vitamin", "c", "b", "and", "7", "x"]),
        ("it's don't I'm O\u2019Brien \uff07n", ["it", "don", "brien", "n"]),
        ("l'eau n'a c\u2019est l\uff07été", ["eau", "est", "été"]),
        ("plan B's, 5'6 the 1990's", ["plan", "b", "5", "6", "the", "1990"]),
        ("ẹ̀kọ́'s B's l'ẹ̀kọ́ é̀'t", ["ẹ̀kọ́", "b", "ẹ̀kọ́", "é̀"]),
    ],
)
def test_words_keep_their_marks(text: str, words: list[str]) -> None:
    assert indexed_words(text) == words


@given(st.text(st.sampled_from("aB7s_é '\u0903\u0300\u2019-")))
def test_marks_elsewhere_change_no_word(text: str) -> None:
    """The pattern for texts with marks finds the words of the pattern for other texts."""
    words = indexed_words(text)
    assert [*words, "कि"] == indexed_words(f"{text} कि")
    assert len(words) <= len(all_words(folded(text)))


def search(index: Index, query: str) -> list[str]:
    return [hit.doc_id for hit in SearchEngine(index).search(query, mode="lexical")]


ROWS = [
    {"_id": "D", "text": "Vitamin D is made in the skin by the sun. It's what we don't eat."},
    {"_id": "C", "text": "Vitamin C is found in lemons and peppers."},
    *({"_id": str(n), "title": f"Article {n}", "text": "On the plan of law."} for n in range(4, 8)),
    {"_id": "A", "text": "The plan A's costs, t and s."},
    {"_id": "B", "text": "The plan B's costs."},
]


def test_letters_match_in_the_forms_that_fonts_have_for_them() -> None:
    rows = [{"_id": "a", "text": "A tree. The oﬃce is shut."}, {"_id": "b", "text": "The office."}]
    index = Index.build([*rows, {"_id": "c", "text": "ﻛﺘﺎﺏ"}], model="hashing")
    assert search(index, "كتاب") == ["c"]
    for query in ("office", "oﬃces", '"the oﬃce"'):
        first, second = SearchEngine(index).search(query, mode="lexical", highlight=True)
        assert {first.doc_id, second.doc_id} == {"a", "b"}
        sentences = {hit.best_sentence for hit in (first, second)}
        assert sentences == {"The oﬃce is shut.", "The office."}
        assert "office" in first.matched_words[-1]


def test_words_of_one_character_are_found_and_excluded(tmp_path: Path) -> None:
    index = Index.build(ROWS, out=tmp_path / "i", model="hashing")
    assert search(index, "vitamin c") == ["C", "D"]
    assert search(index, "article 6") == ["6", "4", "5", "7"]
    assert search(index, "plan b")[0] == "B"
    assert search(index, "vitamin -C") == search(index, "+d") == ["D"]
    assert search(index, "article -7") == search(index, 'article -"7"') == ["4", "5", "6"]
    assert search(index, "s") == search(index, "t") == ["A"]
    assert search(index, '"vitamin c"') == ["C"]
    assert search(index, "vitamim c") == ["C"]
    (hit, *_) = SearchEngine(index).search("vitamim c", mode="lexical", fuzzy=1, highlight=True)
    assert (hit.doc_id, hit.matched_words) == ("C", ("vitamin", "c"))
    assert SearchEngine(index).suggest("vitamim c") == "vitamin c"
    blank = Index.build(
        ROWS, out=tmp_path / "0", model="hashing", lexical=LexicalSettings(title_weight=0)
    )
    assert "6" not in search(blank, "article 6")


def test_letters_that_french_elides_are_words_elsewhere(tmp_path: Path) -> None:
    rows = [{"_id": x, "text": f"L'eau n'a qu'une vitamine {x}, c'est d'ici"} for x in "CDL"]
    settings = LexicalSettings(language="french")
    index = Index.build(rows, out=tmp_path / "i", model="hashing", lexical=settings)
    for letter in "CDL":
        assert search(index, f"vitamine {letter}")[0] == letter
        assert search(index, letter) == [letter]


@pytest.mark.parametrize(
    ("phrase", "text", "occurs"),
    [
        ("राजधानी दिल्ली", HINDI, True),
        ("राजधान दिल्ली", HINDI, False),  # without the last vowel sign it is another word
        ("राजधानी दिल्ला", HINDI, False),
        ("की", HINDI, True),
        ("क", HINDI, False),
        ("the mill", "ẹ̀kọ́: the mill", True),
    ],
)
def test_phrases_compare_marks(phrase: str, text: str, occurs: bool) -> None:
    assert Phrase(phrase).occurs_in(text) is occurs


def test_words_with_marks_are_listed_for_corrections() -> None:
    assert is_listed("दिल्ली")
    assert not is_listed("की")  # two characters


def test_words_with_marks_are_found(tmp_path: Path) -> None:
    texts = {"delhi": HINDI, "book": "हिन्दी में लिखी हुई किताबें", "mill": "the old mill"}
    rows = [{"_id": name, "text": text} for name, text in texts.items()]
    settings = LexicalSettings(language="hindi")
    index = Index.build(rows, out=tmp_path / "i", model="hashing", lexical=settings)
    engine = SearchEngine(index)
    for query in ("दिल्ली", "+दिल्ली राजधानी", '"राजधानी दिल्ली"'):
        assert [hit.doc_id for hit in engine.search(query, mode="lexical")] == ["delhi"]
    (hit,) = engine.search("किताबें", mode="lexical", highlight=True)
    assert (hit.doc_id, hit.matched_words) == ("book", ("किताबें",))
    found = engine.search("किताबेल", mode="lexical", fuzzy=1)
    assert [hit.doc_id for hit in found] == ["book"]
