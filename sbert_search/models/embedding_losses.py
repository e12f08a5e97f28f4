"""Losses of embeddings: of pairs, of triplets, of whole batches and of a student model.

A row of a batch is one training example. The loss of a batch is the mean of the values of its rows.
Each value of a loss of pairs or triplets depends on one row only. If a batch is split into parts,
or over the processes of distributed training, the sums of the values of the parts therefore add up
to the sum of the values of the batch. The caller runs the model. In distributed training it also
gathers the embeddings of all processes for the losses that compare the rows of a batch with each
other.

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
    """Distance of row i of ``x`` to row i of ``y``, for each i.

    Args:
        x: Float (batch, dim).
        y: Float (batch, dim).
        kind: ``cosine`` is 1 - cosine similarity, from 0 to 2.

    Returns:
        Float (batch,). If two rows are equal, the gradient of their Euclidean distance is 0, not
        NaN.
    """
    if kind == "cosine":
        return 1 - cosine_similarity(x, y, dim=-1)
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

    Args:
        similarities: Similarity of the two texts of each pair, float (batch,).
        scores: Gold score of each pair, (batch,); pairs with equal scores are not compared.
        scale: Factor of the similarities (inverse temperature).

    Returns:
        log(1 + sum of exp(scale x (similarity of pair i - similarity of pair j))), a scalar. The
        sum is over all i and j where pair i has a lower score than pair j.

    Source: Su 2022, CoSENT (kexue.fm/archives/8847), as in sentence-transformers' CoSENTLoss.
    """
    scaled = similarities.float() * scale
    differences = scaled.unsqueeze(1) - scaled.unsqueeze(0)  # [i, j]: pair i minus pair j
    inverted = differences[scores.unsqueeze(1) < scores.unsqueeze(0)]
    return torch.cat([differences.new_zeros(1), inverted]).logsumexp(dim=0)


def angle_similarity(u: Tensor, v: Tensor) -> Tensor:
    """Similarity of row i of ``u`` and row i of ``v``, taken as vectors of complex numbers.

    The first half of an embedding holds real parts, the second half imaginary parts; if ``dim`` is
    odd, a 0 is appended first. The gradient of a cosine almost vanishes where the cosine is near 1
    or -1; the gradient of this similarity does not vanish there.

    Args:
        u: Float (batch, dim).
        v: Float (batch, dim).

    Returns:
        Float (batch,), from 0 to the square root of 2. The angle loss is `cosent` of these
        similarities.

    Source: Li & Li 2024, AoE: Angle-optimized Embeddings, section 3 (arXiv:2309.12871).
    """
    odd = u.shape[-1] % 2
    u, v = (normalize(pad(x, (0, odd)), dim=-1) for x in (u, v))
    (real_u, imaginary_u), (real_v, imaginary_v) = u.chunk(2, dim=-1), v.chunk(2, dim=-1)
    sines = (imaginary_u * real_v - real_u * imaginary_v).sum(dim=-1)
    return ((u * v).sum(dim=-1) + sines).abs()


def online_contrastive(pair_distances: Tensor, labels: Tensor, *, margin: float = 0.5) -> Tensor:
    """Contrastive loss over the hard pairs of a batch only.

    Args:
        pair_distances: Distance of the two texts of each pair, float (batch,).
        labels: 1 for pairs that belong together, 0 for others, (batch,).
        margin: Distance from which on the loss of a pair of label 0 is 0.

    Returns:
        Sum of the losses of the hard pairs, a scalar. A pair of label 1 is hard if its distance is
        larger than the smallest distance of a pair of label 0. A pair of label 0 is hard if its
        distance is smaller than the largest distance of a pair of label 1.

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

    If anchor and positive are the same text, encoded twice with dropout, this is SimCSE (Gao et al.
    2021, arXiv:2104.08821, section 3). In distributed training the caller gathers the anchors and
    candidates of all processes.

    Args:
        anchors: Float (batch, dim).
        candidates: Float (n, dim), n ≥ batch: row i is the positive of anchor i; any rows after
            the positives are hard negatives, which are negatives for all anchors.
        scale: Factor of the cosines, which is the inverse of the softmax temperature.
        symmetric: Whether to average with the cross-entropy of each positive's anchor among all
            anchors.

    Returns:
        Mean cross-entropy, a scalar.

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

    Args:
        loss: Function that maps embeddings (..., d), for any d, to a loss.
        embeddings: Float (..., dim).
        dims: Numbers of leading dimensions to keep, each at most ``dim``.
        weights: Weight of the loss for each of ``dims``; None: all 1.

    Returns:
        The weighted sum of the losses, of the shape that ``loss`` returns.

    Source: Kusupati et al. 2022, Matryoshka Representation Learning, section 3 (arXiv:2205.13147);
    truncation and normalisation as in sentence-transformers' MatryoshkaLoss.
    """
    parts = [
        weight * loss(normalize(embeddings[..., :dim], dim=-1))
        for dim, weight in zip(dims, weights or [1.0] * len(dims), strict=True)
    ]
    return torch.stack(parts).sum(dim=0)


def candidate_scores(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Score the candidates of each anchor by dot product.

    Args:
        anchors: Float (batch, dim).
        candidates: Float (batch, n, dim).

    Returns:
        Float (batch, n).
    """
    return (anchors.unsqueeze(1) * candidates).sum(dim=-1)


def margin_mse(scores: Tensor, teacher: Tensor) -> Tensor:
    """Margin MSE: mean squared difference between the score margins of student and teacher.

    A margin is the score of the positive minus the score of a negative.

    Args:
        scores: The student's scores of the positive, then of its negatives, float
            (batch, 1 + negatives).
        teacher: The teacher's scores, such as a cross-encoder's logits, of the same shape.

    Returns:
        Float (batch,).

    Source: Hofstätter et al. 2020, Cross-Architecture Knowledge Distillation, section 3
    (arXiv:2010.02666).
    """
    margins, teacher_margins = (x[:, :1] - x[:, 1:] for x in (scores, teacher))
    return (margins - teacher_margins).square().mean(dim=1)


def kl_divergence(scores: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """KL divergence between the distributions of teacher and student over each row's candidates.

    Args:
        scores: The student's scores, float (batch, candidates).
        teacher: The teacher's scores, of the same shape.
        temperature: Divides the scores of both models.

    Returns:
        KL(teacher || student) in nats, times the squared temperature, float (batch,).

    Source: Hinton, Vinyals & Dean 2015, section 2 (arXiv:1503.02531).
    """
    student = (scores / temperature).log_softmax(dim=1)
    target = (teacher / temperature).log_softmax(dim=1)
    return (target.exp() * (target - student)).sum(dim=1) * temperature**2


def embedding_mse(embeddings: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference between the student's embeddings and the teacher's.

    Args:
        embeddings: The student's embeddings of the texts of each row, float (batch, texts, dim).
        teacher: The target for all texts of each row: the teacher's embedding of the first text,
            of which the other texts (if any) are translations or paraphrases, float (batch, dim).

    Returns:
        Float (batch,).

    Source: Reimers & Gurevych 2020, Making Monolingual Sentence Embeddings Multilingual, section 2
    (arXiv:2004.09813).
    """
    return (embeddings - teacher.unsqueeze(1)).square().mean(dim=(1, 2))


CONCATENATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "u": lambda u, v: u,
    "v": lambda u, v: v,
    "|u-v|": lambda u, v: (u - v).abs(),
    "u*v": lambda u, v: u * v,
}
"""Functions of two embeddings u and v, by name; their results are inputs of a pair classifier."""


def concatenate(u: Tensor, v: Tensor, parts: Sequence[str] = ("u", "v", "|u-v|")) -> Tensor:
    """Concatenate functions of two embeddings, as the input of a classifier of pairs.

    Args:
        u: Embeddings of the first texts, float (batch, dim).
        v: Embeddings of the second texts, float (batch, dim).
        parts: Names of functions, keys of `CONCATENATIONS`.

    Returns:
        Float (batch, dim x number of parts).

    Source: Reimers & Gurevych 2019, Sentence-BERT, section 3 and table 6 (arXiv:1908.10084). Their
    classifier is one linear layer on this input, trained with cross-entropy.
    """
    return torch.cat([CONCATENATIONS[part](u, v) for part in parts], dim=-1)


def cosine_mse(u: Tensor, v: Tensor, scores: Tensor) -> Tensor:
    """Squared difference between the cosine similarity of each pair and the score of the pair.

    Args:
        u: Float (batch, dim).
        v: Float (batch, dim).
        scores: Target cosine of each pair, float (batch,).

    Returns:
        Float (batch,).

    Source: Reimers & Gurevych 2019, section 3, regression objective (arXiv:1908.10084).
    """
    return (cosine_similarity(u, v, dim=-1) - scores).square()


def contrastive(
    u: Tensor, v: Tensor, labels: Tensor, *, margin: float = 0.5, distance: Distance = "cosine"
) -> Tensor:
    """Contrastive loss: pull pairs of label 1 together, push pairs of label 0 apart up to a margin.

    Args:
        u: Float (batch, dim).
        v: Float (batch, dim).
        labels: 1 for pairs that belong together, 0 for others, (batch,).
        margin: Distance from which on the loss of a pair of label 0 is 0.
        distance: Distance function.

    Returns:
        Float (batch,).

    Source: Hadsell, Chopra & LeCun 2006, Dimensionality Reduction by Learning an Invariant
    Mapping, section 2.1.
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
    """Triplet loss of each anchor with the positive and the negative in the same row.

    Args:
        anchors: Float (batch, dim).
        positives: Float (batch, dim).
        negatives: Float (batch, dim).
        margin: The loss of a row is 0 if the negative is farther from the anchor than the positive
            by at least this distance.
        distance: Distance function. Sentence-BERT uses Euclidean distance and margin 1.

    Returns:
        Float (batch,).

    Source: Reimers & Gurevych 2019, Sentence-BERT, section 3 (arXiv:1908.10084).
    """
    gap = distances(anchors, positives, distance) - distances(anchors, negatives, distance)
    return relu(gap + margin)


def all_triplets(
    embeddings: Tensor, labels: Tensor, *, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """Mean loss of those triplets of a batch whose loss is above 0.

    A triplet is an anchor, one of its positives and one of its negatives.

    Args:
        embeddings: Float (batch, dim).
        labels: Class of each embedding, (batch,). Two embeddings are positives of each other if
            their classes are equal, otherwise negatives.
        margin: The loss of a triplet is 0 if the negative is farther from the anchor than the
            positive by at least this distance.
        distance: Distance function.

    Returns:
        A scalar; 0 if no triplet has a loss above 0.
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

    Arguments are those of `all_triplets`; the result is the mean over all anchors, a scalar. If an
    anchor has no positive, 0 is taken as the distance to the positive. If the whole batch has one
    class, the farthest embedding is taken as the negative.
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
    positive is. If no negative is farther than the positive, the farthest negative is used.
    Arguments are those of `all_triplets`; the result is the mean over all pairs of anchor and
    positive, a scalar.

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
