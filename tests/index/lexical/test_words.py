"""Words of several scripts, with the combining marks on their letters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbert_search import Index, LexicalSettings, SearchEngine
from sbert_search.index.lexical.analyzer import term_reader
from sbert_search.index.lexical.phrases import Phrase
from sbert_search.index.lexical.vocabulary import is_listed
from sbert_search.index.lexical.words import all_words, folded, indexed_words
from sbert_search.index.storage import manifest
from tests.formats import make

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
        ("Cafe\u0301, 3 A", ["café"]),
        ("Donau\u00addampf", ["donaudampf"]),
        ("\u0301 a\u0301b", ["áb"]),
        ("plain words, a_b 12", ["plain", "words", "a_b", "12"]),
    ],
)
def test_words_keep_their_marks(text: str, words: list[str]) -> None:
    assert indexed_words(text) == words


def test_single_characters_are_words_but_not_indexed() -> None:
    assert all_words(folded("A é, कि")) == ["a", "é", "कि"]
    assert indexed_words("A é, कि") == ["कि"]  # a letter and its vowel sign


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


def test_an_index_of_an_earlier_version_keeps_its_words_until_they_are_made_again(
    tmp_path: Path,
) -> None:
    folder = Path(make.__file__).parent / "5b46374" / "words" / manifest.NAME
    body = json.loads(folder.read_bytes().partition(b"\n")[2])
    assert "combining_marks" not in body["settings"]["lexical"]
    old = manifest.decode(folder.read_bytes()).settings.lexical
    assert old is not None
    assert not old.combining_marks
    assert term_reader(old).words("दिल्ली İzmir old") == ["zmir", "old"]
    assert LexicalSettings().terms != old.terms
