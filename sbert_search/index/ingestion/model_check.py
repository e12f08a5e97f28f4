"""Whether an embedder may work with an index: the same model, and the same numbers out of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack, cast
from weakref import WeakKeyDictionary

import numpy as np

from sbert_search.embedding.arguments import EmbedderOptions, ModelLike, TorchModel
from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.embedding.selfcheck import SELF_CHECK_TEXTS
from sbert_search.errors import ModelMismatch
from sbert_search.index.storage.manifest import SelfCheck, StoreSettings
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.runtime.cache import remembered
from sbert_search.runtime.progress import note

MIN_COSINE = 0.999  # of the same model by another engine or in another precision
SAME_COSINE = 0.99999  # of what must be the same model, when its files are not known
_QUICK = 2  # check texts that every process compares

_compared: WeakKeyDictionary[TextEmbedder, dict[SelfCheck, float]] = WeakKeyDictionary()


def as_embedder(model: ModelLike | None = None, **options: Unpack[EmbedderOptions]) -> TextEmbedder:
    """Open a model by name or folder, or take one that is open.

    Args:
        model: A name, a folder, an `Embedder` or a ``SentenceTransformer``; None: the default.
        options: For a name or folder: ``device``, ``engine``, ``precision``.
    """
    if hasattr(model, "encode_tokens"):
        return cast(TextEmbedder, model)
    from sbert_search.embedding.embedder import open_embedder  # torch loads there

    return open_embedder(cast("TorchModel | None", model), **options)


def self_check(embedder: TextEmbedder) -> SelfCheck:
    """Embed the check texts, so that the embedder can be recognised by its numbers later."""
    return SelfCheck.of(SELF_CHECK_TEXTS, embedder.encode_document(SELF_CHECK_TEXTS))


def require_agreement(
    settings: StoreSettings, embedder: TextEmbedder, *, allow_inexact: bool = False
) -> None:
    """Refuse an embedder whose vectors cannot be compared with those of an index.

    Its vectors of the check texts must have a cosine of at least `MIN_COSINE` with the stored ones,
    whatever its engine and precision. A model that came as an object has no files whose hashes
    could be compared; there `SAME_COSINE` is asked for.

    Raises:
        ModelMismatch: Another model, naming every field that differs; or other numbers, naming
            the engine and precision of both and the cosine.
    """
    ours = ModelIdentity.from_mapping(settings.identity)
    theirs = embedder.identity
    comparable = ours.in_memory == theirs.in_memory
    if not comparable:
        theirs = replace(
            theirs,
            weights_sha256=ours.weights_sha256,
            tokenizer_sha256=ours.tokenizer_sha256,
        )
    if differences := ours.differences(theirs):
        raise ModelMismatch(
            f"The index was built with {ours.name}, and {theirs.name} is another model "
            f"({'; '.join(differences)}). Use {ours.name}, or build another index."
        )
    same = comparable and ours.same_numbers(theirs)
    if same and not settings.self_check.texts:
        return  # made without a model; there is nothing to compare
    worst = _worst_cosine(settings.self_check, embedder)
    least = MIN_COSINE if comparable else SAME_COSINE
    if worst >= least:
        return
    told = (
        f"{theirs.name} with {theirs.engine} in {theirs.precision} gives other vectors than "
        f"{'it' if same else f'{ours.engine} in {ours.precision}'} did when the index was built: "
        f"cosine {worst:.5f} on the check texts, {least} is needed."
    )
    remedy = (
        "Another version of a library may compute it otherwise: install the one of the build, or "
        "build another index"
        if same
        else f"Use --engine {ours.engine} --precision {ours.precision}"
    )
    if not (allow_inexact and comparable):
        raise ModelMismatch(f"{told} {remedy}, or --allow-inexact.")
    note(told)


def _worst_cosine(check: SelfCheck, embedder: TextEmbedder) -> float:
    """Compare the check texts with the stored vectors: all of them once an opened model.

    A graph was compared with the native engine when it was made, and computes on a CPU in fp32
    alone: what it gave once for these weights it gives again. Later processes compare only the
    first texts, which are short, so that a lone search stays fast.
    """
    if embedder.identity.engine == "onnx":
        key = [check.texts, check.vectors_base64, embedder.identity.to_mapping()]
        whole = remembered("agreement", key, lambda: _compare(check, embedder), _is_cosine)
        first = SelfCheck.of(check.texts[:_QUICK], check.vectors[:_QUICK])
        return min(float(whole), _compare_once(first, embedder))
    return _compare_once(check, embedder)


def _compare_once(check: SelfCheck, embedder: TextEmbedder) -> float:
    """Compare with an embedder that may have been compared before, as writers do every batch."""
    try:
        compared = _compared.setdefault(embedder, {})
    except TypeError:  # somebody's own class, without a hash or weak references
        compared = {}
    if check not in compared:
        compared[check] = _compare(check, embedder)
    return compared[check]


def _is_cosine(value: object) -> bool:
    return isinstance(value, float) and -1.01 <= value <= 1.01


def _compare(check: SelfCheck, embedder: TextEmbedder) -> float:
    """Give the worst cosine; NaN counts as no agreement at all."""
    stored = check.vectors
    got = embedder.encode_document(check.texts)
    lengths = np.linalg.norm(stored, axis=1) * np.linalg.norm(got, axis=1)
    cosines = np.einsum("nd,nd->n", stored, got) / np.maximum(lengths, np.finfo(np.float32).tiny)
    return float(np.nan_to_num(cosines, nan=-1.0).min())
