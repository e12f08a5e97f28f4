"""Linear maps that make sentence vectors less anisotropic; embedders and models with them."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sbert_search.embed.delegation import DelegatingEmbedder
from sbert_search.embed.protocol import TextEmbedder, TokenizedTexts, Vectors
from sbert_search.errors import ConfigError, EvaluationError
from sbert_search.evaluate.metrics.isotropy import Array
from sbert_search.evaluate.metrics.isotropy import Vectors as FloatRows
from sbert_search.lab.inputs import open_folder
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.heads import Dense, Normalize
from sbert_search.models.loading.identity import ModelIdentity

# Principal directions whose variance is below this share of the largest variance count as
# rounding errors.
_LEAST_VARIANCE = 1e-8


@dataclass(frozen=True, eq=False)
class LinearMap:
    """Maps vectors x to weight @ (x - mean)."""

    weight: Array  # float64 (dim_out, dim)
    mean: Array  # float64 (dim,)

    @property
    def bias(self) -> Array:
        """The constant part: the map is x to weight @ x + bias."""
        bias: Array = -self.weight @ self.mean
        return bias

    def __call__(self, vectors: FloatRows) -> Array:
        """Map vectors, (n, dim), to float64 (n, dim_out)."""
        mapped: Array = (np.asarray(vectors, dtype=np.float64) - self.mean) @ self.weight.T
        return mapped


def standardise(vectors: FloatRows) -> LinearMap:
    """Subtract the mean and divide each dimension by its standard deviation.

    A constant dimension becomes 0.

    Source: Timkey & van Schijndel 2021, section 4.1 (arXiv:2109.04404).
    """
    exact = np.asarray(vectors, dtype=np.float64)
    spread = exact.std(axis=0)
    scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
    return LinearMap(np.diag(scale), exact.mean(axis=0))


def all_but_the_top(vectors: FloatRows, *, directions: int | None = None) -> LinearMap:
    """Subtract the mean and the components along the first principal directions.

    By default, one direction for each 100 dimensions is removed, and at least one.

    Source: Mu & Viswanath 2018, All-but-the-Top, algorithm 1 (arXiv:1702.01417).
    """
    dim = vectors.shape[1]
    directions = max(1, round(dim / 100)) if directions is None else directions
    if not 0 <= directions < dim:
        raise ConfigError(f"directions is {directions}; it must be from 0 to {dim - 1}.")
    _, rows, mean = _principal(vectors)
    top = rows[:directions]
    return LinearMap(np.eye(dim) - top.T @ top, mean)


def whiten(vectors: FloatRows, *, dim: int | None = None) -> LinearMap:
    """Subtract the mean and map to the principal directions, each scaled to variance 1.

    The mapped vectors have the identity as their covariance matrix. ``dim`` is the number of
    directions to keep; by default, all that have variance.

    Source: Su et al. 2021, Whitening Sentence Representations, section 3 (arXiv:2103.15316).
    """
    variances, rows, mean = _principal(vectors)
    rank = int((variances > _LEAST_VARIANCE * max(variances[0], 1e-300)).sum())
    kept = rank if dim is None else dim
    if not 1 <= kept <= rank:
        raise ConfigError(
            f"whitening to {kept} dimensions: the {len(vectors):,} vectors vary in {rank} "
            "directions. Give fewer dimensions or more texts."
        )
    return LinearMap(rows[:kept] / np.sqrt(variances[:kept, None]), mean)


def _principal(vectors: FloatRows) -> tuple[Array, Array, Array]:
    """Return variances, descending; their principal directions, as rows; and the mean."""
    exact = np.asarray(vectors, dtype=np.float64)
    mean = exact.mean(axis=0)
    values, columns = np.linalg.eigh(np.cov(exact, rowvar=False, bias=True).reshape(len(mean), -1))
    return values[::-1], columns.T[::-1], mean


def fit_remedies(
    vectors: FloatRows, *, directions: int | None = None, whitened_dim: int | None = None
) -> dict[str, LinearMap]:
    """Fit every remedy to vectors, (n, dim)."""
    if (vectors == vectors[0]).all():
        raise EvaluationError(f"All {len(vectors):,} sentence vectors are equal; name other texts.")
    return {
        "standardising": standardise(vectors),
        "all-but-the-top": all_but_the_top(vectors, directions=directions),
        "whitening": whiten(vectors, dim=whitened_dim),
    }


class MappedEmbedder(DelegatingEmbedder):
    """Applies a linear map to the vectors of an embedder, and scales them to norm 1."""

    def __init__(self, embedder: TextEmbedder, name: str, remedy: LinearMap) -> None:
        self._embedder, self._map = embedder, remedy
        inner = embedder.identity
        content = hashlib.sha256(remedy.weight.tobytes() + remedy.mean.tobytes()).hexdigest()
        self._identity = dataclasses.replace(
            inner,
            name=f"{inner.name}, {name}",
            weights_sha256=hashlib.sha256(f"{inner.weights_sha256} {content}".encode()).hexdigest(),
            pooling=f"{inner.pooling}>Dense",
            dim=len(remedy.weight),
            similarity="cosine",
            normalize=True,
        )

    @property
    def inner(self) -> TextEmbedder:
        """The embedder whose vectors are mapped."""
        return self._embedder

    @property
    def dim(self) -> int:
        """Number of dimensions of a mapped vector."""
        return self._identity.dim

    @property
    def identity(self) -> ModelIdentity:
        """Identity of this embedder: the identity of the model, changed by the linear map."""
        return self._identity

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors, float32 (n, dim)."""
        mapped = self._map(self._embedder.encode_tokens(tokens))
        norms = np.linalg.norm(mapped, axis=1, keepdims=True)
        unit: Vectors = (mapped / np.where(norms > 0, norms, 1.0)).astype(np.float32)
        return unit


def require_free(out: Path) -> None:
    """Check before an analysis that the folder for the new model is absent or empty."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} already exists; name a new folder for the model.")


def save_with_map(model: str | Path | None, remedy: LinearMap, out: str | Path) -> None:
    """Save a copy of a model that applies a linear map to its embeddings.

    The copy is a folder for sentence-transformers. The map is a Dense module without activation.
    If the model scales its embeddings to norm 1, so does the copy, by a Normalize module at the
    end.

    Args:
        model: The model whose embeddings the map was fitted on.
        remedy: The map.
        out: Folder for the copy; it must not contain a model.

    Raises:
        ModelError: The model cannot be loaded, or the folder already contains a model.

    Example:
        >>> texts = [f"{a} {b}" for a in ("cat", "dog", "sun") for b in ("sat", "ran", "far", "on")]
        >>> report = analyze_anisotropy("my-model", texts, device="cpu")
        >>> save_with_map("my-model", report.remedies["standardising"], "copy")
        >>> Embedder("copy", device="cpu").dim
        16
    """
    folder, _ = open_folder(model)
    old = BiEncoder.from_folder(folder)
    dim_out, dim = remedy.weight.shape
    dense = Dense(old.dim, dim_out, activation=torch.nn.Identity())
    weight = torch.zeros(dim_out, old.dim, dtype=torch.float64)
    # The map has no weights for the dimensions that truncate_dim cut off; they stay 0.
    weight[:, :dim] = torch.from_numpy(remedy.weight.copy())
    dense.linear.load_state_dict({"weight": weight, "bias": torch.from_numpy(remedy.bias)})
    parts: list[Dense | Normalize] = [
        part for part in old.head if isinstance(part, (Dense, Normalize))
    ]
    ends_in_norm = bool(parts) and isinstance(parts[-1], Normalize)
    new = BiEncoder(
        old.encoder,
        old.tokenizer,
        pooling=old.pooling,
        head=[*parts, dense, *([Normalize()] if ends_in_norm else [])],
        prompts=old.prompts,
        default_prompt_name=old.default_prompt_name,
        similarity=old.similarity,
    )
    new.save(out)
