"""A packed batch: the tokens of all texts concatenated, without padding.

Each token is one row of the batch; ``total`` is the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sbert_search.base.device import send

# Attention with dropout on a CPU pads adjacent texts to one length if their lengths round up to the
# same multiple of this number of tokens.
_WINDOW = 16


class Run(NamedTuple):
    """Adjacent texts of equal length, in the rows ``start`` to ``start + texts * length - 1``."""

    start: int
    texts: int
    length: int


class Window(NamedTuple):
    """Adjacent texts of similar length that attention pads to one length and computes at once."""

    rows: slice  # of the texts in any (total, ...) matrix of the batch
    texts: int
    length: int  # of each text, padding included
    # Row of each token in a padded (texts x length, ...) matrix, int64 (n,), and the tensor to add
    # to attention scores, 0 for a token, -inf for padding, float (texts, 1, length). None: the
    # texts have equal lengths and need no padding.
    padded_rows: Tensor | None
    bias: Tensor | None


class ByLength(NamedTuple):
    """A batch reordered so that texts of equal length are adjacent, and the original order."""

    tokens: PackedTokens
    texts: list[int] | None  # original index of each text; None: the order did not change
    rows: Tensor | None  # original row of each row, int64 (total,); None likewise

    def restore(self, values: Tensor) -> Tensor:
        """Put (total, ...) values of the reordered batch into the original order."""
        return values if self.rows is None else values[self._back]

    def ordered_rows(self, rows: Tensor) -> Tensor:
        """Translate rows of the original batch to rows of the reordered batch, int64 (n,)."""
        return rows if self.rows is None else self._back[rows]

    @property
    def _back(self) -> Tensor:
        """For each row of the original batch, its row in the reordered batch, int64 (total,)."""
        assert self.rows is not None
        back = torch.empty_like(self.rows)
        back[self.rows] = torch.arange(len(back), device=back.device)
        return back

    def restore_texts(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Put one value per text, in the reordered order, into the original order of the texts."""
        if self.texts is None:
            return tuple(values)
        in_order = sorted(zip(self.texts, values, strict=True), key=itemgetter(0))
        return tuple(value for _, value in in_order)


@dataclass(frozen=True, eq=False)
class PackedTokens:
    """The tokens of all texts of a batch, one text after the other."""

    input_ids: Tensor  # int64 (total,)
    lengths: tuple[int, ...]  # of each text, at least 1
    token_type_ids: Tensor | None = None  # segment ids, int64 (total,); None: all 0
    starts_buffer: Tensor | None = None  # see `with_buffers`; None: computed from ``lengths``
    positions_buffer: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.lengths:
            raise ValueError("A batch needs at least one text.")
        if min(self.lengths) < 1:
            raise ValueError(
                f"Text {self.lengths.index(min(self.lengths))} of the batch has no tokens; "
                "encode it with its special tokens, or leave it out."
            )
        total = sum(self.lengths)
        if self.input_ids.shape != (total,):
            raise ValueError(
                f"The lengths add up to {total} tokens; input_ids has shape "
                f"{tuple(self.input_ids.shape)}."
            )
        if self.token_type_ids is not None and self.token_type_ids.shape != (total,):
            raise ValueError(
                f"token_type_ids has shape {tuple(self.token_type_ids.shape)}, not ({total},)."
            )

    @classmethod
    def from_lists(
        cls,
        input_ids: Sequence[Sequence[int]],
        token_type_ids: Sequence[Sequence[int]] | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> PackedTokens:
        """Pack texts, each given as a list of token ids."""
        return cls(
            _flat(input_ids, device),
            tuple(map(len, input_ids)),
            None if token_type_ids is None else _flat(token_type_ids, device),
        )

    @classmethod
    def from_padded(
        cls, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> PackedTokens:
        """Pack a padded batch, tensors of shape (batch, seq_len), with padding on either side."""
        real = attention_mask.bool()
        return cls(
            input_ids[real],
            tuple(real.sum(dim=1).tolist()),
            None if token_type_ids is None else token_type_ids[real],
        )

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedTokens:
        """Copy the batch to a device."""
        types = self.token_type_ids
        return PackedTokens(
            self.input_ids.to(device, non_blocking=non_blocking),
            self.lengths,
            None if types is None else types.to(device, non_blocking=non_blocking),
        )

    def with_buffers(self, starts: Tensor, positions: Tensor) -> PackedTokens:
        """Return a copy of the batch whose `starts` and `positions` are these tensors.

        A CUDA graph reads its inputs from fixed addresses. To replay it for another batch, the
        caller overwrites these tensors with the starts and positions of the other batch. The other
        batch must have the same number of rows and texts as this batch, and no text that is longer
        than the longest text of this batch.
        """
        return replace(self, starts_buffer=starts, positions_buffer=positions)

    @property
    def total(self) -> int:
        """Number of tokens in the batch."""
        return self.input_ids.shape[0]

    @cached_property
    def starts(self) -> Tensor:
        """Row of the first token of each text, then the total, int32 (batch + 1,)."""
        if self.starts_buffer is not None:
            return self.starts_buffer
        ends = np.cumsum((0, *self.lengths), dtype=np.int32)
        return send(ends, self.input_ids.device)

    @property
    def first_rows(self) -> Tensor:
        """Row of the first token ([CLS]) of each text, int32 (batch,)."""
        return self.starts[:-1]

    @cached_property
    def positions(self) -> Tensor:
        """Position of each token in its text, from 0, int64 (total,)."""
        if self.positions_buffer is not None:
            return self.positions_buffer
        rows = torch.arange(len(self.input_ids), device=self.input_ids.device)
        return rows - self.starts[:-1].long()[self.text_of_row]

    @cached_property
    def text_of_row(self) -> Tensor:
        """Index of the text of each token, int64 (total,)."""
        device = self.input_ids.device
        lengths = send(np.array(self.lengths), device)
        texts = torch.arange(len(self.lengths), device=device)
        return texts.repeat_interleave(lengths, output_size=len(self.input_ids))

    @cached_property
    def runs(self) -> list[Run]:
        """Groups of adjacent texts of equal length, in the order of the batch."""
        runs, start = [], 0
        for length, group in groupby(self.lengths):
            runs.append(Run(start, len(list(group)), length))
            start += runs[-1].texts * length
        return runs

    @cached_property
    def run_sizes(self) -> list[int]:
        """Number of rows of each run; a run is a view of any (total, ...) matrix by `torch.split`.

        If each run were a slice, the gradient of each slice would be a tensor as large as the
        batch.
        """
        return [run.texts * run.length for run in self.runs]

    @cached_property
    def windows(self) -> list[Window]:
        """Groups of adjacent runs whose lengths round up to the same multiple of 16."""
        windows = []
        for _, group in groupby(self.runs, key=lambda run: -(-run.length // _WINDOW)):
            runs = list(group)
            texts = sum(run.texts for run in runs)
            size = sum(run.texts * run.length for run in runs)
            rows = slice(runs[0].start, runs[0].start + size)
            length, padded_rows, bias = runs[0].length, None, None
            if len(runs) > 1:
                length = -(-length // _WINDOW) * _WINDOW
                first = self.text_of_row[rows.start]
                padded_rows = (self.text_of_row[rows] - first) * length + self.positions[rows]
                bias = padded_rows.new_full((texts * length,), float("-inf"), dtype=torch.float32)
                bias = bias.index_fill_(0, padded_rows, 0).view(texts, 1, length)
            windows.append(Window(rows, texts, length, padded_rows, bias))
        return windows

    def by_length(self) -> ByLength:
        """Reorder the batch so that texts of equal length are adjacent, if they are not yet."""
        if len(self.runs) == len(set(self.lengths)):
            return ByLength(self, None, None)
        texts = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        # Only the lengths of `reordered` are used; its token ids are still in the old order.
        reordered = PackedTokens(self.input_ids, tuple(self.lengths[text] for text in texts))
        order = send(np.array(texts), self.input_ids.device)
        rows = self.first_rows.long()[order][reordered.text_of_row] + reordered.positions
        types = self.token_type_ids
        ordered = PackedTokens(
            self.input_ids[rows], reordered.lengths, None if types is None else types[rows]
        )
        return ByLength(ordered, texts, rows)

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Copy (total, ...) values to (batch, longest, ...), with ``fill`` after each text."""
        padded = values.new_full((len(self.lengths), max(self.lengths), *values.shape[1:]), fill)
        padded[self.text_of_row, self.positions] = values
        return padded


def _flat(rows: Sequence[Sequence[int]], device: torch.device | str) -> Tensor:
    total = sum(map(len, rows))
    return send(np.fromiter(chain.from_iterable(rows), np.int64, total), device)
