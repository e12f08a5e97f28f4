"""Losses of embeddings: of pairs, of triplets, of whole batches and of a student model.

A row of a batch is one training example. The loss of a batch is the mean of the values of its rows,
so the sums over the parts of a batch, or over the processes of distributed training, add up. For
the losses that compare the rows of a batch with each other, the caller gathers the embeddings of
all processes. Embeddings are float (batch, dim), and scores and labels of pairs are (batch,), if
not stated otherwise.

Sources: Schroff et al. 2015, FaceNet (arXiv:1503.03832); Hermans et al. 2017, In Defense of the
Triplet Loss (arXiv:1703.07737), for triplets that are formed from the labels of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, normalize, pad, relu

Distance = Literal["cosine", "euclidean"]


def distances(x: Tensor, y: Tensor, kind: Distance) -> Tensor:
    """Distance of row i of ``x`` to row i of ``y``, float (batch,); cosine: from 0 to 2."""
    if kind == "cosine":
        return 1 - cosine_similarity(x, y, dim=-1)
    # For equal rows, the gradient of this norm is 0, not NaN.
    euclidean: Tensor = torch.linalg.vector_norm(x - y, dim=-1)
    return euclidean


def all_distances(x: Tensor, kind: Distance) -> Tensor:
    """Distances of all pairs of rows of a matrix (batch, dim); float (batch, batch)."""
    if kind == "cosine":
        unit = normalize(x, dim=-1)
        return 1 - unit @ unit.T
    # A matrix product would be faster, but rounding would make small distances inexact.
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")


def cosent(similarities: Tensor, scores: Tensor, *, scale: float = 20.0) -> Tensor:
    """CoSENT loss: penalise every two pairs whose similarities are not in the order of the scores.

    It is log(1 + sum of exp(scale x (similarity of pair i - similarity of pair j))), a scalar, over
    all i and j where pair i has a lower score than pair j.

    Source: Su 2022, CoSENT (kexue.fm/archives/8847), as in sentence-transformers' CoSENTLoss.
    """
    scaled = similarities.float() * scale
    differences = scaled.unsqueeze(1) - scaled.unsqueeze(0)  # [i, j]: pair i minus pair j
    inverted = differences[scores.unsqueeze(1) < scores.unsqueeze(0)]
    return torch.cat([differences.new_zeros(1), inverted]).logsumexp(dim=0)


def angle_similarity(u: Tensor, v: Tensor) -> Tensor:
    """Similarity of row i of ``u`` and row i of ``v``, taken as vectors of complex numbers.

    The first half of an embedding holds real parts, the second half imaginary parts; if ``dim`` is
    odd, a 0 is appended first. The result is float (batch,), from 0 to the square root of 2; the
    angle loss is `cosent` of it. Its gradient does not vanish where a cosine is near 1 or -1, as
    that of the cosine almost does.

    Source: Li & Li 2024, AoE: Angle-optimized Embeddings, section 3 (arXiv:2309.12871).
    """
    odd = u.shape[-1] % 2
    u, v = (normalize(pad(x, (0, odd)), dim=-1) for x in (u, v))
    (real_u, imaginary_u), (real_v, imaginary_v) = u.chunk(2, dim=-1), v.chunk(2, dim=-1)
    sines = (imaginary_u * real_v - real_u * imaginary_v).sum(dim=-1)
    return ((u * v).sum(dim=-1) + sines).abs()


def online_contrastive(pair_distances: Tensor, labels: Tensor, *, margin: float = 0.5) -> Tensor:
    """Contrastive loss of the hard pairs of a batch, a scalar sum; labels as in `contrastive`.

    A pair of label 1 is hard if its distance is larger than the smallest distance of a pair of
    label 0. A pair of label 0 is hard if its distance is smaller than the largest distance of a
    pair of label 1.

    Source: sentence-transformers' OnlineContrastiveLoss.
    """
    positives, negatives = pair_distances[labels == 1], pair_distances[labels == 0]
    # If no pair has one of the labels, the mean distance of the pairs with the other label replaces
    # the smallest or largest distance.
    nearest_negative = negatives.amin() if len(negatives) else positives.mean()
    farthest_positive = positives.amax() if len(positives) else negatives.mean()
    hard_positives = positives[positives > nearest_negative]
    hard_negatives = negatives[negatives < farthest_positive]
    return hard_positives.square().sum() + (margin - hard_negatives).relu().square().sum()


def multiple_negatives_ranking(
    anchors: Tensor, candidates: Tensor, *, scale: float = 20.0, symmetric: bool = False
) -> Tensor:
    """Cross-entropy of each anchor's positive among all candidates; logits are scaled cosines.

    Candidates are float (n, dim), n ≥ batch: row i is the positive of anchor i; any rows after the
    positives are hard negatives, which are negatives for all anchors. ``scale`` is the inverse of
    the softmax temperature. If ``symmetric``, the result, a scalar, is averaged with the
    cross-entropy of each positive's anchor among all anchors.

    If anchor and positive are the same text, encoded twice with dropout, this is SimCSE (Gao et al.
    2021, arXiv:2104.08821, section 3).

    Sources: Henderson et al. 2017 (arXiv:1705.00652) section 4.4; scale and cosine as in
    sentence-transformers' MultipleNegativesRankingLoss.
    """
    scores = normalize(anchors, dim=-1) @ normalize(candidates, dim=-1).T * scale  # (batch, n)
    target = torch.arange(len(anchors), device=anchors.device)
    forward = cross_entropy(scores, target)
    if not symmetric:
        return forward
    return (forward + cross_entropy(scores[:, : len(anchors)].T, target)) / 2


def matryoshka(
    loss: Callable[[Tensor], Tensor],
    embeddings: Tensor,
    dims: Sequence[int],
    weights: Sequence[float] | None = None,
) -> Tensor:
    """Sum a loss over embeddings that are truncated to several dimensions and normalised.

    ``loss`` maps embeddings (..., d), for any d, to a loss. The sum is weighted (None: all weights
    are 1) and has the shape that ``loss`` returns.

    Source: Kusupati et al. 2022, Matryoshka Representation Learning, section 3 (arXiv:2205.13147);
    truncation and normalisation as in sentence-transformers' MatryoshkaLoss.
    """
    parts = [
        weight * loss(normalize(embeddings[..., :dim], dim=-1))
        for dim, weight in zip(dims, weights or [1.0] * len(dims), strict=True)
    ]
    return torch.stack(parts).sum(dim=0)


def candidate_scores(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Dot products of the anchors and their candidates (batch, n, dim), float (batch, n)."""
    return (anchors.unsqueeze(1) * candidates).sum(dim=-1)


def margin_mse(scores: Tensor, teacher: Tensor) -> Tensor:
    """Margin MSE: mean squared difference between the score margins of student and teacher.

    Scores are float (batch, 1 + negatives), the positive first. A margin is the score of the
    positive minus the score of a negative. The result is float (batch,).

    Source: Hofstätter et al. 2020, Cross-Architecture Knowledge Distillation, section 3
    (arXiv:2010.02666).
    """
    margins, teacher_margins = (x[:, :1] - x[:, 1:] for x in (scores, teacher))
    return (margins - teacher_margins).square().mean(dim=1)


def kl_divergence(scores: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """KL divergence between the distributions of teacher and student over each row's candidates.

    Scores are float (batch, candidates). The result is KL(teacher || student) in nats, times the
    squared temperature, float (batch,).

    Source: Hinton, Vinyals & Dean 2015, section 2 (arXiv:1503.02531).
    """
    student = (scores / temperature).log_softmax(dim=1)
    target = (teacher / temperature).log_softmax(dim=1)
    return (target.exp() * (target - student)).sum(dim=1) * temperature**2


def embedding_mse(embeddings: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference between the student's embeddings and the teacher's, float (batch,).

    The student's embeddings are float (batch, texts, dim). The target for all texts of a row is the
    teacher's embedding of the first text, of which the others are translations or paraphrases.

    Source: Reimers & Gurevych 2020, Making Monolingual Sentence Embeddings Multilingual, section 2
    (arXiv:2004.09813).
    """
    return (embeddings - teacher.unsqueeze(1)).square().mean(dim=(1, 2))


def embedding_cosine(embeddings: Tensor, teacher: Tensor, *, l2: float = 0.0) -> Tensor:
    """1 - cosine of the student's embeddings and the teacher's, float (batch,).

    Shapes are as in `embedding_mse`. ``l2`` is the weight of the squared Euclidean distance, which
    is added; for embeddings of norm 1, that distance is 2 (1 - cosine).

    Source: Vujanic & Rueckstiess 2025, LEAF (arXiv:2509.12539).
    """
    target = teacher.unsqueeze(1)
    loss = 1 - cosine_similarity(embeddings, target, dim=-1)
    if l2:
        loss = loss + l2 * (embeddings - target).square().sum(dim=-1)
    return loss.mean(dim=1)


CONCATENATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "u": lambda u, v: u,
    "v": lambda u, v: v,
    "|u-v|": lambda u, v: (u - v).abs(),
    "u*v": lambda u, v: u * v,
}
"""Functions of two embeddings u and v, by name; their results are inputs of a pair classifier."""


def concatenate(u: Tensor, v: Tensor, parts: Sequence[str] = ("u", "v", "|u-v|")) -> Tensor:
    """Concatenate functions of two embeddings, as the input of a classifier of pairs.

    ``parts`` are keys of `CONCATENATIONS`; the result is float (batch, dim x number of parts).

    Source: Reimers & Gurevych 2019, Sentence-BERT, section 3 and table 6 (arXiv:1908.10084). Their
    classifier is one linear layer on this input, trained with cross-entropy.
    """
    return torch.cat([CONCATENATIONS[part](u, v) for part in parts], dim=-1)


def cosine_mse(u: Tensor, v: Tensor, scores: Tensor) -> Tensor:
    """Squared difference between the cosine of each pair and the target cosine, float (batch,).

    Source: Reimers & Gurevych 2019, section 3, regression objective (arXiv:1908.10084).
    """
    return (cosine_similarity(u, v, dim=-1) - scores).square()


def contrastive(
    u: Tensor, v: Tensor, labels: Tensor, *, margin: float = 0.5, distance: Distance = "cosine"
) -> Tensor:
    """Contrastive loss: pull pairs of label 1 together, push pairs of label 0 apart up to a margin.

    Labels are 1 for pairs that belong together, 0 for others. The result is float (batch,).

    Source: Hadsell, Chopra & LeCun 2006, Dimensionality Reduction by Learning an Invariant Mapping,
    section 2.1.
    """
    pair_distances = distances(u, v, distance)
    together = labels.to(pair_distances.dtype)
    pull, push = pair_distances.square(), relu(margin - pair_distances).square()
    return 0.5 * (together * pull + (1 - together) * push)


def triplet(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    margin: float = 1.0,
    distance: Distance = "euclidean",
) -> Tensor:
    """Triplet loss of each anchor with the positive and the negative in its row, float (batch,).

    It is 0 if the negative is farther from the anchor than the positive by at least ``margin``.

    Source: Reimers & Gurevych 2019, Sentence-BERT, section 3 (arXiv:1908.10084).
    """
    gap = distances(anchors, positives, distance) - distances(anchors, negatives, distance)
    return relu(gap + margin)


def all_triplets(
    embeddings: Tensor, labels: Tensor, *, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """Mean loss of those triplets of a batch whose loss is above 0; a scalar, 0 if there are none.

    A triplet is an anchor, one of its positives and one of its negatives. Two embeddings are
    positives of each other if their labels, the classes, are equal, otherwise negatives.
    """
    matrix = all_distances(embeddings, distance)
    same = _same_class(labels)
    anchor, positive = _positives(same).nonzero(as_tuple=True)
    gap = matrix[anchor, positive].unsqueeze(1) - matrix[anchor] + margin  # (pairs, batch)
    violated = relu(gap) * ~same[anchor]
    return violated.sum() / (violated > 0).sum().clamp(min=1)


def hardest_triplets(
    embeddings: Tensor, labels: Tensor, *, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """Triplet loss of each anchor with its farthest positive and its nearest negative.

    The result is the mean over all anchors, a scalar. If an anchor has no positive, 0 is taken as
    the distance to the positive. If the whole batch has one class, the farthest embedding is taken
    as the negative.
    """
    matrix = all_distances(embeddings, distance)
    same = _same_class(labels)
    farthest = matrix.masked_fill(~_positives(same), 0.0).amax(dim=1)
    nearest = torch.where(same, matrix.amax(dim=1, keepdim=True), matrix).amin(dim=1)
    return relu(farthest - nearest + margin).mean()


def semi_hard_triplets(
    embeddings: Tensor, labels: Tensor, *, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """Triplet loss of each anchor and each of its positives with a semi-hard negative.

    The semi-hard negative is the nearest of the negatives that are farther from the anchor than the
    positive is. If no negative is farther than the positive, the farthest negative is used. The
    result is the mean over all pairs of anchor and positive, a scalar.

    Source: Schroff et al. 2015, section 3.2, semi-hard negatives.
    """
    matrix = all_distances(embeddings, distance)
    same = _same_class(labels)
    # The negatives of each anchor are sorted by distance. A binary search then finds the next
    # farther negative for each positive. This takes O(batch^2) memory; comparing all triplets would
    # take O(batch^3).
    negatives = matrix.masked_fill(same, torch.inf).sort(dim=1).values  # (batch, batch), inf at end
    index = torch.searchsorted(negatives.detach(), matrix.detach(), right=True)
    next_farther = negatives.gather(1, index.clamp(max=len(same) - 1))
    # An anchor without a negative has only the row's minimum here, so its maximum is finite.
    row_minimum = matrix.amin(dim=1, keepdim=True)
    farthest = torch.where(same, row_minimum, matrix).amax(dim=1, keepdim=True)
    gap = matrix - torch.where(next_farther.isfinite(), next_farther, farthest) + margin
    positives = _positives(same)
    return (relu(gap) * positives).sum() / positives.sum().clamp(min=1)


def _same_class(labels: Tensor) -> Tensor:
    return labels.unsqueeze(0) == labels.unsqueeze(1)


def _positives(same: Tensor) -> Tensor:
    return same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
