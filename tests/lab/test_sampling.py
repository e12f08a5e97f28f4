from collections import Counter
from pathlib import Path

import pytest

from sbert_search.errors import EvaluationError
from sbert_search.lab.inputs import sample_texts, special_ids, texts_of
from sbert_search.text.documents import CorpusReader
from tests.models.tiny import tiny_tokenizer


def test_a_sample_has_different_filled_texts_and_depends_on_the_seed_alone() -> None:
    texts = [f"text {n % 50}" for n in range(100)] + ["", "  "]
    some = sample_texts(texts, 1000, seed=1)
    assert sorted(some) == sorted({*texts} - {"", "  "})
    assert sample_texts(iter(texts), 10, seed=1) == sample_texts(texts, 10, seed=1)
    assert sample_texts(texts, 10, seed=1) != sample_texts(texts, 10, seed=2)


def test_every_text_is_chosen_equally_often() -> None:
    texts = [str(n) for n in range(6)]
    counts = Counter(text for seed in range(3000) for text in sample_texts(texts, 2, seed=seed))
    assert all(900 < counts[text] < 1100 for text in texts)  # 1000 expected, 26 is a deviation


def test_too_few_texts_are_refused_by_number() -> None:
    with pytest.raises(EvaluationError, match="at least 3 different texts, and its sample has 2"):
        sample_texts(["a", "b", "a", " "], 10, seed=0, fewest=3)


def test_documents_give_title_and_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"_id": "1", "title": "Mills", "text": "They grind."}\n')
    assert list(texts_of(CorpusReader(tmp_path / "a.jsonl"))) == ["Mills They grind."]


def test_special_tokens_of_a_tokenizer(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    names = {tokenizer.backend.id_to_token(number) for number in special_ids(tokenizer)}
    assert {"[CLS]", "[SEP]"} <= names
    assert "cat" not in names
