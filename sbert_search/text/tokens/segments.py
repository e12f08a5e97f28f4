"""Plan the pre-training examples of a corpus as spans of its tokens, and read their tokens.

A corpus is one sequence of tokens, with the starts of its sentences and documents. An example is
one or two spans (ranges) of this sequence. A plan holds a few integers for each example and depends
only on the lengths of sentences and documents. The tokens are read when an example is used, since
the text may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np

from sbert_search.base.arrays import Ints
from sbert_search.base.seed import generator
from sbert_search.declared import Bounds, check
from sbert_search.errors import CorpusError
from sbert_search.text.tokens.shards import TokenShards

Kind = Literal["nsp", "sop", "full-sentences", "document-sentences"]
Span = tuple[int, int]  # index of the first token, and index after the last token

_PAIR_SPECIALS, _SINGLE_SPECIALS = 3, 2  # special tokens of [CLS] A [SEP] B [SEP] and [CLS] A [SEP]


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentSettings:
    """How to form examples.

    Attributes:
        kind: ``nsp``: two segments; in half of the examples the second is from another document.
            ``sop``: two consecutive segments, swapped in half of the examples.
            ``full-sentences``: one segment of consecutive sentences up to ``max_len``, also across
            documents, with a [SEP] between documents. ``document-sentences``: one segment of
            consecutive sentences of one document.
        max_len: Maximum number of tokens in an example, special tokens included.
        short_share: Share of examples with a random shorter length, drawn uniformly (BERT: 0.1).
            The model thus sees short inputs before fine-tuning.
    """

    kind: Kind = "nsp"
    max_len: Annotated[int, Bounds(8)] = 128
    short_share: Annotated[float, Bounds(0, 1)] = 0.0

    def __post_init__(self) -> None:
        check(self, table="segments.")

    @property
    def pairs(self) -> bool:
        """Whether an example has two segments."""
        return self.kind in ("nsp", "sop")

    @property
    def room(self) -> int:
        """Maximum number of tokens in an example, without the special tokens."""
        return self.max_len - (_PAIR_SPECIALS if self.pairs else _SINGLE_SPECIALS)


@dataclass(frozen=True, slots=True)
class ExamplePlan:
    """The examples of a corpus; all arrays are int64."""

    first: Ints  # token span of the first segment, (n, 2)
    second: Ints  # token span of the second segment, (n, 2); (0, 0) if there is none
    label: Ints  # 1: the second is from another document, or the two were swapped; else 0, (n,)
    lengths: Ints  # number of tokens, special tokens included, (n,)

    def __len__(self) -> int:
        return len(self.label)


def plan_examples(
    sentence_starts: Ints, document_starts: Ints, settings: SegmentSettings, *, seed: int
) -> ExamplePlan:
    """Plan the examples of a corpus, in its order; each epoch has the same.

    The starts are those of `TokenShards`. Given a slice of ``document_starts``, only the documents
    of the slice are planned.
    """
    n_documents = len(document_starts) - 1
    if settings.kind == "nsp" and n_documents < 2:
        raise CorpusError(
            "NSP draws a second sentence from another document, but the source has only "
            f"{n_documents} document{'s' * (n_documents != 1)}. Use --set segments.kind=sop or "
            "full-sentences, or a source with several documents."
        )
    rng = generator(seed, "sample", 0)
    first_sentence, last_sentence = document_starts[[0, -1]].tolist()
    sentence_starts = sentence_starts[first_sentence : last_sentence + 1]
    document_starts = document_starts - first_sentence
    if settings.pairs:
        pairs = _pairs(sentence_starts, document_starts, settings, rng)
        rows = np.array(list(pairs), np.int64).reshape(-1, 5)
        first, second, label = rows[:, :2], rows[:, 2:4], rows[:, 4]
        lengths = _PAIR_SPECIALS + np.diff(first).ravel() + np.diff(second).ravel()
    else:
        spans = _packed(sentence_starts, document_starts, settings, rng)
        first = np.array(list(spans), np.int64).reshape(-1, 2)
        second, label = np.zeros_like(first), np.zeros(len(first), np.int64)
        borders = document_borders(first, sentence_starts[document_starts])
        lengths = _SINGLE_SPECIALS + np.diff(first).ravel() + np.diff(borders).ravel()
    if not len(label):
        raise CorpusError(
            "No document has two sentences to pair; use --set segments.kind=full-sentences."
        )
    return ExamplePlan(first, second, label, lengths)


def document_borders(spans: Ints, document_token_starts: Ints) -> Ints:
    """Find the documents that begin inside each token span, but not at the start of the span.

    Returns the index of the first such document and the index after the last, int64 (n, 2).
    """
    low = np.searchsorted(document_token_starts, spans[:, 0], side="right")
    high = np.searchsorted(document_token_starts, spans[:, 1], side="left")
    return np.stack([low, np.maximum(low, high)], axis=1)


def _pairs(
    sentences: Ints, documents: Ints, settings: SegmentSettings, rng: np.random.Generator
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the spans of the first and second segment, and the label, of each example.

    As in BERT's data script, an example takes as many consecutive sentences as fit into its length,
    but at least two, and splits them at a random border between sentences. If a segment of another
    document replaces the second segment, the next example begins with the replaced sentences.
    Unlike there, the label is drawn for every example, so that both labels are equally frequent,
    and a single sentence left at the end of a document is dropped.
    """
    for document, (at, end) in enumerate(pairwise(documents.tolist())):
        while end - at >= 2:
            target = _target(settings, rng)
            stop = max(_last_border(sentences[: end + 1], at, target), at + 2)
            cut = int(rng.integers(at + 1, stop))
            first, second = _span(sentences, at, cut), _span(sentences, cut, stop)
            label = int(rng.integers(2))
            at = stop
            if label and settings.kind == "nsp":
                at = cut
                second = _elsewhere(document, target - _size(first), sentences, documents, rng)
            first, second = _trimmed(first, second, settings.room, rng)
            if label and settings.kind == "sop":
                first, second = second, first
            yield (*first, *second, label)


def _elsewhere(
    document: int, target: int, sentences: Ints, documents: Ints, rng: np.random.Generator
) -> Span:
    """Take sentences, at least one, from a random position of another document."""
    other = int(rng.integers(len(documents) - 2))
    other += other >= document
    at = int(rng.integers(documents[other], documents[other + 1]))
    stop = _last_border(sentences[: documents[other + 1] + 1], at, target)
    return _span(sentences, at, max(stop, at + 1))


def _trimmed(first: Span, second: Span, room: int, rng: np.random.Generator) -> tuple[Span, Span]:
    """Shorten the longer segment until both segments together have at most ``room`` tokens.

    Each token is cut from the start or the end of the segment, at random.
    """
    keep_second = min(_size(second), max(room // 2, room - _size(first)))
    keep_first = min(_size(first), room - keep_second)
    return _shortened(first, keep_first, rng), _shortened(second, keep_second, rng)


def _shortened(span: Span, keep: int, rng: np.random.Generator) -> Span:
    front = int(rng.binomial(_size(span) - keep, 0.5))
    return span[0] + front, span[0] + front + keep


def _packed(
    sentences: Ints, documents: Ints, settings: SegmentSettings, rng: np.random.Generator
) -> Iterator[Span]:
    """Yield spans of whole sentences that fill an example; a sentence too long to fit is split."""
    begins = np.zeros(len(sentences) - 1, np.int64)
    begins[documents[:-1]] = 1
    begun = np.cumsum(begins)  # number of documents begun, up to and including each sentence
    # Number of tokens up to the end of each sentence, with one [SEP] for each document.
    needed = sentences[1:] + begun
    at = int(sentences[0])
    while at < sentences[-1]:
        sentence = int(np.searchsorted(sentences, at, side="right")) - 1
        target = _target(settings, rng)
        stop = int(np.searchsorted(needed, at + target + begun[sentence], side="right"))
        if settings.kind == "document-sentences":
            stop = min(stop, int(documents[begun[sentence]]))
        end = int(sentences[stop]) if stop > sentence else at + target
        yield at, end
        at = end


def _target(settings: SegmentSettings, rng: np.random.Generator) -> int:
    if settings.short_share and rng.random() < settings.short_share:
        return int(rng.integers(2, settings.room + 1))
    return settings.room


def _last_border(sentences: Ints, at: int, target: int) -> int:
    """Return the last sentence border at most ``target`` tokens after the border ``at``.

    Border i is the start of sentence i.
    """
    return at - 1 + int(np.searchsorted(sentences[at:], sentences[at] + target, side="right"))


def _span(sentences: Ints, start: int, stop: int) -> Span:
    return int(sentences[start]), int(sentences[stop])


def _size(span: Span) -> int:
    return span[1] - span[0]


@dataclass(frozen=True, slots=True)
class PackedExamples:
    """The tokens of some examples, concatenated; all arrays are int64."""

    input_ids: Ints  # with special tokens, (total,)
    token_type_ids: Ints  # 0 up to and including the [SEP] after the first span, 1 after, (total,)
    lengths: Ints  # number of tokens of each example, (n,)
    label: Ints  # 1 if the second span does not follow the first in the text, otherwise 0, (n,)


def read_examples(
    shards: TokenShards, plan: ExamplePlan, rows: Ints, *, cls_id: int, sep_id: int
) -> PackedExamples:
    """Read the tokens of the examples ``rows`` of a plan and insert the special tokens.

    A pair is ``[CLS] first [SEP] second [SEP]``. A single span is ``[CLS] first [SEP]``, with
    another [SEP] before each document that begins inside the span.
    """
    borders = document_borders(plan.first[rows], shards.document_token_starts)
    cls, sep = np.array([cls_id]), np.array([sep_id])
    parts: list[Ints] = []
    types: list[Ints] = []
    for row, (low, high) in zip(rows, borders, strict=True):
        start, end = plan.first[row].tolist()
        separators = shards.document_token_starts[low:high] - start
        first = np.insert(shards.tokens(start, end), separators, sep_id)
        parts += [cls, first, sep]
        types.append(np.zeros(len(first) + 2, np.int64))
        start, end = plan.second[row].tolist()
        if start < end:
            parts += [shards.tokens(start, end), sep]
            types.append(np.ones(end - start + 1, np.int64))
    return PackedExamples(
        np.concatenate(parts), np.concatenate(types), plan.lengths[rows], plan.label[rows]
    )
