"""The CRF against brute force over all paths of short sequences."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from sbert_search.models.token_heads import ChainScores, LinearChainCrf
from sbert_search.tag_schemes import Scheme, first_fault, tag_names


def random_crf(labels: tuple[str, ...], scheme: Scheme | None, seed: int) -> LinearChainCrf:
    crf = LinearChainCrf(labels, scheme)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return crf


def score(path: tuple[int, ...], emissions: Tensor, chain: ChainScores) -> float:
    total = chain.start[path[0]] + chain.end[path[-1]]
    total = total + sum(emissions[step, tag] for step, tag in enumerate(path))
    total = total + sum(chain.transitions[a, b] for a, b in pairwise(path))
    return float(total)


SCHEMES: tuple[Scheme | None, ...] = (None, "bio", "bilou")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_likelihood_and_viterbi_equal_brute_force(scheme: Scheme | None, length: int) -> None:
    labels = tag_names(["LOC"], scheme or "bilou")
    crf = random_crf(labels, scheme, seed=length)
    emissions = torch.randn(length, len(labels), generator=torch.Generator().manual_seed(9))
    chain = ChainScores(*(part.detach() for part in crf.chain()))
    paths = list(product(range(len(labels)), repeat=length))
    scores = torch.tensor([score(path, emissions, chain) for path in paths])
    best = paths[int(scores.argmax())]
    assert tuple(crf.decode(emissions)) == best
    # In a longer batch, what stands after the end of a sequence does not count.
    padded = torch.full((2, 7, len(labels)), 50.0)
    padded[0, :length], padded[1] = emissions, torch.zeros(7, len(labels))
    tags = torch.zeros(2, 7, dtype=torch.int64)
    tags[0, :length] = torch.tensor(best)
    losses = crf.loss(padded, tags, torch.tensor([length, 7]))
    expected = torch.logsumexp(scores, 0) - scores.max()
    torch.testing.assert_close(losses[0], expected, atol=1e-5, rtol=1e-5)
    if scheme is not None:
        allowed = [p for p in paths if first_fault([labels[n] for n in p], scheme) is None]
        assert best in allowed
        share = torch.tensor([score(path, emissions, chain) for path in allowed]).logsumexp(0)
        torch.testing.assert_close(share, torch.logsumexp(scores, 0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scheme", ["bio", "bilou"])
def test_no_emissions_make_it_choose_what_the_scheme_forbids(scheme: Scheme) -> None:
    labels = tag_names(["LOC", "PER"], scheme)
    crf = LinearChainCrf(labels, scheme)
    generator = torch.Generator().manual_seed(1)
    for length in range(1, 30):
        emissions = 50 * torch.randn(length, len(labels), generator=generator)
        assert first_fault([labels[n] for n in crf.decode(emissions)], scheme) is None
    assert crf.decode(torch.zeros(0, len(labels))) == []


def test_the_loss_trains_every_score_that_is_allowed() -> None:
    labels = tag_names(["LOC"], "bio")
    crf = random_crf(labels, "bio", seed=0)
    emissions = torch.zeros(1, 3, 3, requires_grad=True)
    loss = crf.loss(emissions, torch.tensor([[0, 1, 2]]), torch.tensor([3]))
    torch.autograd.backward(loss.sum())
    assert crf.transitions.grad is not None
    assert crf.transitions.grad[0, 2] == 0  # I-LOC after O
    assert (crf.transitions.grad != 0).sum() == 8
    assert emissions.grad is not None
    assert bool(emissions.grad.isfinite().all())
