"""How evenly vectors fill their space: mean cosine by dimension, effective rank, uniformity.

Source: Wang & Isola 2020, Understanding Contrastive Representation Learning through Alignment and
Uniformity on the Hypersphere, section 4.1 (arXiv:2005.10242). Lower values of both are better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.floating]

_ROWS = 1024  # rows compared with all others at a time


def alignment(first: Vectors, second: Vectors) -> float:
    """Mean squared distance of unit vectors of texts that mean the same, (n, dim): from 0 to 4."""
    return float(np.square(first - second).sum(axis=1).mean())


def uniformity(vectors: Vectors) -> float:
    """Logarithm of the mean Gaussian potential of all pairs of at least 2 unit vectors, (n, dim).

    From -8 (two opposite vectors) to 0 (all vectors equal).
    """
    n, total = len(vectors), 0.0
    for start in range(0, n, _ROWS):
        squared = 2 - 2 * (vectors[start : start + _ROWS] @ vectors[start:].T)
        potentials = np.exp(-2 * squared)
        within = potentials[:, : len(potentials)]  # pairs that this block counts in both orders
        total += 2 * potentials.sum(dtype=np.float64) - within.sum(dtype=np.float64)
    return float(np.log((total - n) / (n * (n - 1))))  # without pairs of a text with itself


Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class UnitSums:
    """Sums over at least 2 vectors scaled to norm 1."""

    n: int
    total: Array  # of the unit vectors, (dim,)
    squares: Array  # of the squares of their components, (dim,)

    @classmethod
    def of(cls, vectors: Vectors) -> UnitSums:
        """Sum vectors, (n, dim), of any norm above 0."""
        unit = unit_rows(vectors)
        return cls(len(unit), unit.sum(axis=0), np.square(unit).sum(axis=0))

    def products(self) -> Array:
        """Mean over all pairs of different vectors of the product of their components, (dim,).

        The sum over the dimensions is the mean cosine.
        """
        products: Array = (np.square(self.total) - self.squares) / (self.n * (self.n - 1))
        return products

    def mean_cosine(self) -> float:
        """Mean cosine over all pairs of two different vectors."""
        return float(self.products().sum())

    def dimension_shares(self, most: int) -> dict[int, float]:
        """Shares in the mean cosine of the ``most`` dimensions with the largest, these first.

        All shares add up to 1; one is negative if the dimension lowers the mean cosine. All are 0
        if the mean cosine is 0.

        Source: Timkey & van Schijndel 2021, section 3.1 (arXiv:2109.04404).
        """
        products = self.products()
        total = products.sum()
        shares = products / total if total else np.zeros_like(products)
        largest = np.argsort(-shares, kind="stable")[:most]
        return {int(dimension): float(shares[dimension]) for dimension in largest}


def unit_rows(vectors: Vectors) -> Array:
    """Scale rows to norm 1, float64 (n, dim); a zero row stays zero."""
    exact = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(exact, axis=1, keepdims=True)
    unit: Array = exact / np.where(norms > 0, norms, 1.0)
    return unit


def deviations(products: Array, total: Array, n: int) -> Array:
    """Standard deviations along the principal directions, descending, (dim,).

    ``products`` is the sum of the outer products of each of n vectors with itself, (dim, dim), and
    ``total`` their sum, (dim,).
    """
    mean = total / n
    variances = np.linalg.eigvalsh(products / n - np.outer(mean, mean))[::-1]
    descending: Array = np.sqrt(np.clip(variances, 0, None))
    return descending


def effective_rank(values: Array) -> float:
    """Exponential of the entropy of singular values that are first scaled to a sum of 1.

    From 1 (one direction) to the number of values (all directions alike); 0 if all are 0.

    Source: Roy & Vetterli 2007, The effective rank, section 2 (EUSIPCO 2007).
    """
    total = float(values.sum())
    if total == 0:
        return 0.0
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def first_direction(values: Array) -> float:
    """Share of the first principal direction in the variance, given the standard deviations."""
    variances = np.square(values)
    total = float(variances.sum())
    return float(variances[0] / total) if total else 0.0


def explained_by_one(vectors: Vectors) -> float:
    """Share of the squared singular values that the first one has; the mean is not removed.

    Source: Ethayarajh 2019, section 3.3, maximum explainable variance (arXiv:1909.00512).
    """
    squares = np.square(np.linalg.svd(np.asarray(vectors, dtype=np.float64), compute_uv=False))
    total = float(squares.sum())
    return float(squares[0] / total) if total else 0.0


def cosine_quantiles(vectors: Vectors, at: tuple[float, ...]) -> Mapping[float, float]:
    """Quantiles of the cosines of all pairs of at least 2 vectors, by share, such as 0.5."""
    cosines = pair_cosines(vectors)
    return dict(zip(at, np.quantile(cosines, at).tolist(), strict=True))


def pair_cosines(vectors: Vectors) -> Array:
    """Cosines of all pairs of two different vectors, (n (n - 1) / 2,)."""
    unit = unit_rows(vectors)
    cosines: Array = (unit @ unit.T)[np.triu_indices(len(unit), 1)]
    return cosines
