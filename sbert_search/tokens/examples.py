"""Read the tokens of planned pre-training examples from shards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sbert_search.base.arrays import Ints
from sbert_search.corpus.shards import TokenShards
from sbert_search.tokens.segments import Examples, document_borders


@dataclass(frozen=True, slots=True)
class PackedExamples:
    """The tokens of some examples, concatenated.

    Attributes:
        input_ids: Token ids with special tokens, int64 (total,).
        token_type_ids: 0 up to and including the [SEP] after the first span, 1 after it, int64
            (total,).
        lengths: Number of tokens of each example, int64 (n,).
        label: 1 if the second span does not follow the first in the text, otherwise 0, int64 (n,).
    """

    input_ids: Ints
    token_type_ids: Ints
    lengths: Ints
    label: Ints


def read_examples(
    shards: TokenShards, plan: Examples, rows: Ints, *, cls_id: int, sep_id: int
) -> PackedExamples:
    """Read the tokens of some examples and insert the special tokens.

    A pair is ``[CLS] first [SEP] second [SEP]``. A single span is ``[CLS] first [SEP]``, with
    another [SEP] before each document that begins inside the span.

    Args:
        shards: The shards for which the plan was made.
        plan: The plan of an epoch: where in the shards each example begins and ends.
        rows: Indices of the examples to read, (n,).
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].
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
