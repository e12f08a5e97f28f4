"""Hits made from a ranking of documents, and the text of a hit."""

from __future__ import annotations

from dataclasses import replace

from sbert_search.index.snapshot import Snapshot
from sbert_search.records import Hit
from sbert_search.search.ranking import Ranking


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
