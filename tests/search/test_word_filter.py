"""Required and excluded words: a search returns what a plain reading of the texts admits."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import Stemmer

from sbert_search import Document, Index, QueryError, SearchEngine, SearchOptions
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import NoLexicalData
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.records import Query
from sbert_search.search.options import MODES, SearchMode, Syntax
from sbert_search.search.queries import Clause, parse_query
from sbert_search.search.words import word_mask
from tests.index.batches import make_batch
from tests.search.corpus import small_index

WORDS = ["the", "of", "to", "be", "run", "runs", "running", "mill", "mills", "water", "a", "x3"]
WORDS += ["c", "7", "s", "it's", "c's"]
INDEXED = {"it's": ["it"], "c's": ["c"]}  # words of the index, for words that are not words of it
STOP_WORDS = LexicalSettings().stop_words or ()
_STEM = Stemmer.Stemmer("english").stemWord


def meets(document: Document, clause: Clause) -> bool:
    """Whether a document has, or does not have, what a clause demands."""
    texts = document.title, document.text
    fields = [re.findall(r"\w+", field.lower()) for field in texts]
    words = re.findall(r"\w+", clause.text.lower())
    if clause.quoted or len(words) > 1 or words[0] in STOP_WORDS:
        n = len(words)
        has = any(words == field[i : i + n] for field in fields for i in range(len(field)))
    else:
        raw = [word for text in texts for word in text.lower().replace(",", " ").split()]
        has = _STEM(words[0]) in {_STEM(w) for word in raw for w in INDEXED.get(word, [word])}
    return has != clause.excluded


def some_text(rng: random.Random, most: int) -> str:
    return rng.choice([" ", ", "]).join(rng.choices(WORDS, k=rng.randint(0, most)))


def some_clause(rng: random.Random) -> Clause:
    words = " ".join(rng.choices(WORDS, k=rng.choice([1, 1, 2, 3])))
    return Clause(words, quoted=rng.random() < 0.6, excluded=rng.random() < 0.4)


def admitted(snapshot: Snapshot, clauses: list[Clause], where: str | None) -> set[str]:
    """Ids of the documents of a word mask, whose parts must agree with its counts."""
    mask = word_mask(snapshot, clauses, snapshot.filter_mask(where) if where else None)
    rows = [s.rows[part] for s, part in zip(snapshot.segments, mask.parts, strict=True)]
    found = np.concatenate([np.empty(0, np.int64), *rows])
    docs = np.unique(snapshot.doc_of(found))
    assert (len(found), len(docs)) == (mask.n_rows, mask.n_docs)
    assert np.sort(found).tolist() == snapshot.rows_of(docs).tolist()
    return set(snapshot.doc_ids(docs))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, 1])
def test_masks_are_those_of_a_plain_reading_after_any_updates(fast_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    settings = VectorSettings(dim=2, metric="dot")
    empty = Manifest.new(settings, {"year": "int64"}, lexical=LexicalSettings())
    store = IndexStore.create(fast_path / "i", empty)
    for number in range(60):
        known = [document.doc_id for document in store.snapshot.iter_documents()]
        with store.writer() as writer:
            if rng.random() < 0.3:
                writer.delete(rng.sample(known, min(3, len(known))))
            elif rng.random() < 0.1:
                writer.compact()
            else:
                ids = {rng.choice([*known, f"n{number}"]) for _ in range(rng.randint(1, 5))}
                some = [
                    Document(i, some_text(rng, 8), some_text(rng, 2), {"year": rng.randint(1, 9)})
                    for i in sorted(ids)
                ]
                chunks = [rng.randint(1, 3) for _ in some]
                vectors = np.zeros((sum(chunks), 2), np.float32)
                writer.commit(make_batch(some, vectors, chunks))
        documents = list(store.snapshot.iter_documents())
        for where in (None, "year < 5"):
            clauses = [some_clause(rng) for _ in range(rng.randint(1, 3))]
            expected = {
                document.doc_id
                for document in documents
                if all(meets(document, clause) for clause in clauses)
                and (where is None or int(str(document.metadata["year"])) < 5)
            }
            assert admitted(store.snapshot, clauses, where) == expected, clauses


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    """An index after updates, with documents of several passages."""
    rng = random.Random(7)
    folder = tmp_path_factory.mktemp("index")
    rows = [
        {"_id": str(i), "title": some_text(rng, 2), "text": some_text(rng, 9) + " end", "y": i % 3}
        for i in range(90)
    ]
    settings = BuildSettings(on_truncate="chunk")
    index = small_index(folder, rows[:60], settings=settings)
    index.upsert([*rows[50:], {**rows[3], "text": "mill of the water"}], model=HashingEmbedder())
    index.delete(["5", "6", "70"])
    return SearchEngine(index, HashingEmbedder())


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_k_hits_come_back_whenever_k_documents_match(
    engine: SearchEngine, mode: SearchMode
) -> None:
    rng = random.Random(11)
    documents = list(engine.index)
    queries = []
    for _ in range(60):
        clauses = [some_clause(rng) for _ in range(rng.randint(1, 2))]
        required = [clause for clause in clauses if not clause.excluded]
        text = "" if required else rng.choice(["", "of "]) + "zebra water "
        queries.append((text + " ".join(map(written, clauses)), clauses))
    for where in (None, "y > 0"):
        asked = engine.search_many([query for query, _ in queries], 7, mode=mode, where=where)
        for (query, clauses), hits in zip(queries, asked, strict=True):
            matching = {
                document.doc_id
                for document in documents
                if all(meets(document, clause) for clause in clauses)
                and (where is None or int(str(document.metadata["y"])) > 0)
                and (mode != "lexical" or any(not c.excluded for c in clauses) or water(document))
            }
            found = [hit.doc_id for hit in hits]
            assert set(found) <= matching, query
            assert len(found) == min(7, len(matching)), query
            alone = engine.search(query, 7, mode=mode, where=where)
            assert [hit.doc_id for hit in alone] == found


def written(clause: Clause) -> str:
    """A clause as a person writes it; words without quotes become one word with hyphens."""
    sign = "-" if clause.excluded else "+"
    bare = not clause.quoted and not clause.text.startswith("7")  # it may begin the query
    return sign + (clause.text.replace(" ", "-") if bare else f'"{clause.text}"')


def water(document: Document) -> bool:
    return meets(document, Clause("water"))


def test_the_rest_of_the_query_decides_the_order(tmp_path: Path) -> None:
    rows = [
        {"_id": "1", "text": "germ germ germ vaccine"},
        {"_id": "2", "text": "a germ and much other text"},
        {"_id": "3", "text": "the vaccine"},
        {"_id": "4", "text": "germ germ"},
    ]
    engine = SearchEngine(small_index(tmp_path, rows), HashingEmbedder())
    for mode in MODES:
        plain = [hit.doc_id for hit in engine.search("germ", mode=mode)]
        hits = engine.search("germ -vaccines", mode=mode)
        assert [hit.doc_id for hit in hits] == [i for i in plain if i in "24"]
        scores = {hit.doc_id: hit.score for hit in engine.search("germ", mode=mode)}
        if mode in ("dense", "lexical"):  # those of hybrid are scaled over the documents found
            assert {hit.doc_id: hit.score for hit in hits} == {i: scores[i] for i in "24"}
        assert {hit.doc_id for hit in engine.search("+germs vaccine", mode=mode)} == {*"124"}
    (hit,) = engine.search('"germ germ" -vaccine', highlight=True)
    assert (hit.doc_id, hit.matched_words) == ("4", ("germ",))


def test_plain_text_and_runs_have_no_operators(tmp_path: Path) -> None:
    engine = SearchEngine(small_index(tmp_path), HashingEmbedder())
    query = 'water -mill "no such words"'
    assert engine.search(query, 5) == []
    plain = {hit.doc_id: hit.score for hit in engine.search(query, 5, syntax="plain")}
    assert "mill" in plain
    for asked in (SearchOptions(k=5), None):
        assert engine.run([Query("q", query)], 5, options=asked) == {"q": plain}
    assert engine.run([Query("q", query)], syntax="operators") == {"q": {}}
    with pytest.raises(QueryError, match="Unknown syntax 'words'; known: operators, plain"):
        engine.search(query, syntax=cast("Syntax", "words"))


def test_documents_of_stop_words_alone_come_last_in_lexical_search(tmp_path: Path) -> None:
    texts = ["to be is to do", "mill", "hamlet: to be, or not", "be to", "to be"]
    index = Index.from_texts(texts, model="hashing", out=tmp_path / "i")
    hits = SearchEngine(index).search('"to be" hamlet', mode="lexical")
    assert [(hit.doc_id, hit.score > 0) for hit in hits] == [
        ("2", True),
        ("0", False),
        ("4", False),
    ]
    assert [hit.doc_id for hit in SearchEngine(index).search('"to be"', 2, mode="lexical")] == [
        "0",
        "2",
    ]


def test_titles_that_do_not_count_are_not_read(tmp_path: Path) -> None:
    rows = [
        {"_id": "1", "title": "Of the water mill", "text": "stone"},
        {"_id": "2", "text": "of the water mill"},
    ]
    for weight, expected in ((2, {"1", "2"}), (0, {"2"})):
        settings = BuildSettings(lexical=LexicalSettings(title_weight=weight))
        (tmp_path / str(weight)).mkdir()
        index = small_index(tmp_path / str(weight), rows, settings=settings)
        for query in ('"water mill"', "+mill", '"of the"'):
            hits = SearchEngine(index, HashingEmbedder()).search(query)
            assert {hit.doc_id for hit in hits} == expected


def test_an_index_without_words_refuses_operators_but_not_text(tmp_path: Path) -> None:
    engine = SearchEngine(small_index(tmp_path, settings=BuildSettings(lexical=None)))
    with pytest.raises(NoLexicalData, match=r"which -mill in the query needs; .*index lexical"):
        engine.search("water -mill")
    for query, syntax in (("water -mill", "plain"), ("state-of-the-art", None)):
        assert len(engine.search(query, 3, syntax=cast("Syntax | None", syntax))) == 3


def test_a_query_of_many_lines_is_text(tmp_path: Path) -> None:
    engine = SearchEngine(small_index(tmp_path), HashingEmbedder())
    assert not parse_query("water\n-mill").clauses
    assert "mill" in [hit.doc_id for hit in engine.search("water\n-mill")]
