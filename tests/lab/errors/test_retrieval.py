import pytest

from sbert_search.lab.errors.items import Analysed, WordReader, analyze_queries
from sbert_search.records import Document, Query

DOCUMENTS = [
    Document("bees", "Bees dance in the hive to show flowers"),
    Document("honey", "Bees make honey", title="Honey"),
    Document("bread", "Baking bread with yeast"),
    Document("moon", "The far side of the moon"),
]
QUERIES = [
    Query("q1", "why do bees dance"),
    Query("q2", "moon honey zebra"),
    Query("q3", "nothing is relevant"),
    Query("q4", "baking"),
    Query("q5", "honey of bees"),
]
QRELS = {
    "q1": {"bees": 1, "moon": 0},
    "q2": {"moon": 1, "honey": 2, "gone": 1},
    "q3": {"moon": 0},
    "q4": {"bread": 1},
    "q5": {"gone": 1},
}
RUN = {
    "q1": {"bees": 0.9, "honey": 0.5},
    "q2": {"bread": 0.8, "moon": 0.6},
    "q4": {"moon": 0.5, "bees": 0.4},
    "q5": {"bees": 0.5},
}
VALUES = {"q1": 1.0, "q2": 0.25, "q3": 0.0, "q4": 0.0, "q5": 0.0}


def analysed() -> Analysed:
    return analyze_queries(
        QUERIES, iter(DOCUMENTS), QRELS, RUN, VALUES, reader=WordReader(), worst=10
    )


def test_features_of_every_query_by_hand() -> None:
    found = analysed()
    assert found.left_out == 1  # q3
    assert found.values == [1.0, 0.25, 0.0, 0.0]
    first, second, fourth, fifth = found.features
    assert first == {
        "words in the query": 4.0,
        "largest share of its words in a relevant text": 1.0,  # bees, dance; not stop words
        "documents with its rarest word": 1.0,  # dance is in one document, bees in two
        "words in that relevant text": 8.0,
        "relevant documents": 1.0,
    }
    assert second["largest share of its words in a relevant text"] == pytest.approx(1 / 3)
    assert second["documents with its rarest word"] == 0.0  # zebra is in none
    assert second["relevant documents"] == 3.0
    assert fourth["words in the query"] == 1.0
    # The only relevant document of q5 is not in the corpus.
    assert fifth["largest share of its words in a relevant text"] is None
    assert fifth["words in that relevant text"] is None


def test_the_worst_queries_come_first_with_expected_and_found_documents() -> None:
    worst = analysed().worst
    assert [each.item for each in worst] == ["q4", "q5", "q2", "q1"]
    second = worst[2]
    assert second.expected == "at rank 2; 2 not found"
    assert second.came == "bread: Baking bread with yeast"
    assert second.shared == ("moon",)
    assert [(d.doc_id, d.rank, d.grade, d.shared) for d in second.relevant] == [
        ("moon", 2, 1, ("moon",)),
        ("honey", None, 2, ("honey",)),
        ("gone", None, 1, ()),
    ]
    assert second.relevant[1].text == "Honey Bees make honey"
    assert second.relevant[2].text == "(not in the corpus)"
    assert [(d.doc_id, d.rank, d.score, d.grade) for d in second.found] == [
        ("bread", 1, 0.8, None),
        ("moon", 2, 0.6, 1),
    ]
    assert worst[3].expected == "at rank 1"
    assert worst[0].expected == "1 not found"


def test_a_query_that_found_nothing() -> None:
    found = analyze_queries(
        QUERIES[:1], DOCUMENTS, QRELS, {}, {"q1": 0.0}, reader=WordReader(), worst=1
    )
    assert (found.worst[0].came, found.worst[0].found) == ("nothing", ())


def test_of_equally_bad_queries_the_farther_relevant_document_is_worse() -> None:
    run = {"q1": {"moon": 0.9, "bread": 0.8, "bees": 0.7}, "q4": {"moon": 0.9, "bread": 0.8}}
    found = analyze_queries(
        [QUERIES[3], QUERIES[0]],
        DOCUMENTS,
        QRELS,
        run,
        {"q1": 0.0, "q4": 0.0},
        reader=WordReader(),
        worst=1,
    )
    assert [each.item for each in found.worst] == ["q1"]


def test_all_words_of_a_long_document_count() -> None:
    long = Document("long", f"bees {'x1 ' * 9_998}honey")  # 10,000 words, 30,000 characters
    found = analyze_queries(
        [Query("q", "honey of bees")],
        [long],
        {"q": {"long": 1}},
        {"q": {"long": 0.5}},
        {"q": 1.0},
        reader=WordReader(),
        worst=1,
    )
    [relevant] = found.worst[0].relevant
    assert (relevant.words, relevant.shared) == (10_000, ("honey", "bees"))
    assert len(relevant.text) <= 600


def test_a_document_without_a_text_is_in_the_corpus() -> None:
    found = analyze_queries(
        [Query("q", "bees")],
        [Document("blank", "")],
        {"q": {"blank": 1, "gone": 1}},
        {"q": {"blank": 0.5}},
        {"q": 1.0},
        reader=WordReader(),
        worst=1,
    )
    texts = {each.doc_id: each.text for each in found.worst[0].relevant}
    assert texts == {"blank": "(no text)", "gone": "(not in the corpus)"}
