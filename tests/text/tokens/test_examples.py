from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sbert_search.text.tokens.segments import (
    Kind,
    PackedExamples,
    SegmentSettings,
    plan_examples,
    read_examples,
)
from sbert_search.text.tokens.shard_writing import ShardWriter
from sbert_search.text.tokens.shards import TokenShards

CLS, SEP = 2, 3


@pytest.fixture
def shards(tmp_path: Path) -> TokenShards:
    """Documents 10 11 | 12, 20 | 21 22 and 30, in two shards."""
    with ShardWriter(tmp_path / "s", vocab_size=99, identity={}, shard_tokens=3) as writer:
        writer.add([[[10, 11], [12]]], 1)
        writer.add([[[20], [21, 22]], [[30]]], 3)
        writer.finish(3)
    return TokenShards(tmp_path / "s")


def read(shards: TokenShards, kind: Kind, max_len: int = 16) -> PackedExamples:
    settings = SegmentSettings(kind=kind, max_len=max_len)
    plan = plan_examples(shards.sentence_starts, shards.document_starts, settings, seed=1)
    return read_examples(shards, plan, np.arange(len(plan)), cls_id=CLS, sep_id=SEP)


def test_a_pair_has_two_segments_between_special_tokens(shards: TokenShards) -> None:
    found = read(shards, "sop")
    first = [[2, 10, 11, 3, 12, 3], [2, 12, 3, 10, 11, 3]][found.label[0]]
    second = [[2, 20, 3, 21, 22, 3], [2, 21, 22, 3, 20, 3]][found.label[1]]
    assert found.input_ids.tolist() == first + second
    assert found.token_type_ids[:6].tolist() == [0, 0, 0, *[[0, 1, 1], [1, 1, 1]][found.label[0]]]
    assert found.lengths.tolist() == [6, 6]


def test_documents_are_set_apart_in_one_span(shards: TokenShards) -> None:
    found = read(shards, "full-sentences")
    assert found.input_ids.tolist() == [2, 10, 11, 12, 3, 20, 21, 22, 3, 30, 3]
    assert not found.token_type_ids.any()
    assert found.lengths.tolist() == [11]


def test_no_separator_stands_where_a_span_begins_with_a_document(shards: TokenShards) -> None:
    found = read(shards, "document-sentences")
    assert found.input_ids.tolist() == [2, 10, 11, 12, 3, 2, 20, 21, 22, 3, 2, 30, 3]
    assert found.lengths.tolist() == [5, 5, 3]


def test_lengths_are_those_of_the_plan_and_rows_may_be_any(shards: TokenShards) -> None:
    plan = plan_examples(
        shards.sentence_starts, shards.document_starts, SegmentSettings(max_len=8), seed=3
    )
    found = read_examples(shards, plan, np.array([1, 0, 1]), cls_id=CLS, sep_id=SEP)
    assert found.lengths.tolist() == plan.lengths[[1, 0, 1]].tolist()
    assert len(found.input_ids) == len(found.token_type_ids) == found.lengths.sum()
    parts = np.split(found.input_ids, np.cumsum(found.lengths)[:-1])
    assert parts[0].tolist() == parts[2].tolist()
    assert all(part[0] == CLS and part[-1] == SEP for part in parts)
