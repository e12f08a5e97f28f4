"""BM25 over live documents: as bm25s scores, and after any updates as an index built anew."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import bm25s
import numpy as np
import pytest
import Stemmer

from sbert_search.errors import ConfigError, NoLexicalData
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.lexical import postings
from sbert_search.index.lexical import postings as posting_files
from sbert_search.index.lexical.analyzer import TermReader
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from sbert_search.records import Document
from sbert_search.text.docstrings import stdlib_documents
from tests.index.batches import make_batch

pytestmark = pytest.mark.usefixtures("unpacked")

WORDS = "alpha beta gamma running runs ran the of river mill water turns wheel flour"
QUERIES = [
    "running river",
    "the alpha of water water",
    "mills",
    "nothing known",
    "flour wheel beta",
]
DOCUMENTS = [doc for _, doc in zip(range(400), stdlib_documents(), strict=False)]


def new_store(path: Path, lexical: LexicalSettings | None = None) -> IndexStore:
    settings = VectorSettings(dim=2, metric="dot")
    return IndexStore.create(
        path, Manifest.new(settings, {"year": "int64"}, lexical=lexical or LexicalSettings())
    )


def put(
    store: IndexStore, documents: Sequence[Document], chunks: Sequence[int] | None = None
) -> None:
    n_rows = sum(chunks) if chunks else len(documents)
    vectors = np.zeros((n_rows, 2), np.float32)
    with store.writer() as writer:
        writer.commit(make_batch(documents, vectors, chunks))


def answers(
    snapshot: Snapshot, queries: Sequence[str], k: int = 50
) -> list[list[tuple[str, float]]]:
    """Ids and scores found for each query."""
    return [
        list(zip(snapshot.doc_ids(rows), scores.tolist(), strict=True))
        for rows, scores, *_ in snapshot.lexical.search(queries, k)
    ]


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75), (1.2, 0.0)])
def test_scores_are_those_of_bm25s(tmp_path: Path, k1: float, b: float) -> None:
    settings = LexicalSettings(title_weight=1, k1=k1, b=b)
    store = new_store(tmp_path / "i", settings)
    documents = [replace(doc, text=doc.text.replace("'", "")) for doc in DOCUMENTS]
    for start in (0, 150, 151):  # of several segments
        put(store, documents[start : {0: 150, 150: 151, 151: 400}[start]])
    tokens = {
        "stopwords": list(settings.stop_words or ()),
        "stemmer": Stemmer.Stemmer("english"),
        "show_progress": False,
        "token_pattern": r"\w{2,}|[^\W_]",
    }
    reference = bm25s.BM25(method="lucene", k1=k1, b=b)
    texts = bm25s.tokenize([doc.full_text for doc in documents], return_ids=False, **tokens)
    reference.index(texts, show_progress=False)
    queries = [doc.title + " " + doc.text[:80] for doc in documents[::40]]
    for query, (rows, scores, *_) in zip(
        queries, store.snapshot.lexical.search(queries, 400), strict=True
    ):
        words = bm25s.tokenize([query], return_ids=False, **tokens)[0]
        expected = reference.get_scores(words)
        got = np.zeros(len(documents))
        got[rows] = scores
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
        assert list(scores) == sorted(scores, reverse=True)


def test_the_best_few_are_the_first_of_all_whoever_is_dead_or_left_out(tmp_path: Path) -> None:
    store = new_store(tmp_path / "i")
    rng = random.Random(0)
    for part in range(3):
        names = [f"{part}-{n}" for n in range(120)]
        put(
            store,
            [Document(n, some_text(rng), metadata={"year": rng.randint(1, 9)}) for n in names],
        )
    with store.writer() as writer:
        writer.delete([f"1-{n}" for n in range(0, 120, 2)])
    snapshot = store.snapshot
    for mask in (None, snapshot.filter_mask("year < 4")):
        every = snapshot.lexical.search(QUERIES, snapshot.n_docs, mask)
        for k in (1, 3, 20, 100):
            for few, all_ in zip(snapshot.lexical.search(QUERIES, k, mask), every, strict=True):
                for some, whole in zip(few[:2], all_[:2], strict=True):
                    assert some.tolist() == whole[:k].tolist()


def some_text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS.split(), k=rng.randint(1, 12)))


def test_deleted_documents_do_not_weigh_words(tmp_path: Path) -> None:
    texts = {"a": "mill river", "b": "mill wheel", "c": "mill", "d": "bread"}
    documents = [Document(doc_id, text) for doc_id, text in texts.items()]
    store, anew = new_store(tmp_path / "i"), new_store(tmp_path / "anew")
    put(store, documents)
    with store.writer() as writer:
        writer.delete(["b", "c"])
    put(anew, [documents[0], documents[3]])
    assert answers(store.snapshot, ["mill", "mill bread"]) == answers(
        anew.snapshot, ["mill", "mill bread"]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_any_updates_leave_what_an_index_built_anew_finds(fast_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = new_store(fast_path / "i")
    for number in range(200):
        known = [document.doc_id for document in store.snapshot.iter_documents()]
        draw = rng.random()
        if draw < 0.3 and known:
            with store.writer() as writer:
                writer.delete(rng.sample(known, min(3, len(known))))
        elif draw < 0.34:
            with store.writer() as writer:
                writer.compact()
        else:
            ids = {rng.choice([*known, f"n{number}"]) for _ in range(rng.randint(1, 4))}
            some = [Document(i, some_text(rng), some_text(rng)) for i in sorted(ids)]
            put(store, some, [rng.randint(1, 3) for _ in some])
        if number % 20 == 19:
            anew = new_store(fast_path / f"anew-{number}")
            if documents := list(store.snapshot.iter_documents()):
                put(anew, documents)
            assert answers(store.snapshot, QUERIES) == answers(anew.snapshot, QUERIES)
    assert answers(IndexStore.open(fast_path / "i").snapshot, QUERIES) == answers(
        store.snapshot, QUERIES
    )
    assert check(fast_path / "i").problems == ()


def test_a_merge_in_many_steps_gives_the_files_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files(folder: str) -> list[bytes]:
        store = new_store(tmp_path / folder)
        for start in range(0, 400, 50):
            put(store, DOCUMENTS[start : start + 50])
        with store.writer() as writer:
            writer.delete([document.doc_id for document in DOCUMENTS[::7]])
            writer.compact()
        (segment,) = store.snapshot.manifest.segments
        assert segment.lexical
        return [(tmp_path / folder / file.name).read_bytes() for file in segment.lexical.files]

    whole = files("whole")
    monkeypatch.setattr(postings, "MERGE_POSTINGS", 100)
    assert files("steps") == whole


def test_a_title_counts_as_often_as_settings_say(tmp_path: Path) -> None:
    documents = [Document("title", "beta", "alpha"), Document("twice", "alpha alpha beta")]
    for weight, first in ((0, "twice"), (1, "twice"), (5, "title")):
        store = new_store(tmp_path / str(weight), LexicalSettings(title_weight=weight))
        put(store, documents)
        assert answers(store.snapshot, ["alpha"])[0][0][0] == first


def test_a_filter_admits_before_ranking_and_leaves_scores(tmp_path: Path) -> None:
    store = new_store(tmp_path / "i")
    documents = [
        Document(f"d{i}", "water " * (1 + i), metadata={"year": 2000 + i}) for i in range(9)
    ]
    put(store, documents, [1 + i % 3 for i in range(9)])
    mask = store.snapshot.filter_mask("year < 2003")
    everywhere = dict(answers(store.snapshot, ["water"])[0])
    ((rows, scores, *_),) = store.snapshot.lexical.search(["water"], 5, mask)
    found = dict(zip(store.snapshot.doc_ids(rows), scores.tolist(), strict=True))
    assert sorted(found) == ["d0", "d1", "d2"]
    assert found == {doc_id: everywhere[doc_id] for doc_id in found}


def test_equal_scores_come_in_the_order_of_rows_and_stop_words_find_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path / "i")
    put(store, [Document(f"d{i}", "the mill and the river") for i in range(9)])
    (found,) = answers(store.snapshot, ["mills"], k=4)
    assert [doc_id for doc_id, _ in found] == ["d0", "d1", "d2", "d3"]
    assert answers(store.snapshot, ["the", "", "and of"]) == [[], [], []]


def test_documents_without_a_word_are_kept_merged_and_not_found(tmp_path: Path) -> None:
    store = new_store(tmp_path / "i")
    put(store, [Document("one", "a"), Document("two", "the !")])
    put(store, [Document("three", "?")])
    assert answers(IndexStore.open(tmp_path / "i").snapshot, ["the", "mill"]) == [[], []]
    put(store, [Document("mill", "the mill")])
    with store.writer() as writer:
        writer.compact()
        writer.delete(["mill"])
        writer.compact()
    snapshot = IndexStore.open(tmp_path / "i").snapshot
    assert (snapshot.n_docs, answers(snapshot, ["mill"])) == (3, [[]])
    assert check(tmp_path / "i").problems == ()


def test_stems_and_stop_words_are_those_of_the_language() -> None:
    reader = TermReader(LexicalSettings(language="german"))
    assert tuple(reader.matched_words("die Häuser der Berge", "Haus und Tal, die")) == ("häuser",)
    plain = TermReader(LexicalSettings(language="none"))
    assert tuple(plain.matched_words("Runs the", "runs of the")) == ("runs", "the")
    english = TermReader(LexicalSettings())
    assert tuple(english.matched_words("Running RUNS the mill", "She ran; he runs the mills.")) == (
        "running",
        "runs",
        "mill",
    )
    assert tuple(english.matched_words("cafe\u0301s", "the caf\u00e9")) == ("caf\u00e9s",)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"language": "englsh"}, "did you mean 'english'"),
        ({"k1": -1}, "k1 is -1"),
        ({"b": 1.5}, "b is 1.5"),
        ({"title_weight": 101}, "title_weight is 101"),
        ({"title_weight": 1.5}, r"title_weight is 1\.5; it must be of type int"),
        ({"k1": "1"}, "k1 is '1'; it must be of type float"),
        ({"stop_words": "the"}, "stop_words is 'the'; it must be a list"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LexicalSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("language", ["german", "korean", "turkish"])
def test_the_lists_of_stop_words_are_those_of_bm25s(language: str) -> None:
    theirs = bm25s.tokenization.Tokenizer(stopwords=language).stopwords
    assert LexicalSettings(language=language).stop_words == tuple(theirs)


def test_stop_words_may_be_a_list(tmp_path: Path) -> None:
    store = new_store(tmp_path / "i")
    put(store, DOCUMENTS[:5])
    own = LexicalSettings(stop_words=["the", "of"])  # type: ignore[arg-type]
    with store.writer() as writer:
        writer.set_lexical(own)
    assert IndexStore.open(tmp_path / "i").snapshot.manifest.lexical == own
    assert own.stop_words == ("the", "of")


@pytest.mark.parametrize("language", ["klingon", "\ud800", ""])
def test_a_language_that_another_version_knew_is_refused_when_words_are_read(language: str) -> None:
    known_once = LexicalSettings(language=language, stop_words=())
    with pytest.raises(ConfigError, match="has no stemmer for"):
        TermReader(known_once)


def test_a_new_index_needs_a_known_language_also_with_own_stop_words() -> None:
    with pytest.raises(ConfigError, match="did you mean 'english'"):
        BuildSettings(lexical=LexicalSettings(language="englsh", stop_words=("the",)))
    for language in ("none", "german", "chinese"):
        assert BuildSettings(lexical=LexicalSettings(language=language, stop_words=("die",)))


def test_an_index_without_lexical_data_says_how_to_get_them(tmp_path: Path) -> None:
    store = IndexStore.create(
        tmp_path / "i", Manifest.new(VectorSettings(dim=2, metric="dot"), {"year": "int64"})
    )
    put(store, DOCUMENTS[:5])
    with pytest.raises(NoLexicalData, match="index lexical"):
        _ = store.snapshot.lexical
    with store.writer() as writer:
        writer.set_lexical(LexicalSettings())
    direct = new_store(tmp_path / "direct")
    put(direct, DOCUMENTS[:5])
    queries = [doc.title for doc in DOCUMENTS[:5]]
    assert answers(store.snapshot, queries) == answers(direct.snapshot, queries)


def test_other_settings_remake_postings_only_where_terms_change(tmp_path: Path) -> None:
    store = new_store(tmp_path / "i")
    put(store, DOCUMENTS[:50])
    before = lexical_of(store)
    with store.writer() as writer:
        writer.set_lexical(LexicalSettings(k1=2.0))
        assert lexical_of(store) == before
        writer.set_lexical(LexicalSettings(k1=2.0, language="none"))
    assert lexical_of(store) != before
    fresh = new_store(tmp_path / "fresh", LexicalSettings(k1=2.0, language="none"))
    put(fresh, DOCUMENTS[:50])
    assert answers(store.snapshot, QUERIES) == answers(fresh.snapshot, QUERIES)
    assert check(tmp_path / "i").strays == ()


def lexical_of(store: IndexStore) -> object:
    return [segment.lexical for segment in store.snapshot.manifest.segments]


@pytest.mark.parametrize("name", ["terms", "pairs", "lengths"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_damaged_postings_are_counted_again(tmp_path: Path, name: str, harm: str) -> None:
    store = new_store(tmp_path / "i")
    put(store, DOCUMENTS[:50])
    expected = answers(store.snapshot, QUERIES)
    (file,) = (tmp_path / "i" / "lex").glob(f"*.{name}.npy")
    data = bytearray(file.read_bytes())
    file.unlink()
    if harm != "remove":
        data[-1] ^= 1
        file.write_bytes(data if harm == "flip" else data[:-1])
    with pytest.warns(UserWarning, match="index repair"):
        assert answers(IndexStore.open(tmp_path / "i").snapshot, QUERIES) == expected
    assert [problem.file for problem in check(tmp_path / "i").problems] == [f"lex/{file.name}"]
    with store.writer() as writer:
        writer.repair()
    repaired = IndexStore.open(tmp_path / "i")
    assert answers(repaired.snapshot, QUERIES) == expected
    assert check(tmp_path / "i").problems == ()


def test_postings_of_a_large_segment_are_counted_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting_files, "SLICE_DOCS", 60)
    store = IndexStore.create(
        tmp_path / "i", Manifest.new(VectorSettings(dim=2, metric="dot"), {"year": "int64"})
    )
    put(store, DOCUMENTS)
    with store.writer() as writer:
        writer.set_lexical(LexicalSettings())
    direct = new_store(tmp_path / "direct")
    put(direct, DOCUMENTS)
    queries = [doc.title for doc in DOCUMENTS[::50]]
    assert answers(store.snapshot, queries) == answers(direct.snapshot, queries)
    assert len(list((tmp_path / "i" / "lex").iterdir())) == 4
