"""Documents that were found, as hits for people and programs."""

from __future__ import annotations

from sbert_search.index.snapshot import Snapshot
from sbert_search.records import Document, Hit
from sbert_search.search.ranking import Ranking


def read_hits(snapshot: Snapshot, ranking: Ranking) -> list[Hit]:
    """Read the documents of a ranking, best first."""
    passages = snapshot.fetch(ranking.rows)
    return [
        Hit(
            rank=place + 1,
            doc_id=passage.document.doc_id,
            score=float(ranking.scores[place]),
            text=passage.document.text,
            title=passage.document.title,
            metadata=passage.document.metadata,
            row=passage.row,
            passage=(passage.char_start, passage.char_end),
            stages=ranking.stages_of(place),
        )
        for place, passage in enumerate(passages)
    ]


def passage_of(hit: Hit) -> str:
    """Return the text of the passage that made the hit, title included where it is part of it."""
    start, end = hit.passage
    return Document(hit.doc_id, hit.text, hit.title).full_text[start:end]


def body_of(hit: Hit) -> str:
    """Return what that passage has of the document's text, or of its title when that is all."""
    offset = len(hit.title) + 1 if hit.title else 0
    start, end = (max(place - offset, 0) for place in hit.passage)
    return hit.text[start:end] or hit.title
