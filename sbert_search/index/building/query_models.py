"""Query models: small models whose vectors of queries lie in the space of an index's vectors.

Whether they do is measured with stored texts: the vector of a text by the query model must be near
the stored one, and nearer to it than to those of most other texts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import warn
from sbert_search.embed.arguments import EmbedderOptions
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.embed.vectors import similarity
from sbert_search.errors import ConfigError, IndexStoreError, ModelMismatch
from sbert_search.index.building.model_check import as_embedder, stored_identity
from sbert_search.index.norms import unit_vectors
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import QueryModel

if TYPE_CHECKING:
    from sbert_search.index.index import Index

SAMPLE_ROWS = 256  # stored passages that are compared
FEWEST = 8  # texts; with fewer, another space could pass by chance
MIN_COSINE = 0.25  # mean, of the vectors of a text by both models
MIN_FOUND = 0.5  # share of the texts whose own stored vector is in the nearest tenth of all
HITS = 10
FEWEST_FOUND = 50  # texts; with fewer, too large a share of them would be a hit by chance
POOR = 0.5  # retention below which a warning is given
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


def add(
    index: Index, model: str | Path, name: str, **options: Unpack[EmbedderOptions]
) -> QueryModel:
    """Measure a model and record it; see `Index.add_query_model`."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name is {name!r}; it must have up to 64 letters, digits, dots, - or _, and begin "
            "with a letter or a digit."
        )
    if not isinstance(model, (str, Path)):
        raise ConfigError(
            f"{model!r} is a model in memory, which a search in another process cannot open; save "
            "it, and pass its folder."
        )
    index.require_finished()
    index.refresh()
    record = measured(index.state, as_embedder(model, **options))
    if record.retention is not None and record.retention < POOR:
        warn(
            f"{name} is in the space of the index, but finds only {record.retention:.0%} of the "
            "nearest texts that the index's model finds. Train it longer or on more texts."
        )
    put(index, name, record)
    return record


def put(index: Index, name: str, record: QueryModel | None) -> None:
    """Record a query model, or remove the one of this name; None: remove."""
    with index.store.writer() as writer:
        manifest = writer.snapshot.manifest
        if record is not None and record.vectors != manifest.active:
            raise IndexStoreError(f"{index.path} was switched to another model; add it again.")
        writer.rewrite(lambda work: work.old.with_query_model(name, record))


def measured(state: Snapshot, embedder: TextEmbedder) -> QueryModel:
    """Compare a model's vectors of stored texts with the stored ones; refuse another space."""
    manifest = state.manifest
    dim = manifest.settings.dim
    if embedder.dim != dim:
        raise ModelMismatch(
            f"{embedder.identity.name} gives vectors of {embedder.dim} dimensions, and {state.path}"
            f" holds vectors of {dim}. The recipe distill gives a small model the dimensions of the"
            " index's model."
        )
    texts, stored = _sample(state)
    if len(texts) < FEWEST:
        raise IndexStoreError(
            f"{state.path} has {len(texts)} different texts by which a query model could be "
            f"compared with its vectors; {FEWEST} are needed."
        )
    given = embedder.encode_query(texts)
    cosines = np.nan_to_num(unit_vectors(given) @ unit_vectors(stored).T, nan=-1)
    own = np.diagonal(cosines)
    n_nearer = (cosines > own[:, None] + 1e-6).sum(axis=1)
    cosine, found = float(own.mean()), float((n_nearer < max(1, len(texts) / 10)).mean())
    if not (cosine >= MIN_COSINE and found >= MIN_FOUND):
        raise ModelMismatch(
            f"{embedder.identity.name} is not in the space of the vectors of {state.path}. Its "
            f"vectors of {len(texts)} stored texts have a mean cosine of {cosine:.2f} with those "
            f"of the index ({MIN_COSINE} is needed), and {found:.0%} of these are in the nearest "
            f"tenth ({MIN_FOUND:.0%} is needed). A query model learns the vectors of the index's "
            "model, for instance by the recipe distill."
        )
    by_both = (similarity(made, stored, manifest.settings.metric) for made in (stored, given))
    k = compared_hits(len(texts))
    return QueryModel(
        vectors=manifest.active,
        identity=stored_identity(embedder),
        cosine=cosine,
        retention=_shared_hits(k, *by_both) if k else None,
    )


def compared_hits(n_texts: int) -> int:
    """Return the k for which two models' first k hits are compared; 0: the texts are too few.

    At most a tenth of the texts are hits, so few of them are hits of both models by chance.
    """
    return min(HITS, n_texts // 10) if n_texts >= FEWEST_FOUND else 0


def _sample(state: Snapshot) -> tuple[list[str], NDArray[np.float32]]:
    """Return texts and their stored vectors, (n, dim): check texts and random passages.

    Of texts with equal vectors, only one is returned, as the others would add nothing.
    """
    check = state.settings.self_check
    rows = np.random.default_rng(0).permutation(state.live_rows())[:SAMPLE_ROWS]
    passages = [passage for passage in state.fetch(np.sort(rows)) if passage.text]
    vectors = state.vectors(np.array([passage.row for passage in passages], np.int64))
    texts = [*check.texts, *(passage.text for passage in passages)]
    vectors = np.concatenate([check.vectors.reshape(-1, state.settings.dim), vectors])
    kept = np.sort(np.unique(vectors.round(4), axis=0, return_index=True)[1])
    return [texts[i] for i in kept], vectors[kept]


def _shared_hits(k: int, *by_model: NDArray[np.float32]) -> float:
    """Return which share of the k best other texts two matrices of scores, (n, n), both have."""
    tops = []
    for scores in by_model:
        np.fill_diagonal(scores, -np.inf)
        tops.append(np.argsort(-scores, axis=1, kind="stable")[:, :k].tolist())
    return float(np.mean([len({*a} & {*b}) / k for a, b in zip(*tops, strict=True)]))
