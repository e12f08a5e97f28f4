"""What a hit says of a document with several passages."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.index import Index
from sbert_search.records import Document
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import SearchMode
from tests.cli.process import sbert_search

TEXT = "Stones roll down the hill. A mill grinds corn all day. Rain falls on the old roof."
LONG = {"_id": "long", "title": "Notes", "text": TEXT}
RANKED: tuple[SearchMode, ...] = ("dense", "lexical", "hybrid")
SHORT = {"_id": "short", "title": "Sea", "text": "Salt water."}


@pytest.fixture
def index(tmp_path: Path) -> Index:
    index = Index.build(
        [LONG, SHORT],
        out=tmp_path / "i",
        model=HashingEmbedder(),
        on_truncate="chunk",
        chunk_tokens=6,
    )
    assert index.state.n_rows == 4
    return index


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_hit_holds_its_passage_and_the_whole_text_only_on_request(
    index: Index, mode: SearchMode
) -> None:
    engine = SearchEngine(index, HashingEmbedder())
    hit = engine.search("grinds corn", k=1, mode=mode)[0]
    assert hit.passage == "A mill grinds corn all day. "
    assert (hit.doc_id, hit.chunk, hit.text) == ("long", 1, hit.passage)
    whole = engine.search("grinds corn", k=1, mode=mode, full_text=True)[0]
    assert (whole.text, whole.passage) == (TEXT, hit.passage)
    full_text = Document("long", whole.text, whole.title).full_text
    assert full_text[slice(*hit.span)] == hit.passage


def test_the_first_passage_contains_the_title_and_its_text_does_not(index: Index) -> None:
    hit = SearchEngine(index, HashingEmbedder()).search("stones on a hill", k=1, mode="dense")[0]
    assert (hit.chunk, hit.title) == (0, "Notes")
    assert hit.passage == "Notes Stones roll down the hill. "
    assert hit.text == "Stones roll down the hill. "


def test_a_hit_of_one_passage_is_whole(index: Index) -> None:
    hit = SearchEngine(index, HashingEmbedder()).search("salt", k=1, mode="dense")[0]
    assert (hit.text, hit.passage, hit.chunk) == ("Salt water.", "Sea Salt water.", 0)


def test_a_passage_within_the_title_leaves_no_text(tmp_path: Path) -> None:
    row = {"_id": "1", "title": "one two three four five six", "text": "seven eight nine ten"}
    index = Index.build(
        [row], out=tmp_path / "i", model="hashing", on_truncate="chunk", chunk_tokens=4
    )
    hit = SearchEngine(index, HashingEmbedder()).search("one two", mode="dense")[0]
    assert (hit.text, hit.span) == ("", (0, 19))
    assert hit.passage == "one two three four "
    marked = SearchEngine(index, HashingEmbedder()).search("one", mode="dense", highlight=True)[0]
    assert marked.best_sentence == row["title"]


def test_matched_words_are_those_of_the_whole_document(index: Index) -> None:
    engine = SearchEngine(index, HashingEmbedder())
    hit = engine.search("corn grinds rain", k=1, mode="dense", highlight=True)[0]
    assert hit.matched_words == ("corn", "grinds", "rain")
    assert hit.best_sentence == "A mill grinds corn all day."


def test_matched_words_of_a_passage_are_those_of_the_passage(index: Index) -> None:
    engine = SearchEngine(index, HashingEmbedder())
    for mode in RANKED:
        hits = engine.search("corn notes rain", mode=mode, group=False, highlight=True)
        words = {(hit.doc_id, hit.chunk): hit.matched_words for hit in hits}
        found = {("long", 0): ("notes",), ("long", 1): ("corn",), ("long", 2): ("rain",)}
        assert words == (found if mode == "lexical" else found | {("short", 0): ()})


# Cosines with "by water river mill": 5/(2 sqrt 8), 2/(2 sqrt 5) and 3/(2 sqrt 5).
PASSAGES = [
    "The river mill; water, by river. ",
    "A boat sails by water. ",
    "By water the mill turns.",
]


@pytest.fixture(scope="module")
def by_water(tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    rows = [
        {"_id": "d", "title": "An old song of the sea", "text": "".join(PASSAGES)},
        {"_id": "other", "text": "Salt."},
    ]
    index = Index.build(
        rows,
        out=tmp_path_factory.mktemp("water") / "i",
        model=HashingEmbedder(),
        on_truncate="chunk",
        chunk_tokens=6,
    )
    assert [p.text for p in index.state.fetch(range(1, 4))] == PASSAGES
    return SearchEngine(index, HashingEmbedder())


@pytest.mark.parametrize(
    ("query", "chunk"),
    [
        ("by water river mill", 0),
        ('"by water" river mill', 2),  # 1 and 2 have the phrase, and 2 more of the other words
        ('"by water" -"river turns" river mill', 2),
        ("+boats river mill", 1),
        ("+water river mill", 0),  # all have the word
        ("+boat +sails +turns river mill", 1),  # none has all three; 1 has two
        ("+boat +turns river mill", 2),  # each has one; 2 shares a word more
        ('"sails by water by water" river mill', 0),  # the phrase stands in two passages
        ('"the sea" by water boat', 1),  # the title counts for each passage, and 1 is the best
        ('"the" "boat" river mill', 1),
    ],
)
def test_the_passage_shown_has_the_required_words(
    by_water: SearchEngine, query: str, chunk: int
) -> None:
    for mode in RANKED:
        hit = by_water.search(query, mode=mode, k=1)[0]
        assert (hit.doc_id, hit.chunk) == ("d", chunk + 1), mode


def test_a_required_word_chooses_the_passage_in_fuzzy_search_too(by_water: SearchEngine) -> None:
    for mode in RANKED:
        hit = by_water.search("+sials river mill water", mode=mode, fuzzy=1)[0]
        assert (hit.doc_id, hit.chunk) == ("d", 2), mode


def test_the_scores_of_a_required_phrase_are_those_of_the_document(by_water: SearchEngine) -> None:
    class Reader:
        def predict(self, pairs: list[tuple[str, str]]) -> list[float]:
            assert pairs == [("by water river mill", PASSAGES[0])]
            return [0.5]

    for reranker in (None, Reader()):
        engine = SearchEngine(by_water.index, HashingEmbedder(), reranker)
        hit = engine.search('"by water" river mill', mode="dense", k=1)[0]
        assert (hit.passage, hit.text) == (PASSAGES[2], PASSAGES[2])
        assert hit.stages["dense"].score == pytest.approx(5 / (2 * 8**0.5))
    (hit,) = by_water.search('"by water" river mill', k=1, group=False, mode="dense")
    assert hit.passage == PASSAGES[0]  # a phrase is a condition on the document


def test_similar_documents_have_bounded_texts_too(index: Index) -> None:
    engine = SearchEngine(index)
    assert len(engine.similar("short", k=1)[0].text) < 40
    assert engine.similar("short", k=1, full_text=True)[0].text == TEXT


def test_the_command_line_prints_passages_unless_asked(index: Index) -> None:
    asked = ("search", index.path, "grinds corn", "-k", 1, "--json")
    (record,) = sbert_search(*asked).records
    assert record["passage"] == record["text"] == "A mill grinds corn all day. "
    assert (record["chunk"], record["span"]) == (1, [33, 61])
    assert sbert_search(*asked, "--full-text").records[0]["text"] == TEXT
    like = sbert_search("search", index.path, "--like", "short", "--json", "--full-text")
    assert like.records[0]["text"] == TEXT
