"""Checking that an embedder is the model of an index and gives the same vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast
from weakref import WeakKeyDictionary

import numpy as np

from sbert_search.base.cache import cached_or_computed, digest_of
from sbert_search.base.options import if_offered
from sbert_search.base.progress import detail, note, warn
from sbert_search.embed.arguments import EmbedderOptions, ModelLike, TorchModel
from sbert_search.embed.engines.protocol import INT8_COSINE, SELF_CHECK_TEXTS
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, ModelError, ModelMismatch, SbertSearchError
from sbert_search.index.norms import unit_vectors
from sbert_search.index.storage.manifest import SelfCheck, VectorSettings
from sbert_search.models.loading.identity import ModelIdentity

if TYPE_CHECKING:
    from sbert_search.base.device import Precision
    from sbert_search.index.snapshot import Snapshot

MIN_COSINE = 0.999  # lowest cosine accepted for the same model in any engine and precision
SAME_COSINE = 0.99999  # lowest cosine accepted if hashes of model files cannot be compared
_QUICK = 2  # number of check texts compared where the result for all is cached (ONNX graphs)

_ENGINES = ("native", "onnx", "sentence-transformers")  # engines whose precision an index keeps

# From this mean cosine on, a model gives nearly one vector to all texts, and a map of its cosines
# would only magnify errors of rounding.
_COLLAPSED = 0.999
# Each text is about another subject and shares no word with the others but articles and the like.
_UNRELATED_TEXTS = (
    "How long should sourdough bread rise before baking?",
    "The committee postponed its vote on the harbour tax.",
    "Black holes emit faint thermal radiation.",
    "She scored twice in extra time to win the cup final.",
    "Replace the brake pads every forty thousand kilometres.",
    "Photosynthesis turns sunlight into chemical energy.",
    "Which visa does a student need to live in Japan?",
    "The violin concerto was first performed in Leipzig.",
    "A null pointer dereference caused the server to crash.",
    "Interest rates rose by a quarter of a percent.",
    "Penguins recognise their chicks by voice.",
    "Grandmother knitted a scarf of grey wool.",
    "The treaty ended thirty years of war.",
    "What are early symptoms of iron deficiency?",
    "Our warranty covers accidental damage for two years.",
    "Granite forms when magma cools slowly underground.",
    "He forgot his umbrella on the night train.",
    "Prune apple trees in late winter.",
    "The defendant appealed against the ruling.",
    "Kubernetes restarts containers that fail a probe.",
    "Watercolour paper must be stretched so that it stays flat.",
    "Heavy snow closed the mountain pass.",
    "Is it polite to tip waiters in Denmark?",
    "The prime numbers thin out but never end.",
    "Coral reefs bleach if the sea becomes too warm.",
    "Her novel describes a lighthouse keeper's loneliness.",
    "Tighten the bolts crosswise with a torque wrench.",
    "The museum opens at ten, except on Mondays.",
    "Chess engines evaluate millions of positions.",
    "Send the signed invoice to accounting.",
    "Vaccination protects newborn calves from pneumonia.",
    "Folk dancers wore embroidered boots.",
)

_compared: WeakKeyDictionary[TextEmbedder, dict[SelfCheck, float]] = WeakKeyDictionary()


def as_embedder(
    model: ModelLike | None = None,
    *,
    report: Callable[[str], None] = note,  # gets the names of a model that is opened and its engine
    **options: Unpack[EmbedderOptions],
) -> TextEmbedder:
    """Open a model by name or folder (None: the default), or return one that is open."""
    if hasattr(model, "encode_tokens"):
        if options:
            raise ConfigError(
                f"{', '.join(sorted(options))}: the model is open already; these options apply "
                "only when a model is opened by name or folder. Pass them to `Embedder` instead."
            )
        return cast(TextEmbedder, model)
    from sbert_search.embed.embedder import open_embedder  # torch loads there

    return open_embedder(cast("TorchModel | None", model), report=report, **options)


def open_matching(
    state: Snapshot,
    model: ModelLike | None,
    options: EmbedderOptions,
    *,
    allow_inexact: bool,
    quick: bool,
    named: bool,
    query_model: str | None = None,
) -> TextEmbedder:
    """Open the model of an index and compare it with the index; see `Index.matching_embedder`.

    ``query_model``: open the query model of this name in place of the model.
    """
    settings = state.manifest.settings
    if query_model is not None:
        settings = query_settings(state, query_model)
    identity = ModelIdentity.from_mapping(settings.identity)
    require_model(identity, state.path)
    given = model is not None
    model = identity.name if model is None else model
    report = note if named else detail
    if isinstance(model, (str, Path)):
        if quick and (graph := _open_graph(settings, model, report, query_model)):
            return graph
        options = with_kept_choices(model, options, settings)
    try:
        embedder = as_embedder(model, report=report, **options)
    except ModelError as error:
        if given:
            raise
        if query_model is not None:
            raise ModelError(
                f"{error} This is the query model {query_model!r} of the index; if it lies "
                "elsewhere now, add it again with `sbert-search index query-model`."
            ) from error
        remedy = if_offered("--model", "name it with --model", "make a link to it there")
        raise ModelError(
            f"{error} The index was built with this model; if it lies elsewhere now, {remedy}."
        ) from error
    require_same_model(settings, embedder, query_model)
    require_agreement(settings, embedder, allow_inexact=allow_inexact)
    return embedder


def query_settings(state: Snapshot, name: str) -> VectorSettings:
    """Return the settings of an index with one of its query models in place of the model.

    They have no check texts, as the vectors of a query model are only near those of the model.
    """
    models = state.manifest.active_query_models
    if name not in models:
        known = ", ".join(models) or "none"
        raise ConfigError(
            f"{state.path} has no query model {name!r}; it has: {known}. `sbert-search index "
            "query-model DIR MODEL --name NAME` adds one."
        )
    return replace(state.manifest.settings, identity=models[name].identity, self_check=SelfCheck())


def _open_graph(
    settings: VectorSettings,
    model: str | Path,
    report: Callable[[str], None],
    query_model: str | None,
) -> TextEmbedder | None:
    """Open a model's exported ONNX graph; if that is impossible, note why and return None."""
    from sbert_search.embed.engines.graph import require_graph
    from sbert_search.models.loading.resolve import resolve_model

    identity = ModelIdentity.from_mapping(settings.identity)
    if identity.engine not in ("native", "onnx"):
        return None
    try:
        resolve_model(model)
    except ModelError:
        return None  # opening the model with torch then raises an error with the same reason
    try:
        require_graph(model)
        options = _with_kept_form({"engine": "onnx"}, identity)
        embedder = as_embedder(model, report=report, **options)
    except SbertSearchError as error:
        _note_torch(error)
        return None
    # An error, since torch would load the same model.
    require_same_model(settings, embedder, query_model)
    try:
        require_agreement(settings, embedder)
    except ModelMismatch as error:
        _note_torch(error)
        return None
    return embedder


def _note_torch(error: SbertSearchError) -> None:
    note(f"Loading torch, which takes seconds, as no ONNX graph of the model is used: {error}")


def with_kept_choices(
    model: str | Path | None, options: EmbedderOptions, settings: VectorSettings
) -> EmbedderOptions:
    """Add an index's prompts, dimensions and, on a CPU, precision and batch size for "auto".

    What "auto" measures may differ between two machines, or between two runs on a busy machine. New
    documents and queries must be embedded in the precision of the build. It is not added to options
    that name another engine than native.
    """
    stored = ModelIdentity.from_mapping(settings.identity)
    if stored.engine not in (*_ENGINES, "static") or str(model).startswith("hashing"):
        return options
    kept = _with_kept_form(options, stored)
    if stored.engine == "static" or options.get("engine", "native") != "native":
        return kept
    from sbert_search.base.device import computes_on_cpu  # torch loads here

    if not computes_on_cpu(options.get("device", "auto"), stored.precision):
        return kept
    if options.get("precision", "auto") == "auto":
        kept["precision"] = cast("Precision", stored.precision)
    if options.get("batch_tokens") == "auto" and settings.batch_tokens:
        kept["batch_tokens"] = settings.batch_tokens
    return kept


def _with_kept_form(options: EmbedderOptions, stored: ModelIdentity) -> EmbedderOptions:
    """Add the prompts and the number of dimensions with which an index was built.

    A wider model is truncated to it; that it is the same model is checked later, by its hashes.
    """
    prompts = {"query": "", "document": "", **stored.prompts}
    default = prompts.pop("", "")
    prompts |= options.get("prompts") or {}
    dim = options.get("truncate_dim") or stored.dim
    kept: EmbedderOptions = {**options, "prompts": prompts, "truncate_dim": dim}
    if default and not options.get("default_prompt_name"):
        names = [name for name, text in prompts.items() if text == default]
        kept["default_prompt_name"] = names[0] if names else None
    return kept


def self_check(embedder: TextEmbedder) -> SelfCheck:
    """Embed the check texts; `require_agreement` compares other embedders with these vectors."""
    return SelfCheck.of(SELF_CHECK_TEXTS, embedder.encode_document(SELF_CHECK_TEXTS))


def unrelated_cosine(embedder: TextEmbedder) -> float:
    """Return the mean cosine of unrelated texts, one as a query and the other as a document.

    Hybrid search maps the cosines of a model by it, so that unrelated texts have about 0 with every
    model. It is measured once for a model and then cached.
    """
    key = {**embedder.identity.to_mapping(), "name": "", "texts": digest_of(_UNRELATED_TEXTS)}

    def compute() -> float:
        documents = unit_vectors(embedder.encode_document(_UNRELATED_TEXTS))
        queries = unit_vectors(embedder.encode_query(_UNRELATED_TEXTS))
        cosines = queries @ documents.T
        n = len(cosines)
        return float((cosines.sum() - np.trace(cosines)) / (n * (n - 1)))

    def is_valid(value: object) -> bool:
        return isinstance(value, float) and -1 <= value < _COLLAPSED

    found = cached_or_computed("unrelated", key, compute, is_valid)
    return float(found) if is_valid(found) else 0.0


def stored_identity(embedder: TextEmbedder) -> Mapping[str, object]:
    """Describe a model; name a folder by its absolute path, so that any process finds it."""
    identity = embedder.identity
    if Path(identity.name).is_dir():
        identity = replace(identity, name=str(Path(identity.name).resolve()))
    return identity.to_mapping()


def require_model(identity: ModelIdentity, path: Path) -> None:
    """Refuse to embed texts for an index whose vectors were given without a model."""
    if not identity.is_model:
        raise ModelMismatch(
            f"{path} holds vectors that were given without a model, so no text can be embedded for "
            "it. Search by a vector, by `similar` or in the mode lexical; give `vectors` with the "
            "documents that you add; or build the index with the model that made its vectors."
        )


def require_same_model(
    settings: VectorSettings, embedder: TextEmbedder, query_model: str | None = None
) -> None:
    """Refuse a model that neither built the index nor is its query model of this name."""
    stored = ModelIdentity.from_mapping(settings.identity)
    given = embedder.identity
    # Of a query model there are no check texts, so the hashes must be those of its files.
    compare = differences if query_model is None else ModelIdentity.differences
    if differing := compare(stored, given):
        if query_model is not None:
            raise ModelMismatch(
                f"The query model {query_model!r} of the index was added as {stored.name} with "
                f"other files or settings than {given.name} has ({'; '.join(differing)}). Use "
                "those, or add it again with `sbert-search index query-model`."
            )
        if stored.name == given.name:
            what = f"{stored.name} with other files or settings"
            remedy = "Pass it with those of the index, as Embedder(..., prompts=...) does"
        else:
            what = f"{stored.name}, and {given.name} is another model"
            remedy = f"Use {stored.name}"
        raise ModelMismatch(
            f"The index was built with {what} ({'; '.join(differing)}). {remedy}, or build another "
            "index."
        )


def differences(stored: ModelIdentity, given: ModelIdentity) -> list[str]:
    """List the fields in which two models differ, as `ModelIdentity.differences`.

    Hashes are compared only if both models have files, or neither has.
    """
    if stored.in_memory != given.in_memory:
        given = replace(
            given, weights_sha256=stored.weights_sha256, tokenizer_sha256=stored.tokenizer_sha256
        )
    return stored.differences(given)


def require_mixable(settings: VectorSettings, embedder: TextEmbedder) -> None:
    """Refuse to mix vectors that a model computed in int8 with others in an index.

    A vector computed in int8 has a cosine of about 0.996 with that of the same text in another
    precision. This is enough for queries, but the ranks of nearly equal documents would depend on
    how their vectors were computed. Vectors in int8 of two calibrations are not mixed either.
    """
    stored, given = ModelIdentity.from_mapping(settings.identity), embedder.identity
    if "int8" not in (stored.precision, given.precision):
        return
    if stored.precision != given.precision:
        raise ModelMismatch(
            f"The index has vectors in {stored.precision}, and the model computes in "
            f"{given.precision}; int8 and exact vectors are not mixed in an index. Use --precision "
            f"{stored.precision}, or build another index."
        )
    if stored.calibration != given.calibration:
        raise ModelMismatch(
            f"The index has vectors in int8 with the calibration {stored.calibration[:12]}, and "
            f"the model is calibrated otherwise ({given.calibration[:12]}). Use --calibrate with "
            "the file of the build, or leave it out if the build had none."
        )


def require_agreement(
    settings: VectorSettings, embedder: TextEmbedder, *, allow_inexact: bool | None = False
) -> None:
    """Refuse an embedder whose vectors cannot be compared with those of an index.

    The index stores vectors of a few check texts. The embedder's vectors of these texts must have a
    cosine of at least `MIN_COSINE` with the stored vectors, in any engine and precision; if the
    index or the embedder uses int8, of at least `INT8_COSINE`. If only one of the two models has
    files, no hashes can be compared, and the cosine must be at least `SAME_COSINE`.

    ``allow_inexact``: only warn if the same model gives other vectors. None: refuse it, and do not
    recommend the option ``allow_inexact``, which the caller lacks.
    """
    require_same_model(settings, embedder)
    stored = ModelIdentity.from_mapping(settings.identity)
    given = embedder.identity
    comparable = stored.in_memory == given.in_memory
    same_engine = comparable and stored.same_engine(given)
    if not settings.self_check.texts:
        return  # an index that only `IndexStore.create` made has no check texts
    worst = _worst_cosine(settings.self_check, embedder)
    least = MIN_COSINE if comparable else SAME_COSINE
    if comparable and "int8" in (stored.precision, given.precision):
        least = INT8_COSINE
    if worst >= least:
        return
    problem = (
        f"{given.name} with {given.engine} in {given.precision} gives other vectors than "
        f"{'it' if same_engine else f'{stored.engine} in {stored.precision}'} did when the index "
        f"was built: cosine {worst:.5f} on the check texts, {least} is needed."
    )
    remedy = (
        "Another version of a library may cause this: install the version with which the index was "
        "built, or build another index"
        if same_engine
        else if_offered(
            "--engine",
            f"Use --engine {stored.engine.replace('static', 'native')} "
            f"--precision {stored.precision}",
            "This command has no option for another engine or precision; build another index",
        )
    )
    if not (allow_inexact and comparable):
        can_allow = comparable and allow_inexact is not None
        inexact = if_offered("--allow-inexact", ", or pass --allow-inexact") if can_allow else ""
        raise ModelMismatch(f"{problem} {remedy}{inexact}.")
    warn(problem)


def _worst_cosine(check: SelfCheck, embedder: TextEmbedder) -> float:
    """Return the lowest cosine between an embedder's and the stored vectors of the check texts.

    All texts are compared once per opened model. For an exported ONNX graph, the result is cached
    on disk, since the graph was compared with the native engine when it was exported, and it always
    computes on a CPU in fp32. Later processes compare only the first `_QUICK` texts, which are
    short, so that a single search stays fast.
    """
    if embedder.identity.engine == "onnx":
        key = [check.texts, check.vectors_base64, embedder.identity.to_mapping()]
        whole = cached_or_computed("agreement", key, lambda: _compare(check, embedder), _is_cosine)
        first = SelfCheck.of(check.texts[:_QUICK], check.vectors[:_QUICK])
        return min(float(whole), _compare_once(first, embedder))
    return _compare_once(check, embedder)


def _compare_once(check: SelfCheck, embedder: TextEmbedder) -> float:
    """Return `_compare` of the arguments, computed once per check and embedder of this process."""
    try:
        compared = _compared.setdefault(embedder, {})
    except TypeError:  # a user's class without a hash or weak references
        compared = {}
    if check not in compared:
        compared[check] = _compare(check, embedder)
    return compared[check]


def _is_cosine(value: object) -> bool:
    return isinstance(value, float) and -1.01 <= value <= 1.01


def _compare(check: SelfCheck, embedder: TextEmbedder) -> float:
    """Return the lowest cosine of the embedder's vectors with the stored ones; NaN counts as -1."""
    stored = check.vectors
    given = embedder.encode_document(check.texts)
    norms = np.linalg.norm(stored, axis=1) * np.linalg.norm(given, axis=1)
    cosines = np.einsum("nd,nd->n", stored, given) / np.maximum(norms, np.finfo(np.float32).tiny)
    return float(np.nan_to_num(cosines, nan=-1.0).min())
