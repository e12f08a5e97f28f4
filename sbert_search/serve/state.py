"""What a server serves: indexes, models, tokens and limits, with their metrics; opening them."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from time import time
from typing import TypeVar, cast

from sbert_search.base.progress import warn
from sbert_search.base.threads import end_idle_workers
from sbert_search.embed.arguments import EmbedderOptions, reranker_options
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, SbertSearchError
from sbert_search.index.building.model_check import open_matching
from sbert_search.index.filters.structured import condition_text
from sbert_search.index.index import Index
from sbert_search.records import Where
from sbert_search.search.engine import SearchEngine, ShardRunner
from sbert_search.search.options import SearchOptions
from sbert_search.search.rerankers import BestWindow, Reranker, require_one_label
from sbert_search.serve.access import AccessTokens, ServerLimits, is_loopback
from sbert_search.serve.classifier import Classifier, ServedClassifier
from sbert_search.serve.embedder import ServedEmbedder, WarmEmbedder
from sbert_search.serve.indexes import NO_RERANKER, ServedIndex
from sbert_search.serve.metrics import Metrics
from sbert_search.serve.problems import Problem
from sbert_search.serve.reranker import ServedReranker
from sbert_search.wings import required_part

T = TypeVar("T")

RELOAD_S = 1.0  # seconds between two checks for new commits
STALLED_S = 120.0  # seconds; a batch that takes longer makes the server not ready


@dataclass
class Served:
    """Everything that requests use."""

    indexes: Mapping[str, ServedIndex]  # by name; a request that names none gets the first one
    embedders: Mapping[str, ServedEmbedder]  # by name
    rerankers: Mapping[str, ServedReranker]  # by name
    classifiers: Mapping[str, ServedClassifier]  # by name
    tokens: AccessTokens
    limits: ServerLimits
    metrics: Metrics
    writable: bool = False  # whether clients with a writing token may change indexes
    hosts: Sequence[str] = ()  # that the header Host may name, without ports; (): all hosts
    origins: Sequence[str] = ()  # of web pages that may read answers (CORS)
    # Folders of models of indexes that torch computes, as a `WarmEmbedder` lacks their graphs.
    graphless: Sequence[Path] = ()
    proxies: Sequence[str] = ()  # networks of proxies whose X-Forwarded-For is believed
    mcp: bool = False  # whether the tools of the Model Context Protocol are served
    defaults: SearchOptions = field(default_factory=SearchOptions)  # for what a search leaves out
    draining: bool = False  # whether the server is shutting down
    active: int = 0  # number of requests that are being answered
    started_at: float = field(default_factory=time)  # in seconds since 1970

    def __post_init__(self) -> None:
        self.metrics.add_gauge(
            "te_queue_size",
            "Tokens that wait for a model.",
            lambda: {(): sum(one.queue.waiting_tokens for one in self.models)},
        )
        self.metrics.add_gauge(
            "sbert_search_requests_active",
            "Requests that are being answered.",
            lambda: {(): self.active},
        )
        self.metrics.add_gauge(
            "sbert_search_documents",
            "Documents of an index.",
            lambda: {(("index", name),): len(one.index) for name, one in self.indexes.items()},
            adds=False,
        )
        self.metrics.add_gauge(
            "sbert_search_newest_commit_served",
            "1, or 0 while the newest commit of an index is refused.",
            lambda: {
                (("index", name),): float(not one.reload_error)
                for name, one in self.indexes.items()
            },
            adds=False,
        )

    @property
    def models(self) -> list[ServedEmbedder | ServedReranker | ServedClassifier]:
        """All models; query models are the last ones that embed."""
        return [
            *sorted(self.embedders.values(), key=lambda one: one.for_queries),
            *self.rerankers.values(),
            *self.classifiers.values(),
        ]

    def index(self, name: str) -> ServedIndex:
        """Return the index with a name; "": the first one."""
        if not self.indexes:
            raise Problem(404, "The server has no index.", "index")
        if not name:
            return next(iter(self.indexes.values()))
        found = self.indexes.get(name)
        if found is None:
            known = ", ".join(self.indexes)
            message = f"There is no index {name!r:.100}; the server has: {known}."
            raise Problem(404, message, "index")
        return found

    def embedder(self, name: str) -> ServedEmbedder:
        """Return the embedding model with a name; else the first one that is no query model."""
        if found := _named(self.embedders, name) or self.first_embedder:
            return found
        message = "The server has no embedding model."
        if self.embedders:
            message = (
                f"The server has query models only: {', '.join(self.embedders)}. Name one in the "
                "field model, or start the server with --embed MODEL."
            )
        raise Problem(404, message, "model")

    @property
    def first_embedder(self) -> ServedEmbedder | None:
        """The first embedding model; query models do not count."""
        return next((one for one in self.embedders.values() if not one.for_queries), None)

    def reranker(self, name: str) -> ServedReranker:
        """Return the reranker with a name; without such a reranker, the first one."""
        if not self.rerankers:
            raise Problem(404, NO_RERANKER, "model")
        return _named(self.rerankers, name) or next(iter(self.rerankers.values()))

    def classifier(self, name: str) -> ServedClassifier:
        """Return the classifier with a name; without such a classifier, the first one."""
        if not self.classifiers:
            message = "The server was started without --predict, so it has no classifier."
            raise Problem(404, message, "model")
        return _named(self.classifiers, name) or next(iter(self.classifiers.values()))

    def require_filter(self, where: Where | None) -> None:
        """Refuse a filter that is too long."""
        if where is not None and len(condition_text(where)) > self.limits.filter_chars:
            message = f"A filter may have at most {self.limits.filter_chars:,} characters."
            raise Problem(413, message, "where")

    def require_items(self, n: int, param: str) -> None:
        """Refuse a request with no or too many texts."""
        if not n:
            raise Problem(400, "There is nothing in the list.", param)
        if n > self.limits.items:
            message = f"{n:,} items; a request may have {self.limits.items:,}."
            raise Problem(413, f"{message} Send several requests.", param)

    def warm(self) -> None:
        """Use every model and index once, so that no request pays for what happens only once."""
        for embedder in self.embedders.values():
            embedder.encode_tokens(embedder.tokenize(["warm"]))
        for reranker in self.rerankers.values():
            reranker.predict([("warm", "warm")])
        for classifier in self.classifiers.values():
            classifier.classifier.logits_of_tokens(classifier.classifier.tokenize(["warm"]))
        for one in self.indexes.values():
            with suppress(SbertSearchError):  # an empty index, or one without words and model
                one.engine.search("warm", k=1)

    def why_not_ready(self) -> str:
        """Say why the server is not ready for requests; "": it is ready."""
        if self.draining:
            return "The server is shutting down."
        for one in self.models:
            if not one.queue.is_alive:
                return f"The thread of the model {one.name} has ended."
            if one.queue.busy_s > STALLED_S:
                return f"The model {one.name} has computed one batch for {STALLED_S:g} s."
        return ""


@asynccontextmanager
async def reloading(served: Served) -> AsyncIterator[None]:
    """Check the indexes for new commits; at the end, finish the updates that were accepted.

    Each index has its own task, since a long update of one index must not delay the others.
    """
    tasks = [asyncio.create_task(_reload(index)) for index in served.indexes.values()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for index in served.indexes.values():
            await asyncio.to_thread(index.close)


async def _reload(index: ServedIndex) -> None:
    while True:
        await asyncio.sleep(RELOAD_S)
        await index.reload()


_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """What to serve, and how."""

    indexes: Mapping[str, Path]  # folders, by the names that requests use
    models: Sequence[str] = ()  # names or folders of embedding models, besides those of indexes
    prompts: Mapping[str, str] | None = None  # of ``models``; None: their own
    rerankers: Sequence[str] = ()  # names or folders of cross-encoders; searches use the first
    classifiers: Sequence[str] = ()  # names or folders of models that classify texts
    rerank_windows: int = 4  # most windows of a text that is too long for the reranker
    index_model: str | None = None  # folder or name; None: the one that each index names
    query_model: str | None = None  # of each index, that embeds queries; None: its model does
    options: EmbedderOptions = field(default_factory=EmbedderOptions)  # for opening models
    quick: bool = True  # whether models of indexes may be a `WarmEmbedder`
    allow_inexact: bool = False
    tokens: AccessTokens
    limits: ServerLimits = field(default_factory=ServerLimits)
    writable: bool = False  # whether clients with a writing token may change indexes
    wait_s: float = 5.0  # that an update waits for another process that writes
    host: str = "127.0.0.1"  # the address that the server will bind
    origins: Sequence[str] = ()  # of web pages that may read answers
    proxies: Sequence[str] = ()  # addresses or networks of proxies that name their clients
    mcp: bool = False  # whether the tools of the Model Context Protocol are served
    defaults: SearchOptions = field(default_factory=SearchOptions)  # for what a search leaves out
    runner: ShardRunner | None = None  # searches the shards; None: this process does


def open_served(settings: ServeSettings) -> Served:
    """Open indexes and models."""
    _check(settings)
    metrics = Metrics()
    embedders: dict[str, ServedEmbedder] = {}
    rerankers: dict[str, ServedReranker] = {}
    for name in settings.rerankers:
        shown = _free_name(name, rerankers)
        rerankers[shown] = _open_reranker(name, shown, settings, metrics)
    reranker = next(iter(rerankers.values()), None)
    indexes: dict[str, ServedIndex] = {}
    for name, path in settings.indexes.items():
        index = Index.open(path, wait_s=settings.wait_s)
        index.require_finished()
        indexes[name] = _open_index(name, index, reranker, embedders, settings, metrics)
        _require_mode(indexes[name], settings.defaults.mode)
    for model_name in settings.models:
        from sbert_search.embed.embedder import open_embedder

        options: EmbedderOptions = {**settings.options, "prompts": settings.prompts}
        embedder = open_embedder(model_name, **options)
        same = [one for one in embedders.values() if _is_same(embedder, one)]
        for one in same:
            one.for_queries = False
        if not same:
            shown = _free_name(model_name, embedders)
            embedders[shown] = ServedEmbedder(shown, embedder, settings.limits, metrics)
    classifiers: dict[str, ServedClassifier] = {}
    for name in settings.classifiers:
        shown, classifier = _free_name(name, classifiers), _open_classifier(name, settings.options)
        classifiers[shown] = ServedClassifier(shown, classifier, settings.limits, metrics)
    end_idle_workers()  # OpenMP threads of this thread would slow the threads of the models
    # A web page can reach a loopback address under a host name of its own (DNS rebinding). Without
    # tokens, only the check of the header Host keeps it out.
    local = is_loopback(settings.host) and not settings.tokens
    served = Served(
        indexes,
        embedders,
        rerankers,
        classifiers,
        settings.tokens,
        settings.limits,
        metrics,
        writable=settings.writable,
        hosts=(*_LOCAL_HOSTS, settings.host, f"[{settings.host}]") if local else (),
        origins=[_origin(text) for text in settings.origins],
        proxies=[_network(text) for text in settings.proxies],
        graphless=_graphless(indexes.values()) if settings.quick else (),
        mcp=settings.mcp,
        defaults=settings.defaults,
    )
    served.warm()
    return served


def _require_mode(index: ServedIndex, mode: str) -> None:
    if mode in ("auto", *index.modes):
        return
    remedy = "Leave out --mode: each index is then searched in its best mode."
    if "lexical" in index.modes:
        raise ConfigError(f"--mode {mode}: {index.name} has no model. {remedy}")
    add = f"Or add them with `sbert-search index lexical {index.index.path}`."
    raise ConfigError(f"--mode {mode}: {index.name} has no lexical data. {remedy} {add}")


def _open_index(
    name: str,
    index: Index,
    reranker: ServedReranker | None,
    embedders: dict[str, ServedEmbedder],
    settings: ServeSettings,
    metrics: Metrics,
) -> ServedIndex:
    model = None
    if index.identity.is_model:
        model = _model_of(index, embedders, settings, metrics)
    querying = None
    if settings.query_model is not None:
        querying = _query_model_of(index, embedders, settings, metrics)
    inexact = settings.allow_inexact
    engine = partial(
        SearchEngine,
        index,
        querying or model,
        runner=settings.runner,
        query_model=settings.query_model,
        allow_inexact=inexact,
    )
    reranking = None
    if reranker is not None:
        reranking = engine(BestWindow(reranker, settings.rerank_windows))

    def reopen(newest: Index) -> ServedIndex:
        own = replace(settings, index_model=None)  # the new state names its model
        if own.query_model and own.query_model not in newest.query_models:
            warn(f"{name}: the new model has no query model {own.query_model!r}; it is used alone.")
            own = replace(own, query_model=None)
        served = _open_index(name, newest, reranker, embedders, own, metrics)
        with suppress(SbertSearchError):  # an index without documents
            served.engine.search("warm", k=1)
        return served

    return ServedIndex(name, index, model, engine(), reranking, metrics, querying, inexact, reopen)


def _graphless(indexes: Iterable[ServedIndex]) -> list[Path]:
    """Return the folders of models of indexes that the native engine computes."""
    used = {id(one.model): one.model.inner for one in indexes if one.model is not None}
    opened = [getattr(embedder, "opened", None) for embedder in used.values()]
    return [
        one.folder.path
        for one in opened
        if one is not None and one.folder is not None and one.engine.name == "native"
    ]


def _origin(text: str) -> str:
    """Return an origin as browsers send it."""
    origin = text.removesuffix("/").lower()
    port = ":443" if origin.startswith("https:") else ":80"
    origin = origin.removesuffix(port)  # browsers leave the default port out
    if not re.fullmatch(r"https?://[^/?#*@\s]+", origin):
        raise ConfigError(
            f"--cors-origin {text} is no origin of a web page; write it as https://example.org or "
            "http://localhost:3000."
        )
    return origin


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ConfigError(
            f"--trust-proxy {text} is no address or network of a proxy: {error}. Write it as "
            "10.0.0.5 or 10.0.0.0/8."
        ) from error


def short_name(model: str) -> str:
    """Return the last part of a model's name or path, since answers must show no path."""
    return Path(model).name or model


def _named(models: Mapping[str, T], name: str) -> T | None:
    """Return the model with a name; of ``org/name``, only the last part counts."""
    return models.get(name) or models.get(short_name(name))


def _free_name(model: str, taken: Container[str]) -> str:
    """Return the short name of a model, with a number if another model has that name."""
    name = short_name(model)
    numbered = (f"{name}-{n}" for n in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)


def _is_same(one: TextEmbedder, other: TextEmbedder) -> bool:
    """Whether a request that names one of the models may be answered by the other one."""
    same_name = short_name(one.identity.name) == short_name(other.identity.name)
    return same_name and not one.identity.differences(other.identity)


def _model_of(
    index: Index, known: dict[str, ServedEmbedder], settings: ServeSettings, metrics: Metrics
) -> ServedEmbedder:
    """Return the model of an index; it is opened once for all indexes with this model."""
    for served in known.values():
        if not index.identity.differences(served.identity):
            served.for_queries = False
            return served
    name = _free_name(settings.index_model or index.identity.name, known)
    embedder = _open_model(index, settings)
    known[name] = ServedEmbedder(name, embedder, settings.limits, metrics)
    return known[name]


def _query_model_of(
    index: Index, known: dict[str, ServedEmbedder], settings: ServeSettings, metrics: Metrics
) -> ServedEmbedder:
    """Return the query model of an index; it is served once for all indexes with this model."""
    embedder = open_matching(
        index.state,
        None,
        settings.options,
        allow_inexact=settings.allow_inexact,
        quick=False,
        named=True,
        query_model=settings.query_model,
    )
    for served in known.values():
        if not embedder.identity.differences(served.identity):
            return served
    shown = _free_name(embedder.identity.name, known)
    known[shown] = ServedEmbedder(shown, embedder, settings.limits, metrics, for_queries=True)
    return known[shown]


def _open_model(index: Index, settings: ServeSettings) -> TextEmbedder:
    open_full = partial(
        index.matching_embedder,
        settings.index_model,
        allow_inexact=settings.allow_inexact,
        **settings.options,
    )
    if not settings.quick:
        return open_full()
    embedder = open_full(quick=True)
    if embedder.identity.engine != "onnx":
        return embedder
    return WarmEmbedder(embedder, open_full)


def _open_reranker(
    name: str, shown: str, settings: ServeSettings, metrics: Metrics
) -> ServedReranker:
    reranker = Reranker(name, **reranker_options(settings.options))
    require_one_label(reranker)
    engine = reranker.opened.engine
    is_logit = engine.has_sigmoid
    if is_logit:
        engine.use_logits()  # the server applies the sigmoid, unless a client wants raw scores
    return ServedReranker(shown, reranker, settings.limits, metrics, is_logit)


def _open_classifier(name: str, options: EmbedderOptions) -> Classifier:
    precision = options.get("precision", "auto")
    if precision in ("int8", "fastest"):  # only models of embeddings and pairs have them
        precision = "auto"
    opened = required_part("answerer", "--predict")(
        name, device=options.get("device", "auto"), precision=precision
    )
    if opened.task != "classify":
        raise ConfigError(f"--predict {name} does not classify texts; name a classifier.")
    return cast(Classifier, opened)


def _check(settings: ServeSettings) -> None:
    if not (settings.indexes or settings.models or settings.rerankers or settings.classifiers):
        raise ConfigError("There is nothing to serve; name an index, or a model with --embed.")
    if settings.writable and "write" not in settings.tokens.rights.values():
        raise ConfigError(
            "--writable needs a token that may write: a line `TOKEN write` in --token-file."
        )
