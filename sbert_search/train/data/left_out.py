"""Leave out the texts of rows that a loss would compare with an equal text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import warn
from sbert_search.errors import TrainingError
from sbert_search.train.data.text_dataset import NO_TEXT, RowTokens, TextRows, equal_texts


def without_copies(rows: TextRows, tokens: RowTokens) -> tuple[TextRows, RowTokens]:
    """Keep the first of the rows of a class with equal tokens; its copies would teach nothing."""
    assert rows.targets is not None
    keys = np.column_stack([rows.targets.astype(np.int64), equal_texts(rows, tokens)])
    kept = np.zeros(len(keys), dtype=np.bool_)
    kept[np.unique(keys, axis=0, return_index=True)[1]] = True
    if not kept.all():
        warn(
            f"{np.sum(~kept):,} of {len(kept):,} rows are left out, such as the one at "
            f"{_first(rows, ~kept)}: another row of the class has the same text, or one with the "
            "same tokens, from which this loss learns nothing."
        )
    return _select(rows, tokens, kept)


def without_false_negatives(
    rows: TextRows, tokens: RowTokens, fewest: int
) -> tuple[TextRows, RowTokens]:
    """Leave out negatives equal to anchor or positive, and rows left with less than ``fewest``."""
    if rows.text_ids.shape[1] < 3:
        return rows, tokens
    texts = equal_texts(rows, tokens)  # texts with equal tokens are equal
    false = np.zeros(texts.shape, dtype=np.bool_)
    false[:, 2:] = (texts[:, 2:, None] == texts[:, None, :2]).any(axis=2)
    false &= texts != NO_TEXT
    has_false: NDArray[np.bool_] = np.any(false, axis=1)
    if not has_false.any():
        return rows, tokens
    # The texts that stay move to the left.
    present = (texts != NO_TEXT) & ~false
    width = int(present.sum(axis=1).max())
    places = np.argsort(~present, axis=1, kind="stable")[:, :width]

    def arranged(ids: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.take_along_axis(np.where(present, ids, np.int32(NO_TEXT)), places, axis=1)

    kept = present.sum(axis=1) >= fewest
    why = f"{_first(rows, has_false)}: it is the anchor or the positive, or has the same tokens"
    if not kept.any():
        raise TrainingError(
            f"No row has a usable negative, such as the one at {why}. Give other negatives."
        )
    lost = int(np.sum(~kept))
    also = f" So are {lost:,} of {len(kept):,} rows, which have no other negative." if lost else ""
    warn(f"{np.sum(false):,} negatives are left out, such as the one at {why}.{also}")
    rows = replace(rows, text_ids=arranged(rows.text_ids))
    return _select(rows, replace(tokens, ids=arranged(tokens.ids)), kept)


def _select(
    rows: TextRows, tokens: RowTokens, kept: NDArray[np.bool_]
) -> tuple[TextRows, RowTokens]:
    return rows.select(kept), replace(tokens, ids=tokens.ids[kept])


def _first(rows: TextRows, chosen: NDArray[np.bool_]) -> str:
    return rows.sources[int(np.argmax(chosen))]
