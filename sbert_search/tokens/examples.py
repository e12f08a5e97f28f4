"""Read the tokens of planned pre-training examples from shards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sbert_search.corpus.shards import TokenShards
from sbert_search.runtime.arrays import Ints
from sbert_search.tokens.segments import Examples, document_borders


@dataclass(frozen=True, slots=True)
class PackedExamples:
    """Some examples, concatenated.

    Attributes:
        input_ids: Tokens, special ones included, int64 (total,).
        token_type_ids: 0 up to the first [SEP] of a pair, 1 after it, int64 (total,).
        lengths: Tokens of each example, int64 (n,).
        label: As in `Examples`, int64 (n,).
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
        shards: The shards that the plan was made for.
        plan: The examples of an epoch.
        rows: Indices of the examples to read, (n,).
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].
    """
    borders = document_borders(plan.first[rows], shards.document_tokens)
    cls, sep = np.array([cls_id]), np.array([sep_id])
    parts: list[Ints] = []
    types: list[Ints] = []
    for row, (low, high) in zip(rows, borders, strict=True):
        start, end = plan.first[row].tolist()
        separators = shards.document_tokens[low:high] - start
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
