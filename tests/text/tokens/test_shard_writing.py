from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from sbert_search.errors import CorpusError
from sbert_search.text.documents import CorpusReader
from sbert_search.text.fields import FieldNames
from sbert_search.text.tokens.shard_writing import write_token_shards
from sbert_search.text.tokens.vocabulary import SPECIAL_TOKENS, bert_tokenizer
from sbert_search.text.tokens.words import WordRules

PIECES = [*SPECIAL_TOKENS, "the", "cat", "sat", "##s", ".", "[", "]", "mask"]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return bert_tokenizer(PIECES, WordRules())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [
        {"_id": "1", "title": "The cat", "text": "The cat sat. The cats!\nCats"},
        {"_id": "2", "title": "cat", "text": ""},
        {"_id": "3", "text": "The [MASK] sat."},
    ]
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def read(shards_of: Path, tokenizer: Tokenizer, source: Path) -> list[list[list[str]]]:
    shards = write_token_shards(CorpusReader([source]), tokenizer, shards_of)
    pieces = [PIECES[token] for token in shards.tokens(0, shards.n_tokens)]
    sentences = [
        pieces[a:b]
        for a, b in zip(shards.sentence_starts, shards.sentence_starts[1:], strict=False)
    ]
    borders = zip(shards.document_starts, shards.document_starts[1:], strict=False)
    return [sentences[a:b] for a, b in borders]


def test_documents_become_sentences_of_tokens(
    tokenizer: Tokenizer, source: Path, tmp_path: Path
) -> None:
    unknown, mask = "[UNK]", ["[", "mask", "]"]
    assert read(tmp_path / "shards", tokenizer, source) == [
        [["the", "cat", "sat", "."], ["the", "cat", "##s", unknown], ["cat", "##s"]],
        [["cat"]],  # no text, so the title is read
        [["the", *mask, "sat", "."]],  # a special token in a text is text
    ]
    assert tokenizer.encode("[MASK]").tokens[1] == "[MASK]"  # the caller's own is as it was


def test_other_tokenizers_and_sources_are_refused_and_the_same_goes_on(
    tokenizer: Tokenizer, source: Path, tmp_path: Path
) -> None:
    first = read(tmp_path / "shards", tokenizer, source)
    assert read(tmp_path / "shards", tokenizer, source) == first
    with pytest.raises(CorpusError, match="another origin"):
        read(tmp_path / "shards", bert_tokenizer(PIECES[:-1], WordRules()), source)
    source.write_text('{"_id": "9", "text": "cat"}\n')
    with pytest.raises(CorpusError, match="another origin"):
        read(tmp_path / "shards", tokenizer, source)


def test_shards_of_another_text_field_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = tmp_path / "fields.jsonl"
    source.write_text('{"heading": "The cat", "text": "The cat sat."}')

    def write(field: str | None) -> int:
        reader = CorpusReader([source], fields=FieldNames(text=field))
        return write_token_shards(reader, tokenizer, tmp_path / "shards").n_tokens

    assert write("heading") == write("heading") == 2
    for other in ("text", None):
        with pytest.raises(CorpusError, match="another origin"):
            write(other)


def test_sentences_are_neither_padded_nor_truncated(
    tokenizer: Tokenizer, source: Path, tmp_path: Path
) -> None:
    plain = read(tmp_path / "plain", tokenizer, source)
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(2)
    assert read(tmp_path / "set", tokenizer, source) == plain
    assert len(tokenizer.encode("the cat sat").ids) == 16  # the caller's own is as it was
    assert read(tmp_path / "plain", tokenizer, source) == plain  # the same origin
