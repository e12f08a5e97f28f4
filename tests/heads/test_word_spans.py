"""Words given by a user find the same tokens as in transformers."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from sbert_search.heads.windows import TRUNCATED, encode_words, join_words
from sbert_search.models.loading.folder import load_tokenizer, read_folder
from tests.models.tiny import tiny_tokenizer
from tests.parity.folders import bare

WORDS = [
    ["The", "cat", "sat", "on", "the", "mat", "."],
    ["unknown", "words", "dog's", "(sun)", "é"],
    ["cat"],
    [],
]


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_first_tokens_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    folder = bare(tmp_path / family, family)
    tokenizer = load_tokenizer(read_folder(folder))
    joined = [join_words(words) for words in WORDS]
    got_ids, got_first = encode_words(tokenizer, *zip(*joined, strict=True))
    theirs = AutoTokenizer.from_pretrained(folder)
    for (text, spans), ids, first in zip(joined, got_ids, got_first, strict=True):
        encoded = theirs(text, truncation=True, return_offsets_mapping=True)
        assert ids == encoded["input_ids"]
        offsets = encoded["offset_mapping"]
        for (start, end), n in zip(spans, first, strict=True):
            covering = [i for i, (a, b) in enumerate(offsets) if a < end and b > start]
            assert n == (covering[0] if covering else TRUNCATED)


def test_words_are_split_as_transformers_splits_given_words(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "tokens")
    tokenizer.save(tmp_path / "tokens")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "tokens")
    got_ids, got_first = encode_words(tokenizer, *zip(*map(join_words, WORDS), strict=True))
    for words, ids, first in zip(WORDS, got_ids, got_first, strict=True):
        encoded = theirs(words, is_split_into_words=True, truncation=True)
        assert ids == encoded["input_ids"]
        owners = encoded.word_ids()
        assert first == [owners.index(n) for n in range(len(words))]


def test_words_without_a_token_and_behind_the_limit_are_told(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path, max_len=6)
    words = ["the", "\u200b", "cat", "sat", "on", "the", "mat"]
    got_ids, got_first = encode_words(tokenizer, *zip(*[join_words(words)], strict=True))
    assert len(got_ids[0]) == 6
    assert got_first == [[1, TRUNCATED, 2, 3, 4, TRUNCATED, TRUNCATED]]
