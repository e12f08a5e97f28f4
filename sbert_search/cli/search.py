"""`search`: search an index for one query, or for each query of a file."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import normalize

import click

from sbert_search.base.progress import note, warn
from sbert_search.cli.console import emit, facet_record, hit_record, say, show_facet, show_hits
from sbert_search.cli.options.runner import search_runner, search_runner_options
from sbert_search.cli.options.search import (
    answer_options,
    encoding_option,
    order_options,
    ranking_options,
    search_options,
)
from sbert_search.cli.options.shared import (
    HEAD_PRECISIONS,
    ListOption,
    given,
    index_embedder_options,
    index_folder,
    model_options,
    options_of,
    query_model_option,
    refuse_typed,
    shared_options,
    typed,
)
from sbert_search.errors import NoLexicalData, QueryError
from sbert_search.search.options import (
    MatchKeywords,
    OrderKeywords,
    SearchOptions,
    keywords_of,
)
from sbert_search.wings import required_part

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sbert_search.index.index import Index
    from sbert_search.records import Query
    from sbert_search.search.engine import SearchEngine, ShardRunner
    from sbert_search.search.results import Hits


def _single_without_collections(function: Callable[..., None]) -> Callable[..., None]:
    """Switch the cyclic garbage collector off for a single query, but not for a file of queries.

    Otherwise it would search the many objects that the imports of a search make again and again.
    """

    @wraps(function)
    def call(*args: object, **options: object) -> None:
        pausing = options["queries"] is None and gc.isenabled()
        if pausing:
            gc.disable()
        try:
            function(*args, **options)
        finally:
            if pausing:
                gc.freeze()  # later collections then skip all objects made so far
                gc.enable()

    return call


@click.command()
@index_folder
@click.argument("query", required=False)
@options_of(SearchOptions, "k", "where", flags={"k": "-k"})
@click.option(
    "--operators/--plain",
    default=None,
    help='Read "exact phrase", +must and -not in a query as filters, or take it as plain text.  '
    "[default: --operators for QUERY, --plain for --queries]",
)
@click.option(
    "--passages",
    is_flag=True,
    help="Return passages: several may come from one document, and -k counts passages.",
)
@options_of(SearchOptions, "full_text", "fields", "fuzzy", "offset", "min_score", "sort")
@click.option(
    "--like",
    multiple=True,
    metavar="ID",
    help="Find documents like this one of the index, or like the mean of several; no QUERY.",
)
@click.option(
    "--unlike", multiple=True, metavar="ID", help="With --like: stay away from this document."
)
@click.option(
    "--vector-file",
    type=click.Path(path_type=Path),
    metavar="FILE.npy",
    help="Vector to search by. With QUERY, it is the vector of QUERY. With --queries, the file "
    "holds one vector for each query.",
)
@ranking_options("auto")
@order_options
@answer_options
@click.option(
    "--facets",
    cls=ListOption,
    metavar="COLUMN[,COLUMN...]",
    help="Count the values of these columns among all documents that match, or in ranges, as in "
    "price:0:50:100; QUERY may be left out.",
)
@click.option(
    "--highlight/--no-highlight",
    default=None,
    help="Find the sentence of each hit that answers best, and the words that matched.  [default: "
    "--highlight for QUERY, --no-highlight for --queries]",
)
@click.option(
    "--queries",
    type=click.Path(path_type=Path),
    help="File of queries with the fields _id and text: JSONL, JSON, CSV, Parquet, ...; "
    '"-": JSONL on stdin.',
)
@encoding_option
@click.option(
    "--run-out",
    type=click.Path(path_type=Path),
    help="Run file for the hits of --queries; JSON if its name ends in .json, else TREC's format.",
)
@search_runner_options
@query_model_option
@index_embedder_options
@shared_options("allow-inexact", "memory", "quiet", "json")
@click.pass_context
@_single_without_collections
def search(
    ctx: click.Context,
    /,
    path: Path,
    query: str | None,
    operators: bool | None,
    like: tuple[str, ...],
    unlike: tuple[str, ...],
    vector_file: Path | None,
    queries: Path | None,
    run_out: Path | None,
    facets: str | None,
    highlight: bool | None,
    rerank: str | None,
    rerank_windows: int,
    answer: str | None,
    query_model: str | None,
    allow_inexact: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Search the index DIR for QUERY.

    With --queries, the index is searched for every query of a file. Without a query, --where and
    --sort list documents.

    The model is the one that built the index; --model can name another place to find it. A single
    QUERY is embedded by the model's exported ONNX graph, which starts faster, unless an option such
    as --engine or --device says how to run the model.
    """
    from sbert_search.search.engine import SearchEngine

    _check_question(ctx)
    _refuse_without_hits(ctx)
    model = _embedding_model(ctx)
    runner = ctx.with_resource(search_runner(ctx))
    if like:
        return _answer_like(ctx, path, like, unlike, runner, as_json)
    if queries and run_out:
        _check_run_out(run_out, path, queries, model, rerank)
    operators = queries is None if operators is None else operators
    highlight = queries is None if highlight is None else highlight
    chosen = replace(search_options(ctx), syntax="operators" if operators else "plain")
    _refuse_fuzzy_without_words(ctx, chosen)
    hardware = model_options(ctx)
    reranker = None
    if rerank:
        from sbert_search.embed.arguments import reranker_options
        from sbert_search.search.rerankers import BestWindow, Reranker

        reranker = BestWindow(Reranker(rerank, **reranker_options(hardware)), rerank_windows)
    reader = None
    if answer:
        precision = hardware["precision"]
        reader = required_part("answerer", "--answer")(
            answer,
            device=hardware["device"],
            precision=precision if precision in HEAD_PRECISIONS else "auto",
        )
    # For one query, the exported ONNX graph of the model is faster than torch, which takes long to
    # import. An option such as --device, which says how to run the model, rules the graph out.
    quick = bool(query) and not (vector_file or reranker or given(ctx) & hardware.keys())
    engine = SearchEngine(
        path,
        model,
        reranker,
        reader=reader,
        runner=runner,
        query_model=query_model,
        quick=quick,
        allow_inexact=allow_inexact,
        **hardware,
    )
    engine.require_memory()
    vectors = None
    if vector_file:
        from sbert_search.search.queries import load_vectors

        vectors = load_vectors(vector_file)
    if queries is not None:
        from sbert_search.text.labelled.retrieval import read_queries

        asked = read_queries(queries, encoding=ctx.params["encoding"])
        return _answer_file(engine, asked, vectors, run_out, as_json, chosen, highlight=highlight)
    about = keywords_of(chosen, MatchKeywords)
    counts = engine.facets(query, facets, **about) if facets is not None else {}
    listed = facets is None or bool(typed(ctx) & {"sort", "k", "offset"})
    if query is not None or vectors is not None or listed:
        _answer(engine, query, vectors, as_json, chosen, highlight=highlight)
    for facet in counts.values():
        if as_json:
            emit(facet_record(facet))
        else:
            show_facet(facet)
    _keep_graph(engine, quick=quick)


def _keep_graph(engine: SearchEngine, *, quick: bool) -> None:
    """Export the graph for the next searches, if torch had to answer this quick one."""
    if not quick or engine.opened is None:
        return
    from sbert_search.embed.embedder import Embedder

    if isinstance(engine.opened, Embedder):
        engine.opened.keep_graph()


def _embedding_model(ctx: click.Context) -> str | None:
    """Return the place of the index's model, which a search by a query model does not need."""
    model: str | None = ctx.params["model"]
    if ctx.params["query_model"] is None:
        return model
    refuse_typed(ctx, {"model"}, "with --query-model, which needs no other model")
    return None


_OF_RUNNERS = ("runner", "ray_address", "workers", "replicas", "partial", "shard_timeout_s")
_FOR_EVERY_SEARCH = ("as_json", "quiet", "verbose", *_OF_RUNNERS)


def _check_question(ctx: click.Context) -> None:
    """Refuse a command without a query, with several kinds of queries, or with clashing options."""
    params = ctx.params
    query, queries, like = (params[name] for name in ("query", "queries", "like"))
    if params["facets"] is not None and (like or queries is not None):
        raise click.UsageError("--facets needs a QUERY, or no query at all.")
    n_asked = [query is None, queries is None, not like].count(False)
    lists = params["where"] is not None or params["sort"]
    nothing = params["vector_file"] is params["facets"] is None and not lists
    if n_asked > 1 or (n_asked == 0 and nothing):
        raise click.UsageError(
            "Ask one QUERY, name a file of queries with --queries, a vector with --vector-file, or "
            "documents with --like; or list documents with --where or --sort."
        )
    if params["unlike"] and not like:
        raise click.UsageError("--unlike needs --like.")
    if params["run_out"] and queries is None:
        raise click.UsageError("--run-out needs --queries.")
    if queries is None:
        refuse_typed(ctx, {"encoding"}, "without --queries")
    if params["answer"] and params["run_out"]:
        raise click.UsageError("--run-out holds no answers; leave out --answer.")
    if params["answer"] and query is None and queries is None:
        raise click.UsageError("--answer needs a question, QUERY or --queries.")
    if params["run_out"] and params.get("partial"):
        raise click.UsageError("--run-out names no lost shards; leave out --partial.")
    if params["run_out"] and params["passages"]:
        raise click.UsageError("--run-out has one score for each document; leave out --passages.")


def _refuse_without_hits(ctx: click.Context) -> None:
    """Refuse options that have no effect because no hits are printed or the query has no text."""
    params = ctx.params
    if params["run_out"]:
        refuse_typed(ctx, {"highlight", "full_text", "fields", "as_json"}, "with --run-out")
    if params["query"] is not None or params["queries"] is not None or params["like"]:
        return
    if params["vector_file"] is None:
        allowed = {"path", "facets", "where", "sort", "k", "offset", "group_by", "group_size"}
        allowed |= {"full_text", "fields", "mode", "memory", *_FOR_EVERY_SEARCH}
        refuse_typed(ctx, params.keys() - allowed, "without a query")
    else:
        words = {"highlight", "fuzzy", "operators", "method", "dense_weight"}
        refuse_typed(ctx, words, "without a query")


def _refuse_fuzzy_without_words(ctx: click.Context, options: SearchOptions) -> None:
    """Refuse --fuzzy on the command line for a single query in dense mode without a +word.

    Such a search looks up no words. Set elsewhere, --fuzzy is ignored instead.
    """
    from sbert_search.search.queries import parse_query

    query, queries = ctx.params["query"], ctx.params["queries"]
    if not (options.fuzzy and "fuzzy" in typed(ctx) and options.mode == "dense" and not queries):
        return
    operators = query is not None and options.syntax == "operators"
    clauses = parse_query(query).clauses if operators else ()
    if all(clause.quoted or clause.excluded for clause in clauses):
        raise click.UsageError("--fuzzy needs --mode hybrid or lexical, or a +word in QUERY.")


def _check_run_out(run_out: Path, path: Path, queries: Path, *models: str | None) -> None:
    """Refuse a run file that cannot be written or would overwrite the index, queries or a model."""
    from sbert_search.base.folders import require_apart, require_possible_output
    from sbert_search.text.labelled.retrieval import queries_file

    require_possible_output(run_out, "--run-out")
    folders = [path, *(Path(model) for model in models if model)]
    require_apart(run_out, [queries_file(queries), *folders], "--run-out")


def _answer_like(
    ctx: click.Context,
    path: Path,
    like: Sequence[str],
    unlike: Sequence[str],
    runner: ShardRunner | None,
    as_json: bool,
) -> None:
    """Search for documents similar to documents of the index; this needs no model."""
    from sbert_search.search.engine import SearchEngine

    allowed = {"path", "like", "unlike", "k", *OrderKeywords.__annotations__, *_FOR_EVERY_SEARCH}
    allowed |= set() if ctx.params["highlight"] else {"highlight"}  # --no-highlight is true
    refuse_typed(ctx, ctx.params.keys() - allowed, "with --like")
    chosen = search_options(ctx)
    keywords = keywords_of(chosen, OrderKeywords)
    hits = SearchEngine(path, runner=runner).similar(like, chosen.k, unlike=unlike, **keywords)
    _show(hits, as_json)
    _warn_of(hits.missing)
    if not hits:
        note("No other document matches.")


def _show(hits: Hits, as_json: bool, query_id: str | None = None) -> None:
    """Print hits; JSON output also has the query id, if there is one, and the missing shards."""
    if not as_json:
        return show_hits(hits, scored=hits.total is None)  # a listing has no scores
    of_query = {} if query_id is None else {"query_id": query_id}
    for hit in hits:
        emit({**of_query, **hit_record(hit)})
    if hits.missing:
        emit({**of_query, "missing_shards": list(hits.missing)})


def _warn_of(missing: Sequence[str]) -> None:
    if missing:
        warn(f"Lost shards, whose documents are not searched: {', '.join(missing)}.")


def _answer(
    engine: SearchEngine,
    query: str | None,
    vectors: NDArray[np.floating] | None,
    as_json: bool,
    options: SearchOptions,
    *,
    highlight: bool,
) -> None:
    from sbert_search.search.queries import parse_query

    if vectors is not None and len(vectors) != 1:
        raise click.UsageError(f"--vector-file holds {len(vectors):,} vectors; one is needed.")
    vector = None if vectors is None else vectors[0]
    if query is None:
        hits, query = engine.search(vector, options=options), ""
    else:
        hits = engine.search(query, vector=vector, options=options, highlight=highlight)
    _show(hits, as_json)
    _warn_of(hits.missing)
    if hits.total is not None:
        counted = "documents" if options.group_by is None else "groups"
        note(f"{len(hits):,} of {hits.total:,} {counted}")
    if not hits:
        why = ["matches the filter"] if options.where is not None else []
        if options.syntax == "operators" and (clauses := parse_query(query).clauses):
            why.append(f"meets {' '.join(map(str, clauses))} (--plain takes that as text)")
        if options.offset:
            why.append(f"comes after the first {options.offset:,}")
        if options.min_score is not None:
            why.append(f"has a score of {options.min_score:g} or more")
        by_words = hits.mode == "lexical" or bool(query and options.sort and hits.mode == "hybrid")
        if by_words:
            why.append("has a word of the query; stop words do not count")
        never = _why_never(engine.index) if by_words or not len(engine.index) else ""
        note(never or f"No document {' and '.join(why) or 'was found'}.")
        _note_near_values(engine, str(options.where or ""))
    with suppress(NoLexicalData):
        if query and (corrected := engine.suggest(query, fuzzy=options.fuzzy)):
            note(f"Did you mean: {corrected}")


_EQUALITY = re.compile(r"""("[^"]+"|[\w.]+)\s*=\s*'((?:[^']|'')*)'""")


def _note_near_values(engine: SearchEngine, where: str) -> None:
    """Name values that differ from those of a filter in case, or in the Unicode form, only."""
    for column, value in _EQUALITY.findall(where):
        composed, split = (normalize(form, value) for form in ("NFC", "NFD"))
        with suppress(QueryError):  # no column of texts
            forms = {f"lower({column}) = '{form.lower()}'" for form in (composed, split)}
            alike = " OR ".join(sorted(forms))
            (facet,) = engine.facets(None, column.strip('"'), where=alike).values()
            for other in facet.counts:
                same = normalize("NFC", str(other)) == composed
                how = " It is the same text in another Unicode form, NFC or NFD." if same else ""
                if other != value:
                    note(f"Did you mean {column} = '{other}'?{how}")


def _why_never(index: Index) -> str:
    """Return the reason why an index cannot be searched by a text; "" if it can be."""
    state = index.state
    if not state.n_docs:
        return f"{index.path} holds no documents; `sbert-search index add` adds some."
    if index.identity.is_model or state.manifest.lexical is None:
        return ""
    if any(len(state.postings(n).pairs) for n in range(len(state.segments))):
        return ""
    return (
        f"{index.path} has neither words nor a model, so no text finds its documents. Search by "
        "documents (--like ID) or by a vector of the query (--vector-file FILE.npy)."
    )


def _answer_file(
    engine: SearchEngine,
    queries: Sequence[Query],
    vectors: NDArray[np.floating] | None,
    run_out: Path | None,
    as_json: bool,
    options: SearchOptions,
    *,
    highlight: bool,
) -> None:
    from sbert_search.text.labelled.retrieval import write_run

    if not len(engine.index):
        note(_why_never(engine.index))
    if run_out:
        n_hits = write_run(engine.iter_run(queries, vectors=vectors, options=options), run_out)
        note(f"{len(queries):,} queries, {n_hits:,} hits: {run_out}")
        return
    texts = [query.text for query in queries]
    answers = engine.iter_hits(texts, vectors=vectors, options=options, highlight=highlight)
    missing: tuple[str, ...] = ()
    for query, hits in zip(queries, answers, strict=True):
        if not as_json:
            say(f"{query.query_id}: {query.text}\n")
        _show(hits, as_json, query.query_id)
        if hits.missing != missing:
            missing = hits.missing
            _warn_of(missing)
