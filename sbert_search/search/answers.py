"""The last step of a search: return the documents of a page as hits, or as ids with scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np

from sbert_search.base import memory
from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.errors import ConfigError
from sbert_search.index.snapshot import Snapshot
from sbert_search.records import Hit
from sbert_search.search.highlight import best_sentences
from sbert_search.search.hits import body_of, read_hits, without_rest
from sbert_search.search.options import SearchOptions
from sbert_search.search.ranking import Ranking
from sbert_search.search.reading import AnswerReader, with_answers
from sbert_search.search.retrieval import Retrieved
from sbert_search.search.stages.lexical import best_passages, informative_words


def within_memory(
    snapshot: Snapshot, block: Sequence[Retrieved], budget: int | None
) -> Iterator[Sequence[Retrieved]]:
    """Split queries into parts, so that the texts of a part's hits fit into 1/32 of the budget.

    Args:
        snapshot: State of the index that was searched.
        block: The documents found for each query.
        budget: Memory limit of the process in bytes; None: no limit.

    Raises:
        ConfigError: The texts of one query's hits do not fit.
    """
    if budget is None:
        yield block
        return
    part: list[Retrieved] = []
    taken, allowed = 0, budget // 32
    for found in block:
        n_bytes = snapshot.bytes_of(np.unique(found.ranking.docs))
        if n_bytes > allowed:
            which = repr(found.asked[:60]) if found.asked else "a vector"
            raise ConfigError(
                f"The documents found for {which} take {memory.mib(n_bytes)}, but "
                f"only {memory.mib(allowed)}, 1/32 of --memory, may hold documents; allow more "
                "memory, or ask for fewer documents with -k or, with a reranker, --rerank-depth."
            )
        if part and taken + n_bytes > allowed:
            yield part
            part, taken = [], 0
        part.append(found)
        taken += n_bytes
    yield part


def page_hits(
    snapshot: Snapshot,
    found: Retrieved,
    options: SearchOptions,
    reader: AnswerReader | None = None,
    *,
    highlight: bool,
    embedder: Callable[[], TextEmbedder] | None,
) -> list[Hit]:
    """Read the documents of a result page as hits.

    Args:
        snapshot: State of the index that was searched.
        found: The documents of the page.
        options: The options of the search.
        reader: Answers the query from the passages of the first hits; None: hits get no answer.
        highlight: Whether to fill `Hit.best_sentence` and `Hit.matched_words`.
        embedder: Returns the model of the index, which is used to choose the best sentence if no
            sentence shares a word with the query; None: only words decide.
    """
    ranking = best_passages(snapshot, found.query, found.ranking, found.near, group=options.group)
    hits = read_hits(snapshot, ranking, found.n_before)
    if highlight and hits:
        hits = _highlighted(snapshot, found, hits, embedder)
    if reader is not None:
        hits = with_answers(reader, found.query, hits, options.answer_depth)
    return hits if options.full_text else list(map(without_rest, hits))


def _highlighted(
    snapshot: Snapshot,
    found: Retrieved,
    hits: list[Hit],
    embedder: Callable[[], TextEmbedder] | None,
) -> list[Hit]:
    """Fill `Hit.best_sentence` and `Hit.matched_words` of each hit."""
    bodies = [body_of(hit) for hit in hits]
    texts = [f"{hit.title} {hit.text}" for hit in hits]
    words = informative_words(snapshot, found.query, texts, found.near)
    wanted = " ".join([found.query, *chain.from_iterable(words if found.near else ())])
    best = best_sentences(snapshot, wanted, bodies, found.vector, embedder)
    return [
        replace(hit, best_sentence=sentence, matched_words=matched)
        for hit, sentence, matched in zip(hits, best, words, strict=True)
    ]


def scores_by_id(snapshot: Snapshot, rankings: Sequence[Ranking]) -> Iterator[dict[str, float]]:
    """Return for each ranking the scores by document id, best first.

    The ids of all rankings are read in one call, before the first result.
    """
    doc_ids = iter(snapshot.doc_ids(np.concatenate([ranking.docs for ranking in rankings])))
    return (dict(zip(islice(doc_ids, len(r)), r.scores.tolist(), strict=True)) for r in rankings)
