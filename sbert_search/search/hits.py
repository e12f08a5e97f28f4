"""The last step of a search: documents of a page become hits, with their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Protocol

import numpy as np

from sbert_search.base import memory
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError
from sbert_search.index.snapshot import Snapshot
from sbert_search.records import Hit, HitAnswer
from sbert_search.search.candidates import best_passages, informative_words
from sbert_search.search.highlight import best_sentences
from sbert_search.search.options import SearchOptions
from sbert_search.search.ranking import Ranking
from sbert_search.search.retrieval import Retrieved


def read_hits(snapshot: Snapshot, ranking: Ranking, n_before: int = 0) -> list[Hit]:
    """Read the documents of a ranking and return them as hits, in the same order.

    Args:
        snapshot: The state of the index that was searched.
        ranking: The documents.
        n_before: Number of documents on earlier pages of the result.
    """
    passages = snapshot.fetch(ranking.rows)
    return [
        Hit(
            rank=n_before + i + 1,
            doc_id=passage.document.doc_id,
            score=float(ranking.scores[i]),
            text=passage.document.text,
            title=passage.document.title,
            metadata=passage.document.metadata,
            row=passage.row,
            passage=passage.text,
            chunk=passage.chunk,
            span=(passage.char_start, passage.char_end),
            stages=ranking.stages_of(i),
        )
        for i, passage in enumerate(passages)
    ]


def body_of(hit: Hit) -> str:
    """Return the best passage of a hit, without the title.

    `Hit.text` must be the whole text of the document. If the passage contains only the title, the
    title is returned.
    """
    return _body(hit) or hit.title


def without_rest(hit: Hit) -> Hit:
    """Return a hit whose text is only its best passage.

    The text of the given hit must be the whole text of the document.
    """
    start, end = passage_in_text(hit)
    if (start, end) == (0, len(hit.text)):
        return hit
    answer = hit.answer
    if answer is not None:
        answer = replace(answer, start=answer.start - start, end=answer.end - start)
    return replace(hit, text=hit.text[start:end], answer=answer)


def passage_in_text(hit: Hit) -> tuple[int, int]:
    """Return start and end of the best passage in `Hit.text`, which must be the whole text."""
    # The title and a blank come before the text in `Document.full_text`.
    (start, end), length = hit.span, len(hit.text)
    offset = len(hit.title) + 1 if hit.title else 0
    return min(max(start - offset, 0), length), min(max(end - offset, 0), length)


def _body(hit: Hit) -> str:
    start, end = passage_in_text(hit)
    return hit.text[start:end]


class FoundAnswer(Protocol):
    """An answer in a text, such as a `TextAnswer`."""

    @property
    def text(self) -> str:
        """The answer; "" if the text has no answer."""

    @property
    def start(self) -> int:
        """Index of the first character of the answer in the text."""

    @property
    def end(self) -> int:
        """Index after the last character of the answer."""

    @property
    def score(self) -> float:
        """Probability of the answer, from 0 to 1."""


class AnswerReader(Protocol):
    """A model that answers questions from texts, such as a `Predictor` of the task qa."""

    def answer(self, questions: Sequence[tuple[str, str]], /) -> Sequence[FoundAnswer]:
        """Return for each pair of a question and a text the answer that the text gives."""


def with_answers(reader: AnswerReader, query: str, hits: Sequence[Hit], depth: int) -> list[Hit]:
    """Fill `Hit.answer` of the first hits with the answer in their best passage.

    The hits keep their order.

    Args:
        reader: The model.
        query: The question.
        hits: Hits with their whole texts, best first.
        depth: Number of hits to read, from the first on.
    """
    places = [passage_in_text(hit) for hit in hits[:depth]]
    read = [
        (hit, start, end) for hit, (start, end) in zip(hits, places, strict=False) if end > start
    ]
    found = reader.answer([(query, hit.text[start:end]) for hit, start, end in read])
    answers = {
        hit.rank: HitAnswer(own.text, start + own.start, start + own.end, own.score)
        for (hit, start, _), own in zip(read, found, strict=True)
        if own.text
    }
    return [replace(hit, answer=answers.get(hit.rank)) for hit in hits]


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
