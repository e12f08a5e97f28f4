"""Google's vocabulary read by us and by the Python tokenizer that came with BERT."""

from __future__ import annotations

import json
import lzma
import os
from importlib import import_module
from itertools import islice
from pathlib import Path

import pytest

from sbert_search.text.tokens.vocabulary import bert_tokenizer, read_vocabulary

# The library has no types for it, and keeps it out of sight since its version 5.
LEGACY = import_module("transformers.models.bert.tokenization_bert_legacy").BertTokenizerLegacy
N_PARAGRAPHS = int(os.environ.get("PARITY_PARAGRAPHS", "500"))


def paragraphs(real_data: Path) -> list[str]:
    with lzma.open(real_data / "wikipedia-en-2014" / "train-0.jsonl.xz", "rt") as lines:
        every = (part for line in lines for part in json.loads(line)["text"].split("\n"))
        return list(islice((part for part in every if len(part) >= 150), N_PARAGRAPHS))


@pytest.mark.thorough
def test_ids_equal_those_of_berts_own_tokenizer(real_data: Path) -> None:
    vocabulary, rules = read_vocabulary(real_data / "bert-base-uncased-vocab")
    ours = bert_tokenizer(vocabulary, rules)
    theirs = LEGACY(str(real_data / "bert-base-uncased-vocab" / "vocab.txt"))
    texts = paragraphs(real_data)
    assert len(texts) == N_PARAGRAPHS
    for text, encoded in zip(texts, ours.encode_batch(texts), strict=True):
        assert encoded.ids == theirs(text)["input_ids"], text
