"""Train only a head: the states of all training rows are computed once and kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.base import arrays as npy
from sbert_search.base import files
from sbert_search.base.progress import progress
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.text.tokens.batching import TOKENS_AT_ONCE, token_batches
from sbert_search.train.loop.batching import Rows


class CachedStates:
    """The encoder's output states of the training rows, which a head reads, memory-mapped.

    Attributes:
        states: The states of all rows, float32 (states, hidden).
        starts: Index of the first state of each row, then the number of states, int64 (rows + 1,).
        encoder: Checksum of the weights of the encoder.
    """

    def __init__(
        self, states: NDArray[np.float32], starts: NDArray[np.int64], encoder: str
    ) -> None:
        self.states, self.starts, self.encoder = states, starts, encoder

    @classmethod
    def compute(
        cls,
        compute: Callable[[Rows], Tensor],
        lengths: NDArray[np.int64],
        items: Sequence[int] | NDArray[np.int64],
        encoder: Encoder,
        path: Path,
    ) -> CachedStates:
        """Compute the states of all rows and write them to a file.

        Args:
            compute: Returns the states of some rows, float (states of these rows, hidden).
            lengths: Number of tokens of each row.
            items: Number of states of each row.
            encoder: The encoder that computes the states.
            path: A temporary file. Its name is removed at the end; the system frees its space when
                the states are no longer used.
        """
        starts = np.cumsum([0, *items], dtype=np.int64)
        hidden = encoder.config.hidden_size
        shape = (int(starts[-1]), hidden)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            # The file has the states in the order of the rows. Within each block of 1024 rows,
            # rows of similar length are computed together.
            with (
                files.NewFile(path) as file,
                progress("Encoding", len(lengths), "rows") as advance,
                torch.no_grad(),
            ):
                file.write(npy.header(np.float32, shape))
                for start in range(0, len(lengths), 1024):
                    rows = np.arange(start, min(start + 1024, len(lengths)))
                    size = starts[rows[-1] + 1] - starts[start]
                    block = np.empty((size, hidden), dtype=np.float32)
                    for part in token_batches(lengths[rows], TOKENS_AT_ONCE):
                        computed = compute(rows[part]).float().cpu().numpy()
                        block[_items(starts, rows[part]) - starts[start]] = computed
                    file.write(block)
                    advance(len(rows))
            states = npy.read(files.map_file(path), np.float32, shape)
        finally:
            path.unlink(missing_ok=True)
        return cls(states, starts, _weights_digest(encoder))

    def penalty(self) -> float:
        """Return the L2 penalty of the weights of a linear layer on the states.

        It is 1, as in the logistic regression of scikit-learn, for states of norm 1. It grows with
        the square of their norm, so the predictions do not depend on the scale of the states.
        """
        blocks = np.array_split(self.states, len(self.states) // 4096 + 1)
        return sum(float(np.vdot(each, each)) for each in blocks) / len(self.states)

    def fingerprint(self, data: str) -> str:
        """Add the encoder to the checksum of the data: no run resumes with another encoder."""
        return f"{data}, frozen encoder {self.encoder}"

    def take(self, rows: Rows) -> Tensor:
        """Return the states of some rows, float32 (states of these rows, hidden)."""
        return torch.from_numpy(self.states[_items(self.starts, rows)])


def _weights_digest(encoder: Encoder) -> str:
    digest = xxhash.xxh3_128()
    for name, tensor in encoder.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy())
    return digest.hexdigest()


def _items(starts: NDArray[np.int64], rows: Rows) -> NDArray[np.int64]:
    sizes = starts[rows + 1] - starts[rows]
    offsets = np.repeat(starts[rows] - np.cumsum(sizes) + sizes, sizes)
    return offsets + np.arange(len(offsets))


def train_only(model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    """Freeze all parameters of a model except ``parameters``."""
    model.requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_()
