import pytest

from sbert_search.lab.errors.items import WordReader, analyze_pairs
from sbert_search.text.labelled.records import TextPair

PAIRS = [
    ("0", TextPair("a man plays a flute", "a man plays the flute", score=5.0, source="")),
    ("2", TextPair("a man sings", "the man is singing loudly", score=4.0, source="")),
    ("5", TextPair("a dog runs", "a man runs", score=1.0, source="")),
    ("6", TextPair("rain falls", "the stock rises", score=0.0, source="")),
]


def test_rank_errors_and_features_by_hand() -> None:
    # Gold ranks 4, 3, 2, 1; predicted ranks 4, 1, 2.5, 2.5.
    predicted, gold = [0.9, 0.1, 0.5, 0.5], [5.0, 4.0, 1.0, 0.0]
    found = analyze_pairs(PAIRS, predicted, gold, reader=WordReader(), worst=2)
    assert found.values == [0.0, 2 / 4, 0.5 / 4, 1.5 / 4]
    assert [each.item for each in found.worst] == ["2", "6"]
    worst = found.worst[0]
    assert worst.texts == ("a man sings", "the man is singing loudly")
    assert worst.words == (3, 5)
    assert worst.shared == ("man", "sings")
    assert worst.forms == ("man", "singing")
    assert worst.expected == "gold 4, rank 3 of 4"
    assert worst.came == "score 0.1000, rank 1 of 4"
    assert found.worst[1].came == "score 0.5000, rank 2.5 of 4"
    assert worst.features == {
        "words of both texts": 8.0,
        "difference of the lengths": 2.0,
        "share of words in common": pytest.approx(2 / 3),  # man, sing; loud is in one text only
        "texts with the rarest word": 1.0,
        "gold score": 4.0,
    }
    # man is in five texts, plays and flute in two.
    assert found.features[0]["texts with the rarest word"] == 2.0


def test_a_pair_without_words_has_no_words_in_common() -> None:
    pairs = [PAIRS[0], ("1", TextPair("?", "!", score=1.0, source=""))]
    found = analyze_pairs(pairs, [0.9, 0.1], [5.0, 1.0], reader=WordReader(), worst=5)
    assert found.features[1]["share of words in common"] is None
    assert found.features[1]["texts with the rarest word"] is None
    assert len(found.worst) == 2
