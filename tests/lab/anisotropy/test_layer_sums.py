from itertools import combinations

import numpy as np
import pytest
import torch

from sbert_search.evaluate.metrics.isotropy import explained_by_one
from sbert_search.lab.anisotropy.layers import (
    OCCURRENCES,
    BatchTokens,
    LayerFigures,
    LayerSums,
    Occurrences,
)
from tests.evaluate.metrics.test_isotropy import cosine

SIZES = (3, 1, 4, 2, 2, 3)  # tokens of each text
DIM = 5
WORD = (0, 3, 5, 9, 10, 12)  # row of the word, in each of the texts


def states() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(4).normal(0.4, 1, (sum(SIZES), DIM))).float()


def batch_of(texts: range, before: int) -> BatchTokens:
    """The words of some texts, of which each has the sampled word once."""
    sizes = [SIZES[text] for text in texts]
    start = sum(SIZES[: texts.start])
    firsts = torch.tensor([sum(sizes[:number]) for number in range(len(sizes))])
    rows = torch.tensor([WORD[text] - start for text in texts])
    slots = torch.arange(before, before + len(texts))
    occurrences = Occurrences(rows, torch.zeros_like(rows), slots)
    return BatchTokens(torch.arange(sum(sizes)), firsts, occurrences, rows)


def figures_of(parts: tuple[range, ...]) -> LayerFigures:
    sums = LayerSums(DIM, [len(SIZES)], torch.device("cpu"))
    for part in parts:
        start = sum(SIZES[: part.start])
        rows = states()[start : start + sum(SIZES[text] for text in part)]
        sums.add(rows, batch_of(part, part.start))
    return sums.figures(2, seed=0)


def test_the_figures_are_those_of_all_states_one_by_one() -> None:
    got, every = figures_of((range(6),)), states().numpy()
    texts = np.split(every, np.cumsum(SIZES)[:-1])
    tokens = np.mean([cosine(a, b) for a, b in combinations(every, 2)])
    assert (got.layer, got.tokens) == (2, sum(SIZES))
    assert got.token_cosine == pytest.approx(tokens, abs=1e-6)
    means = [text.mean(axis=0) for text in texts]
    pairs = [cosine(a, b) for a, b in combinations(means, 2)]
    assert got.sentence_cosine == pytest.approx(np.mean(pairs), abs=1e-6)
    intra = [np.mean([cosine(m, t) for t in text]) for m, text in zip(means, texts, strict=True)]
    assert got.intra_sentence == pytest.approx(np.mean(intra), abs=1e-6)
    assert got.intra_sentence_adjusted == pytest.approx(np.mean(intra) - tokens, abs=1e-6)
    word = every[list(WORD)]
    alike = np.mean([cosine(a, b) for a, b in combinations(word, 2)])
    assert got.self_similarity == pytest.approx(alike, abs=1e-6)
    assert got.self_similarity_adjusted == pytest.approx(alike - tokens, abs=1e-6)
    assert got.word_direction == pytest.approx(explained_by_one(word), abs=1e-6)
    centred = np.linalg.svd(every - every.mean(axis=0), compute_uv=False) / np.sqrt(len(every))
    assert got.deviations == pytest.approx(centred, abs=1e-6)
    assert got.first_direction == pytest.approx(centred[0] ** 2 / (centred**2).sum())
    assert got.high_token_cosines == np.mean(
        [cosine(a, b) >= 0.9 for a, b in combinations(word, 2)]
    )


def test_batches_change_nothing() -> None:
    whole, parts = figures_of((range(6),)), figures_of((range(2), range(2, 5), range(5, 6)))
    assert parts.token_cosine == pytest.approx(whole.token_cosine)
    assert parts.intra_sentence == pytest.approx(whole.intra_sentence)
    assert parts.self_similarity == pytest.approx(whole.self_similarity)
    assert parts.word_direction == pytest.approx(whole.word_direction)
    assert parts.deviations == pytest.approx(whole.deviations)
    assert parts.top_dimensions == pytest.approx(whole.top_dimensions)


def test_without_sampled_words_there_are_no_figures_of_words() -> None:
    sums = LayerSums(DIM, [], torch.device("cpu"))
    none = torch.zeros(0, dtype=torch.int64)
    some = batch_of(range(6), 0)._replace(occurrences=Occurrences(none, none, none))
    sums.add(states(), some)
    got = sums.figures(0, seed=0)
    assert got.self_similarity is got.word_direction is got.word_direction_adjusted is None


def test_a_word_in_more_texts_than_are_kept_counts_in_full() -> None:
    n = OCCURRENCES + 7
    rows = torch.from_numpy(np.random.default_rng(0).normal(0.4, 1, (n, DIM))).float()
    sums = LayerSums(DIM, [n], torch.device("cpu"))
    every = torch.arange(n)
    sums.add(
        rows,
        BatchTokens(every, every, Occurrences(every, torch.zeros_like(every), every), every),
    )
    got = sums.figures(0, seed=0)
    pairs = [cosine(a, b) for a, b in combinations(rows.numpy(), 2)]
    assert got.self_similarity == pytest.approx(np.mean(pairs), abs=1e-6)
    assert got.word_direction == pytest.approx(explained_by_one(rows[:OCCURRENCES].numpy()))
    assert got.intra_sentence == pytest.approx(1.0)  # each text is its only word
