"""The last step of a search: the documents of a page become hits, with their best sentences."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import memory
from sbert_search.config import names_of, unknown_name
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, QueryError
from sbert_search.index.documents import OWN_COLUMNS, sorted_by
from sbert_search.index.lexical.analyzer import (
    STOP_WORD,
    NearWords,
    all_words,
    folded,
    is_unspaced,
    joined_pairs,
    term_reader,
)
from sbert_search.index.norms import unit_vectors
from sbert_search.index.snapshot import Snapshot
from sbert_search.records import Hit, HitAnswer
from sbert_search.search.candidates import best_passages
from sbert_search.search.fusion import Ranking
from sbert_search.search.options import SearchOptions
from sbert_search.search.retrieval import Retrieved
from sbert_search.text.tokens.chunking import split_sentences

if TYPE_CHECKING:
    from sbert_search.search.ordering import PairScorer

SENTENCES = 4  # most sentences of one passage that are embedded
CHARS = 1 << 17  # characters from the start of a passage that are split into sentences
TOKENS = 128  # most tokens of the sentences that are embedded for one query

_HEADING = re.compile(r"#{1,6} .*[^.!]")  # without a sentence on the next line

Shared = Callable[[str], float]
"""Returns the sum of the inverse document frequencies of the words that a text shares with a query.
"""


def best_sentences(
    snapshot: Snapshot,
    query: str,
    passages: Sequence[str],
    vector: NDArray[np.float32] | None = None,
    embedder: Callable[[], TextEmbedder] | None = None,
) -> list[str]:
    """Pick from each passage the sentence that best answers a query; "" if there is no text.

    The score of a sentence is the sum of the inverse document frequencies of the words that it
    shares with the query; the first of equally good ones is picked, and a heading in Markdown only
    if no other sentence shares a word. If no sentence of a passage shares a word, it is the one
    nearest to ``vector`` (dim,), among the first `SENTENCES` sentences.

    ``embedder`` is called only if it is needed. At most `TOKENS` tokens of all passages are
    embedded, in one call of the embedder; without a vector, none are.
    """
    # See "The best sentence of a hit is chosen by words" in docs/decisions.md.
    groups = [split_sentences(p[:CHARS], wrapped=True) or [""] for p in passages]
    shared = _by_index(snapshot, query) if snapshot.manifest.lexical else _by_page(query, groups)
    scores = [list(map(shared, group)) for group in groups]
    for group, own in zip(groups, scores, strict=True):
        body = [0.0 if _HEADING.fullmatch(t) else s for t, s in zip(group, own, strict=True)]
        own[:] = body if any(body) else own
    best = [group[s.index(max(s))] for group, s in zip(groups, scores, strict=True)]
    undecided = [i for i, s in enumerate(scores) if len(s) > 1 and not max(s)]
    if undecided and vector is not None and embedder is not None:
        first = [groups[i][:SENTENCES] for i in undecided]
        for i, sentence in zip(undecided, _nearest(first, vector, embedder()), strict=True):
            best[i] = sentence
    return best


def _by_index(snapshot: Snapshot, query: str) -> Shared:
    """Make `Shared` for a query: by stems without stop words, with the frequencies of the index."""
    lexical = snapshot.lexical
    terms = set(lexical.reader.terms(query).tolist()) - {STOP_WORD}
    counts = {term: lexical.frequency_of(term) for term in terms}
    idf = {term: math.log(1 + snapshot.n_docs / (count + 0.5)) for term, count in counts.items()}

    def shared(text: str) -> float:
        found = lexical.reader.terms(text).tolist()
        return math.fsum(idf[term] for term in terms.intersection(found))

    return shared


def _by_page(query: str, groups: Sequence[Sequence[str]]) -> Shared:
    """Make `Shared` for a query and an index without lexical data.

    The frequencies are those in the sentences. Words are not stemmed, and stop words count too.
    """
    words = _words(query)
    counts = Counter(word for group in groups for text in group for word in words & _words(text))
    total = sum(map(len, groups))
    idf = {word: math.log(1 + total / count) for word, count in counts.items()}
    return lambda text: math.fsum(idf[word] for word in words & _words(text))


def _nearest(
    groups: Sequence[Sequence[str]], query: NDArray[np.float32], embedder: TextEmbedder
) -> list[str]:
    """Return the sentence of each group that is nearest to a query, of those `_within_budget`."""
    tokens = embedder.tokenize([text for group in groups for text in group], task="document")
    starts = np.cumsum([0, *map(len, groups)])
    rows = np.array(list(_within_budget(starts, tokens.lengths)), dtype=np.int64)
    similarities = np.full(len(tokens), -np.inf, dtype=np.float32)
    if len(rows):
        similarities[rows] = unit_vectors(embedder.encode_tokens(tokens.take(rows))) @ query
    parts = np.split(similarities, starts[1:-1])
    return [group[int(np.argmax(part))] for group, part in zip(groups, parts, strict=True)]


def _within_budget(starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> Iterator[int]:
    """Yield indices of each passage's first sentence, then of the second ones, up to a budget.

    ``starts`` has the index of the first sentence of each passage, then the number of sentences.
    """
    used = 0
    for rank in range(int(np.diff(starts).max())):
        for row in (starts[:-1] + rank)[rank < np.diff(starts)].tolist():
            used += int(lengths[row])
            if used > TOKENS:
                return
            yield row


def _words(text: str) -> set[str]:
    return set(all_words(folded(text)))


COMMON = 0.1  # a word in more than this share of the documents is common
FEW = 10  # a word in at most this number of documents is never common, however small the index


def informative_words(
    snapshot: Snapshot, query: str, texts: Sequence[str], near: NearWords | None = None
) -> list[tuple[str, ...]]:
    """Return the words of a query that each text contains, in any inflected form.

    Words that ``near`` finds for them are returned too. Words that many documents of the index
    contain, such as "what", are returned only if no other word matches, stop words never. Parts of
    texts without blanks are as long as possible. If the index has no lexical data, no words are
    returned.
    """
    settings = snapshot.manifest.lexical
    if settings is None:
        return [()] * len(texts)
    reader = term_reader(settings)
    found = (reader.matched_words(query, text, near).values() for text in texts)
    matched = [tuple(dict.fromkeys(chain.from_iterable(words))) for words in found]
    every = list(dict.fromkeys(chain.from_iterable(matched)))
    counts = [snapshot.lexical.frequency_of(term) for term in reader.hashes(every).tolist()]
    limit = max(FEW, COMMON * snapshot.n_docs)
    common = {word for word, count in zip(every, counts, strict=True) if count > limit}
    shown = [tuple(word for word in words if word not in common) or words for words in matched]
    if not is_unspaced("".join(every)):
        return shown
    return [tuple(joined_pairs(words, text)) for words, text in zip(shown, texts, strict=True)]


def order_page(
    snapshot: Snapshot,
    block: Sequence[Retrieved],
    options: SearchOptions,
    reranker: PairScorer | None,
) -> list[Retrieved]:
    """Order the documents found for each query, and keep those of the requested page.

    The stages are: the reranker, boosts, ``min_score``, diversity or ``sort``, groups, and the
    page. All but the last two order the candidates, which are the same whichever page is requested.
    The other documents follow the candidates in the order of retrieval, but with ``sort`` there are
    none.
    """
    if reranker is not None:
        from sbert_search.search.ordering import reranked

        block = reranked(snapshot, block, options, reranker)
    return [_page(snapshot, found, options, reranker) for found in block]


def _page(
    snapshot: Snapshot, found: Retrieved, options: SearchOptions, reranker: PairScorer | None
) -> Retrieved:
    """Skip the first ``offset`` documents, or groups with ``group_by``, and keep the next k."""
    ranking, skipped = found.ranking, options.offset
    limited = options.min_score is not None
    if found.others is not None or options.boost or limited or options.diversity:
        from sbert_search.search.ordering import reordered

        ranking = reordered(snapshot, found, options, reranker)
    if options.sort:
        ranking = ranking.take(sorted_by(snapshot, options.sort, ranking.docs))
    last = options.offset + options.k
    kept = np.arange(min(last, len(ranking)))
    if options.group_by is not None:
        from sbert_search.search.facets import groups_of, within_groups

        groups = groups_of(snapshot, options.group_by, ranking.docs)
        kept = within_groups(groups, last, options.group_size)
        skipped = len(within_groups(groups, options.offset, options.group_size))
    page = ranking.take(kept[skipped:])
    return found._replace(ranking=page, others=None, n_before=skipped)


def read_hits(snapshot: Snapshot, ranking: Ranking, n_before: int = 0) -> list[Hit]:
    """Read the documents of a ranking as hits, in its order; ``n_before`` are on earlier pages."""
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


def cut_to_passage(hit: Hit) -> Hit:
    """Return a hit whose text, the whole text of the document, is cut to its best passage."""
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
    """Fill `Hit.answer` of the first ``depth`` hits from their passages; texts must be whole."""
    places = [(hit, *passage_in_text(hit)) for hit in hits[:depth]]
    read = [(hit, start, end) for hit, start, end in places if end > start]
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
    """Split queries into parts, so that the texts of a part's hits fit into 1/32 of the budget."""
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

    ``embedder`` returns the model of the index, which chooses the best sentence if no sentence
    shares a word with the query; None: only words decide.
    """
    ranking = best_passages(snapshot, found.query, found.ranking, found.near, group=options.group)
    if found.required and options.group:
        from sbert_search.search.words import with_required_words

        ranking = with_required_words(snapshot, found, ranking)
    hits = read_hits(snapshot, ranking, found.n_before)
    if highlight and hits:
        hits = _highlighted(snapshot, found, hits, embedder, group=options.group)
    if reader is not None:
        hits = with_answers(reader, found.query, hits, options.answer_depth)
    hits = hits if options.full_text else list(map(cut_to_passage, hits))
    return hits if options.fields is None else _with_fields(snapshot, hits, options.fields)


def _with_fields(snapshot: Snapshot, hits: Sequence[Hit], chosen: str | Sequence[str]) -> list[Hit]:
    """Keep the chosen metadata of hits, and their titles and texts if these are chosen."""
    fields, known = names_of(chosen), {*OWN_COLUMNS, "text", *snapshot.columns}
    for name in fields:
        if name not in known:
            raise QueryError(unknown_name(name, name, known, "field"))
    title, text = "title" in fields, "text" in fields
    return [
        replace(
            hit,
            metadata={name: hit.metadata[name] for name in fields if name in hit.metadata},
            title=hit.title if title else "",
            text=hit.text if text else "",
            passage=hit.passage if text else "",
        )
        for hit in hits
    ]


def _highlighted(
    snapshot: Snapshot,
    found: Retrieved,
    hits: list[Hit],
    embedder: Callable[[], TextEmbedder] | None,
    *,
    group: bool,
) -> list[Hit]:
    """Fill `Hit.best_sentence` and `Hit.matched_words`; texts must be whole."""
    # The best passage without the title, or the title if the passage has nothing else.
    bodies = [hit.text[slice(*passage_in_text(hit))] or hit.title for hit in hits]
    texts = [f"{hit.title} {hit.text}" if group else hit.passage for hit in hits]
    words = informative_words(snapshot, found.query, texts, found.near)
    wanted = " ".join([found.query, *chain.from_iterable(words if found.near else ())])
    best = best_sentences(snapshot, wanted, bodies, found.vector, embedder)
    return [
        replace(hit, best_sentence=sentence, matched_words=matched)
        for hit, sentence, matched in zip(hits, best, words, strict=True)
    ]


def scores_by_id(
    snapshot: Snapshot, rankings: Sequence[Ranking], group_by: str | None = None
) -> Iterator[dict[str, float]]:
    """Return for each ranking the scores by document id, best first; one call reads all ids.

    With ``group_by``, a document has the value of this column in place of its id, if it has one.
    """
    doc_ids = iter(ids_of(snapshot, np.concatenate([each.docs for each in rankings]), group_by))
    return (dict(zip(islice(doc_ids, len(r)), r.scores.tolist(), strict=True)) for r in rankings)


def ids_of(snapshot: Snapshot, docs: NDArray[np.int64], group_by: str | None) -> list[str]:
    """Return the ids of documents or, with ``group_by``, of groups, as `scores_by_id` does."""
    names = snapshot.doc_ids(docs)
    if group_by is None:
        return names
    # Not of `Snapshot.metadata`: a segment may have 2 where the column has 2.0.
    codes, distinct = snapshot.codes_of(group_by, docs), snapshot.distinct_values(group_by)
    pairs = zip(codes.tolist(), names, strict=True)
    return [own if code < 0 else str(distinct.value(code)) for code, own in pairs]
