"""Fuzzy words and suggestions, from the words of the index."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path
from typing import cast

import pytest

from sbert_search import Index, QueryError, SearchEngine, SearchOptions
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import NoLexicalData
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.lexical import vocabulary as word_files
from sbert_search.index.settings import LexicalSettings
from sbert_search.search.options import SearchMode
from tests.index.lexical.test_edit_distance import distance
from tests.models.test_bi_encoder import saved
from tests.search.corpus import small_index

TEXTS = [
    "the vaccine and the germ",
    "vaccines for all",
    "a vacuum pump",
    "zebra stripes",
    "a machine of vaccins",
]


def index_of(texts: list[str], path: Path) -> SearchEngine:
    lexical = LexicalSettings(language="none", b=0.0, k1=1.0)
    rows = [{"_id": str(i), "text": text} for i, text in enumerate(texts)]
    settings = BuildSettings(lexical=lexical)
    return SearchEngine(small_index(path, rows, settings=settings), HashingEmbedder())


def ids(engine: SearchEngine, query: str, fuzzy: int, mode: SearchMode = "lexical") -> list[str]:
    options = SearchOptions(mode=mode, fuzzy=fuzzy)
    return [hit.doc_id for hit in engine.search(query, options=options)]


def test_near_words_match_with_smaller_weights(tmp_path: Path) -> None:
    engine = index_of(TEXTS, tmp_path)
    assert ids(engine, "vaccin", 0) == []
    assert ids(engine, "vaccin", 1) == ["0", "4"]  # vaccine, vaccins
    assert ids(engine, "vaccin", 2) == ["0", "4", "1"]
    assert ids(engine, "accine", 2) == []  # another first character
    assert ids(engine, "vaccine zebra", 1)[:2] == ["0", "3"]
    hits = engine.search("vaccine", mode="lexical", fuzzy=1)
    assert [hit.doc_id for hit in hits] == ["0", "1", "4"]
    idf = math.log(1 + (5 - 1 + 0.5) / (1 + 0.5))
    first, second, third = (hit.score for hit in hits)
    assert first == pytest.approx(idf * 1 / (1 + 1))  # as without fuzzy words
    assert second == third == pytest.approx(idf * 1 / (1 + 1) * (1 - 1 / len("vaccine")))


def test_a_rare_misspelling_counts_no_more_than_the_word_meant(tmp_path: Path) -> None:
    texts = [*["river bank"] * 5, "rivers mouth", "rivex", "hill"]
    engine = index_of(texts, tmp_path)
    hits = engine.search("river", mode="lexical", fuzzy=1)
    assert [hit.doc_id for hit in hits] == ["0", "1", "2", "3", "4", "5", "6"]
    exact = engine.search("river", mode="lexical")
    assert [hit.score for hit in hits[:5]] == [hit.score for hit in exact]
    assert hits[5].score == pytest.approx(hits[0].score * (1 - 1 / 5))
    unknown = engine.search("rivet", mode="lexical", fuzzy=1)  # river 5 times, rivex once
    assert [hit.score for hit in unknown] == pytest.approx([hits[5].score] * 6)


def matched(engine: SearchEngine, query: str, mode: SearchMode, fuzzy: int = 1) -> dict[str, str]:
    options = SearchOptions(mode=mode, fuzzy=fuzzy)
    hits = engine.search(query, options=options, highlight=True)
    return {hit.doc_id: " ".join(hit.matched_words) for hit in hits}


def test_matched_words_are_those_of_the_document(tmp_path: Path) -> None:
    engine = index_of(TEXTS, tmp_path)
    found = {"0": "vaccine", "4": "vaccins", "3": "zebra"}
    assert matched(engine, "vaccin zebr", "lexical") == found
    assert found.items() <= matched(engine, "vaccin zebr", "hybrid").items()
    assert matched(engine, "vaccin zebr", "lexical", fuzzy=0) == {}
    # One edit from the word, which document 0 has itself; the first word in the query comes first.
    found = {"3": "zebra stripes", "0": "vaccine", "1": "vaccines", "4": "vaccins"}
    assert matched(engine, "zebra vaccine stripe", "lexical") == found
    assert matched(engine, "+vaccin", "dense") == {"0": "vaccine", "4": "vaccins"}
    assert set(matched(engine, "vaccin", "dense").values()) == {""}  # not compared by words


def test_matched_words_are_in_the_inflection_of_the_document(tmp_path: Path) -> None:
    rows = [{"_id": "1", "text": "Turning WHEELS of a mill"}, {"_id": "2", "text": "the sea"}]
    engine = SearchEngine(small_index(tmp_path, [*rows, {"_id": "3", "text": "one wheel"}]))
    # "wheel" is one edit from "wheal", and "wheels" has its stem.
    assert matched(engine, "wheal", "lexical") == {"1": "wheels", "3": "wheel"}
    assert matched(engine, "wheel mills", "lexical") == {"1": "wheel mills", "3": "wheel"}


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_passage_and_sentence_of_a_hit_have_the_fuzzy_word(
    tmp_path: Path, mode: SearchMode
) -> None:
    text = "Rain fell all day on us. It was cold too. Nobody came by. Bees love a wheel of clover."
    embedder = HashingEmbedder(max_len=12 if mode == "lexical" else 512)
    chunked = BuildSettings(on_truncate="chunk")
    rows = [{"_id": "1", "text": text}]
    index = small_index(tmp_path, rows, embedder=embedder, settings=chunked)
    (hit,) = SearchEngine(index, embedder).search("wheal", mode=mode, fuzzy=1, highlight=True)
    assert hit.best_sentence == "Bees love a wheel of clover."
    assert hit.matched_words == ("wheel",)
    assert "wheel" in hit.passage
    assert (hit.chunk > 0) == (mode == "lexical")


def test_required_words_are_fuzzy_and_excluded_ones_are_not(tmp_path: Path) -> None:
    engine = index_of(TEXTS, tmp_path)
    modes: tuple[SearchMode, ...] = ("lexical", "dense")
    for mode in modes:
        assert set(ids(engine, "+vaccin", 1, mode)) == {"0", "4"}
        assert set(ids(engine, "+vaccin", 0, mode)) == set()
        assert set(ids(engine, "+vaccine -vaccins", 1, mode)) == {"0", "1"}
        assert set(ids(engine, "+vaccine -vaccin", 1, mode)) == {"0", "1", "4"}
        assert set(ids(engine, '+"vaccin"', 2, mode)) == set()  # quotes are exact


def test_stop_words_have_no_near_words(tmp_path: Path) -> None:
    rows = [{"_id": "1", "text": "tee times"}, {"_id": "2", "text": "the gems", "kind": "stone"}]
    engine = SearchEngine(small_index(tmp_path, rows), HashingEmbedder())
    assert ids(engine, "tee", 1) == ["1"]
    assert ids(engine, "the gem", 1) == ["2"]
    assert engine.facets("the gem", "kind", fuzzy=1)["kind"].missing == 0


@pytest.mark.thorough
@pytest.mark.parametrize("fuzzy", [0, 1, 2])
def test_documents_found_are_those_of_a_plain_reading(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch, fuzzy: int
) -> None:
    monkeypatch.setattr(word_files, "LISTED_FROM", 10)
    rng = random.Random(fuzzy)

    def word() -> str:
        return "".join(rng.choices("abe", k=rng.randint(2, 7)))

    rows = [{"_id": str(i), "text": f"{word()} {word()}."} for i in range(60)]
    settings = BuildSettings(lexical=LexicalSettings(language="none"))
    index = small_index(fast_path, rows[:50], settings=settings)
    index.upsert(rows[45:], model=HashingEmbedder())
    index.upsert([{**row, "text": word()} for row in rows[:9]], model=HashingEmbedder())
    index.delete([str(i) for i in range(20, 40, 3)])
    engine = SearchEngine(index, HashingEmbedder())
    for _ in range(60):
        query = word()
        most = 0 if len(query) < 3 else min(fuzzy, 1 if len(query) < 6 else 2)

        def is_near(other: str, query: str = query, most: int = most) -> bool:
            listed = len(other) > 2 and other[0] == query[0]
            return other == query or (listed and distance(query, other) <= most)

        expected = {
            document.doc_id
            for document in index
            if any(map(is_near, re.findall(r"\w+", document.text)))
        }
        for mode, asked in (("lexical", query), ("dense", f"+{query}")):
            options = SearchOptions(k=100, mode=cast("SearchMode", mode), fuzzy=fuzzy)
            found = {hit.doc_id for hit in engine.search(asked, options=options)}
            assert found == expected, query


@pytest.fixture(scope="module")
def spelling(tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    texts = ["The vaccine trains immune cells"] * 30 + ["germs and vacuum pumps", "a rare vaccina"]
    texts += ["river"] * 250 + ["rivex", "Mühle am Bach", "obsolete wordle"]
    texts[:0] = ["Machines"]
    folder = tmp_path_factory.mktemp("spelling")
    index = Index.from_texts(texts, model="hashing", out=folder / "i")
    index.delete([str(len(texts) - 1)])
    return SearchEngine(index)


@pytest.mark.parametrize(
    ("query", "suggested"),
    [
        ("vacine", "vaccine"),
        ("vaccime", "vaccine"),  # frequent, and so rather than vaccina
        ("imune cels", "immune cells"),
        ("What is a VACINE?", "What is a VACCINE?"),
        ("Germz -vacum", "Germs -vacuum"),
        ("+muhle", "+mühle"),
        ("rivex", "river"),  # rare, and river is everywhere
        ("teh vaccine", None),  # of three letters
        ("does where after cells", None),  # stop words of the longer list of English
        ("rive cell", None),  # the beginning of a word of the index
        ("rive vacine", "river vaccine"),  # but another word is misspelt anyway
        ("vacuom pimps", "vacuum pumps"),
        ("vecciny", None),  # two edits of seven letters
        ("vaxcinee", "vaccine"),  # two edits of eight
        ("vaccines and the germ", None),  # known in another inflection
        ("vaccina", None),  # rare, but there are not so many vaccines
        ("xylophone", None),
        ("wordle", None),  # only in a deleted document
        ("wordl", None),
        ("b2b 1234 a", None),
        ("vacine xylophone", None),  # one word would stay unknown
        ("vacine pum", "vaccine pum"),  # of three letters
        ("Vacine for Immun cels", "Vaccine for Immune cells"),  # "immun" is a stem of the index
        ("immun cells", None),  # found by its stem
        ("vacine pump machin", "vaccine pump machines"),  # two edits from the form of its stem
        ("vacine RIVE vACUUN", "vaccine RIVE vACUUN"),  # names
        ("?!", None),
    ],
)
def test_suggestions(spelling: SearchEngine, query: str, suggested: str | None) -> None:
    assert spelling.suggest(query) == suggested


def test_nothing_is_suggested_that_a_fuzzy_search_finds(spelling: SearchEngine) -> None:
    found = {n: spelling.suggest("vacine pump", fuzzy=n) for n in (0, 1)}
    assert found == {0: "vaccine pump", 1: None}
    assert spelling.suggest("vaxcinee", fuzzy=1) == "vaccine"  # two edits
    assert spelling.suggest("vacine vaxcinee", fuzzy=1) == "vaccine vaccine"
    assert spelling.suggest("vaxcinee", fuzzy=2) is None


@pytest.mark.usefixtures("one_thread")
def test_a_word_that_the_model_knows_is_not_misspelt(tmp_path: Path) -> None:
    model = saved(tmp_path)  # its tokenizer has the token "slept"
    texts = ["sleet and rain", "a dog"]
    for name in (str(model), "hashing"):  # without a model, the default one tells
        engine = SearchEngine(Index.from_texts(texts, model=name))
        assert engine.suggest("the dog slept") is None
        assert engine.suggest("the dog slegt") == "the dog sleet"
        assert engine.opened is None
    clone = model.rename(tmp_path / "moved")
    assert not model.exists()
    index = Index.from_texts(texts, model=str(clone), out=tmp_path / "of-gone")
    clone.rename(model)  # it is gone
    assert SearchEngine(index).suggest("the dog slept") is None


def test_suggestions_need_text_and_words(tmp_path: Path) -> None:
    engine = SearchEngine(small_index(tmp_path, settings=BuildSettings(lexical=None)))
    with pytest.raises(QueryError, match="is empty"):
        engine.suggest(" ")
    with pytest.raises(NoLexicalData, match="index lexical"):
        engine.suggest("watre")
    assert engine.opened is None


def test_fuzzy_is_off_unless_asked_for_and_has_limits() -> None:
    assert SearchOptions().fuzzy == 0
    for wrong in (-1, 3):
        with pytest.raises(QueryError, match=f"fuzzy is {wrong}; it must be from 0 to 2"):
            SearchOptions(fuzzy=wrong)
