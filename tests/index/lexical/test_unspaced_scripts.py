"""Lexical search in scripts that put no space between words, and in Arabic."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search import Index, LexicalSettings, SearchEngine
from sbert_search.index.lexical.analyzer import all_words, folded, indexed_words, joined_pairs
from sbert_search.index.lexical.vocabulary import is_listed
from sbert_search.search.words import Phrase


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("東京都。", ["東京", "京都"]),
        ("中", ["中"]),
        ("人々 ラーメン", ["人々", "ラー", "ーメ", "メン"]),
        ("iPhone手机, 第3章", ["iphone", "手机", "第", "3", "章"]),
        ("𠀋𠀌𠀍", ["𠀋𠀌", "𠀌𠀍"]),  # outside the basic plane
        ("ที่นี่", ["ที่นี่"]),  # two letters, each with two marks
        ("ไทย ๑๒", ["ไท", "ทย", "๑๒"]),
        ("မြန်မာ", ["မြန်", "န်မာ"]),
        ("ភាសា", ["ភាសា"]),
        ("ＡＢＣ １２ ｶﾞｷﾞ", ["abc", "12", "ガギ"]),  # noqa: RUF001
        ("한국어 문장", ["한국어", "문장"]),  # Korean has blanks
        ("it's 中文 l'eau", ["it", "中文", "eau"]),
    ],
)
def test_runs_of_letters_are_indexed_as_pairs(text: str, words: list[str]) -> None:
    assert indexed_words(text) == words


@given(st.text(st.sampled_from("aB7s_é '\u0903\u0300\u2019-")))
def test_letters_of_other_scripts_elsewhere_change_no_word(text: str) -> None:
    assert indexed_words(f"{text} 中文") == [*indexed_words(text), "中文"]
    assert all_words(folded(f"{text} 中文")) == [*all_words(folded(text)), "中", "文"]


@pytest.mark.parametrize(
    ("words", "text", "parts"),
    [
        (["北京", "京大", "大学"], "我在北京大学", ["北京大学"]),
        (["北京", "京大", "大学"], "北京 京大 大学", ["北京", "京大", "大学"]),
        (["iphone", "手机", "mill"], "iphone手机 mill", ["iphone", "手机", "mill"]),
        ([], "北京", []),
    ],
)
def test_pairs_that_overlap_are_shown_together(
    words: list[str], text: str, parts: list[str]
) -> None:
    assert list(joined_pairs(words, text)) == parts


@pytest.mark.parametrize(
    ("phrase", "text", "occurs"),
    [
        ("北京大学", "我在北京大学读书", True),
        ("京大", "我在北京大学读书", True),
        ("北大", "我在北京大学读书", False),
        ("iphone 手机", "新iPhone手机", True),
        ("phone", "新iPhone手机", False),
        ("ไทย", "ประเทศไทยเป็น", True),
        ("ที", "ที่นี่", False),  # the letter has other marks
        ("كتاب احمد", "كِتَابُ أحمد", True),
        ("كتـاب", "كتاب", True),
        ("كتاب", "كتابة", False),
        ("كتاب احمد", "ﻛﺘﺎﺏ ﺃﺣﻤﺪ", True),
        ("office", "the oﬃce", True),
        ("ﬁsh", "fishing", False),
    ],
)
def test_phrases_need_no_blanks(phrase: str, text: str, occurs: bool) -> None:
    assert Phrase(phrase).occurs_in(text) is occurs


def test_pairs_are_not_corrected() -> None:
    assert not is_listed("ที่นี่")
    assert not is_listed("北京大学")


TEXTS = {
    "uni": "我在北京大学读书。那里很大。",
    "mill": "水车在河边转动，磨坊磨面粉。春天水很多。",  # noqa: RUF001
    "tokyo": "東京都の水車は古い。ラーメン屋は新しい。",
    "thai": "กรุงเทพเป็นเมืองหลวงของประเทศไทย",
}


def test_texts_without_blanks_are_found_by_words_and_phrases(tmp_path: Path) -> None:
    rows = [{"_id": name, "text": text} for name, text in TEXTS.items()]
    engine = SearchEngine(Index.build(rows, out=tmp_path / "i", model="hashing"))

    def found(query: str) -> list[str]:
        return [hit.doc_id for hit in engine.search(query, mode="lexical")]

    assert found("北京的大学在哪里") == ["uni"]
    assert found("ラーメン") == found("東京のラーメン") == ["tokyo"]
    assert found("เมืองหลวง") == ["thai"]
    assert found('"大学读"') == ["uni"]
    assert found("+磨坊 水车") == ["mill"]
    assert set(found("+水")) == {"mill", "tokyo"}
    (hit,) = engine.search("春天的面粉", mode="lexical", highlight=True)
    assert hit.matched_words == ("春天", "面粉")
    assert hit.best_sentence == "水车在河边转动，磨坊磨面粉。"  # noqa: RUF001
    (hit,) = engine.search("古い東京都", mode="lexical", highlight=True)
    assert hit.matched_words == ("古い", "東京都")
    assert hit.best_sentence == "東京都の水車は古い。"


@pytest.mark.parametrize("language", ["english", "none", "arabic"])
def test_spellings_of_arabic_are_one_word(language: str) -> None:
    texts = ["قرأ أحمد كِتَابًا في المدرسة", "the old mill"]
    settings = LexicalSettings(language=language)
    engine = SearchEngine(Index.from_texts(texts, model="hashing", lexical=settings))
    # The Arabic stemmer takes a final teh marbuta off, but not the heh that some write for it.
    school = "المدرسة" if language == "arabic" else "المدرسه"
    for query in ("احمد", school, "كتابا", "كتـابا"):
        assert [hit.text for hit in engine.search(query, mode="lexical")] == texts[:1]
