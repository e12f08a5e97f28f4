from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sbert_search.errors import ConfigError, CorpusError
from sbert_search.text.tokens.segments import (
    ExamplePlan,
    Kind,
    SegmentSettings,
    document_borders,
    plan_examples,
)

Ints = NDArray[np.int64]
Corpus = list[list[int]]  # tokens of each sentence of each document

CORPORA = st.lists(
    st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=2, max_size=8
).filter(lambda corpus: any(len(document) > 1 for document in corpus))


def starts(corpus: Corpus) -> tuple[Ints, Ints]:
    sizes = [size for document in corpus for size in document]
    return (
        np.concatenate([[0], np.cumsum(sizes)]),
        np.concatenate([[0], np.cumsum([len(document) for document in corpus])]),
    )


def plan(corpus: Corpus, kind: Kind, max_len: int = 32, short: float = 0.0) -> ExamplePlan:
    settings = SegmentSettings(kind=kind, max_len=max_len, short_share=short)
    return plan_examples(*starts(corpus), settings, seed=5)


def large_corpus() -> Corpus:
    rng = np.random.default_rng(0)
    return [rng.integers(3, 40, rng.integers(2, 60)).tolist() for _ in range(1_600)]


def document_of(tokens: Ints, corpus: Corpus) -> Ints:
    sentence_starts, document_starts = starts(corpus)
    return np.searchsorted(sentence_starts[document_starts], tokens, side="right") - 1


@pytest.mark.parametrize("kind", ["nsp", "sop"])
def test_pairs_over_a_million_tokens(kind: Kind) -> None:
    corpus = large_corpus()
    pairs = plan(corpus, kind, max_len=128)
    assert int(pairs.lengths.sum()) > 1_000_000
    assert abs(pairs.label.mean() - 0.5) < 0.015  # 4 standard deviations of 11,000 fair draws
    assert pairs.lengths.max() <= 128
    assert pairs.lengths.mean() > 105
    apart = document_of(pairs.first[:, 0], corpus) != document_of(pairs.second[:, 0], corpus)
    assert np.array_equal(apart, pairs.label == 1 if kind == "nsp" else np.zeros(len(pairs), bool))
    in_order = pairs.first[:, 1] <= pairs.second[:, 0]
    same = ~apart
    assert np.array_equal(in_order[same], pairs.label[same] == 0)


@pytest.mark.thorough
@given(CORPORA, st.sampled_from(["nsp", "sop"]), st.integers(8, 60))
@settings(deadline=None)
def test_segments_are_consecutive_and_never_cross_documents(
    corpus: Corpus, kind: Kind, max_len: int
) -> None:
    pairs = plan(corpus, kind, max_len, short=0.3)
    borders = set(starts(corpus)[0].tolist())
    for first, second, label, length in zip(
        pairs.first, pairs.second, pairs.label, pairs.lengths, strict=True
    ):
        for span in (first, second):
            assert span[0] < span[1]
            assert len(set(document_of(np.array([span[0], span[1] - 1]), corpus))) == 1
        assert length == 3 + (first[1] - first[0]) + (second[1] - second[0]) <= max_len
        ahead, behind = (second, first) if kind == "sop" and label else (first, second)
        if length < max_len and not (kind == "nsp" and label):  # nothing was cut off
            assert ahead[1] == behind[0]
            assert {*first.tolist(), *second.tolist()} <= borders


@given(CORPORA, st.sampled_from(["full-sentences", "document-sentences"]), st.integers(8, 60))
@settings(deadline=None)
def test_packing_loses_no_token_and_is_greedy(corpus: Corpus, kind: Kind, max_len: int) -> None:
    sentence_starts, document_starts = starts(corpus)
    document_token_starts = sentence_starts[document_starts]
    packed = plan(corpus, kind, max_len)
    assert packed.first[0, 0] == 0
    assert packed.first[-1, 1] == sentence_starts[-1]
    assert np.array_equal(packed.first[1:, 0], packed.first[:-1, 1])
    ends = sentence_starts[1:].tolist()
    separators = np.diff(document_borders(packed.first, document_token_starts)).ravel().tolist()
    assert kind == "full-sentences" or not any(separators)
    for (start, end), n_separators, length in zip(
        packed.first.tolist(), separators, packed.lengths.tolist(), strict=True
    ):
        assert length == end - start + n_separators + 2 <= max_len
        following = next((e for e in ends if e > end), None)
        if end not in ends:  # a sentence longer than an example was cut
            assert length == max_len
        elif following and (kind == "full-sentences" or end not in document_token_starts):
            whole = following - start + n_separators + 2 + (end in document_token_starts)
            assert whole > max_len


def test_short_examples_come_in_their_share() -> None:
    lengths = plan(large_corpus(), "full-sentences", max_len=128, short=0.1).lengths
    assert plan(large_corpus(), "full-sentences", max_len=128).lengths.min() > 60
    # A drawn target is even over 2..126, so about a third of the short ones fall below 45.
    assert 0.02 < np.mean(lengths < 45) < 0.05


def test_a_plan_follows_from_the_seed() -> None:
    corpus, settings = [[5] * 9] * 4, SegmentSettings(kind="nsp", max_len=32)

    def rows(seed: int) -> bytes:
        return plan_examples(*starts(corpus), settings, seed=seed).second.tobytes()

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)


def test_nsp_needs_a_second_document() -> None:
    with pytest.raises(CorpusError, match="the source has only 1 document"):
        plan([[5, 5, 5]], "nsp")
    assert len(plan([[5, 5, 5]], "sop"))


def test_documents_of_one_sentence_make_no_pairs() -> None:
    with pytest.raises(CorpusError, match=r"two sentences .* segments\.kind=full-sentences"):
        plan([[5], [5]], "sop")


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_len is 7"):
        SegmentSettings(max_len=7)
    with pytest.raises(ConfigError, match="short_share"):
        SegmentSettings(short_share=1.5)
