"""Engines of this package's own bi-encoders and task heads, with CUDA graphs for small batches.

For a batch of a few texts, launching about a hundred kernels takes longer than running them. A
small batch is therefore padded to one of a few shapes, called buckets. The kernels for a bucket are
recorded once as a CUDA graph, on tensors with fixed addresses. One launch then replays them all.

Decision: docs/decisions.md, "CUDA graphs for small steps, no torch.compile".
Source: torch.cuda.CUDAGraph; "CUDA semantics", section CUDA Graphs, of torch's documentation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain, cycle, islice

import numpy as np
import torch
from torch import Tensor

from sbert_search.base.device import fetch, plain_memory_errors, send
from sbert_search.base.progress import warn
from sbert_search.base.verdicts import Verdict
from sbert_search.embed.engines.protocol import EngineName
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.inference_layers import (
    Calibration,
    RangeCounter,
    freeze,
    freeze_int8,
)
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.precision import inference_precision
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.token_classifier import PerTokenModel

# Largest number of tokens in a bucket. With a few thousand tokens, running the kernels takes longer
# than launching them.
MAX_TOKENS = 1024
_MIN_LENGTH = 16  # texts in the smallest buckets have up to this number of tokens

Ids = Sequence[Sequence[int]]
Compute = Callable[[PackedTokens], Tensor]
Work = Callable[[], Tensor]
Record = Callable[[Work], Work]


class GraphReplayer:
    """Computes packed batches; small batches are computed by replaying a CUDA graph.

    Several threads may call the same object. ``compute`` maps a packed batch to float (batch,
    width). It must find the texts of the batch by the tensor ``PackedTokens.starts``, which is
    overwritten before a graph is replayed. It must not use the Python numbers
    ``PackedTokens.lengths``, which are those of the recording (see `Encoder.needs_only_starts`).
    The weights of the model must keep their memory addresses. ``record`` records the kernels that a
    function launches, and returns a function that replays them and writes the result to the same
    tensor each time.
    """

    def __init__(
        self, compute: Compute, device: torch.device, longest: int, record: Record | None = None
    ) -> None:
        self._compute, self._device, self._longest = compute, device, longest
        self._record = record or cuda_recorder(device)
        self._buckets: dict[tuple[int, int, bool], _Bucket] = {}
        self._lock = threading.Lock()  # held from filling a bucket until its result is copied
        self._uses_graphs = True

    def __call__(self, ids: Ids, types: Ids | None = None) -> Tensor:
        """Return the model's output for token ids and types, float (batch, width)."""
        texts = _power_of_two(len(ids))
        length = min(_power_of_two(max(map(len, ids)), _MIN_LENGTH), self._longest)
        if self._uses_graphs and texts * length <= MAX_TOKENS:
            with self._lock:
                bucket = self._bucket(texts, length, types is not None)
                bucket.fill(ids, types)
                try:
                    return bucket.work()[: len(ids)].clone()
                except RuntimeError as error:  # includes torch's out-of-memory error
                    self._uses_graphs = False
                    self._buckets.clear()
                    warn(f"CUDA graphs are turned off on {self._device}: {error}")
        return self._compute(PackedTokens.from_lists(ids, types, device=self._device))

    def _bucket(self, texts: int, length: int, has_types: bool) -> _Bucket:
        key = (texts, length, has_types)
        if key not in self._buckets:
            self._buckets[key] = _Bucket(*key, self._compute, self._record, self._device)
        return self._buckets[key]


class _Bucket:
    """Tensors with fixed addresses for up to ``texts`` texts of up to ``length`` tokens each.

    Tokens after the last text are padding. If a batch has fewer than ``texts`` texts, empty texts
    are added, which start and end at the first padding token.
    """

    def __init__(
        self,
        texts: int,
        length: int,
        has_types: bool,
        compute: Compute,
        record: Record,
        device: torch.device,
    ) -> None:
        self._compute, self._record, self._device = compute, record, device
        shape = 2 + has_types, texts * length  # token ids, positions and, if any, token types
        self._rows = torch.zeros(shape, dtype=torch.int64, device=device)
        self._starts = torch.zeros(texts + 1, dtype=torch.int32, device=device)
        segments = self._rows[2] if has_types else None
        batch = PackedTokens(self._rows[0], (length,) * texts, segments)
        self._batch = batch.with_buffers(self._starts, self._rows[1])

    def fill(self, ids: Ids, types: Ids | None) -> None:
        """Write token ids, positions, token types and starts of texts into the tensors."""
        starts = np.zeros(len(self._starts), dtype=np.int32)
        starts[1 : len(ids) + 1] = list(map(len, ids))
        starts = starts.cumsum(dtype=np.int32)
        rows = np.zeros(self._rows.shape, dtype=np.int64)
        total = int(starts[-1])
        rows[0, :total] = list(chain.from_iterable(ids))
        rows[1, :total] = np.arange(total) - np.repeat(starts[:-1], np.diff(starts))
        if types is not None:
            rows[2, :total] = list(chain.from_iterable(types))
        self._rows.copy_(send(rows, self._device))
        self._starts.copy_(send(starts, self._device))

    @cached_property
    def work(self) -> Work:
        """Returns the model's output, float (texts, width); recorded on first use."""
        return self._record(lambda: self._compute(self._batch))


def cuda_recorder(device: torch.device) -> Record:
    """Return a function that records CUDA graphs, which all share one memory pool."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(work: Work) -> Work:
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            work()  # loads kernels and allocates workspaces, which is forbidden while recording
            graph = torch.cuda.CUDAGraph()
            # thread_local: other threads may copy and launch kernels during the recording.
            with torch.cuda.graph(
                graph, pool=pool, stream=stream, capture_error_mode="thread_local"
            ):
                out = work()
        current.wait_stream(stream)

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    return record


def _power_of_two(number: int, minimum: int = 1) -> int:
    return max(minimum, 1 << (number - 1).bit_length())


# Largest size of a batch's states between the two linear layers of the feed-forward network, on
# devices other than CUDA. Larger states leave the CPU's cache; smaller batches have more overhead.
# A width below `_LEAST_WIDTH` counts as that width: a token's other states take memory as well.
_WIDEST_BYTES, _LEAST_WIDTH = 12 << 20, 2048
_FULL_ROWS, _MOST_FILLING = 32, 1 / 32  # see `_filled`
# A warning is printed if more than this share of the inputs of int8 layers is beyond the calibrated
# range. For all-MiniLM-L6-v2 and texts of other kinds than those of its calibration, the share is
# about 0.000004.
_MOST_BEYOND = 1e-4
_CALIBRATION_TOKENS = 2048  # number of tokens at which a batch of a calibration is full


class PackedEngine:
    """Runs a model on packed batches: the tokens of all texts concatenated without padding.

    The model is put into evaluation mode; `move` and `quantize` change it. ``compute`` maps a
    packed batch to float (batch, width).
    """

    name: EngineName = "native"
    _replayer: GraphReplayer | None  # None: no CUDA graphs

    def __init__(
        self, model: BiEncoder | SequenceClassifier | PerTokenModel, compute: Compute
    ) -> None:
        self._module, self._compute, self.tokenizer = model.eval(), compute, model.tokenizer
        self.counter: RangeCounter | None = None  # None: the model is not in int8
        self._warned = False
        self._use_device(next(model.parameters()).device)

    def fastest_precision(self) -> Verdict | None:
        """Measure whether this CPU computes the encoder faster in fp32 or in bf16."""
        return inference_precision(self._module.encoder)

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the model and convert its encoder to a precision, for inference only.

        Modules after the encoder stay in fp32. The model can then be neither trained nor saved.
        """
        freeze(self._module.to(device).encoder.to(dtype))
        self._use_device(device)
        if self._module.needs_only_starts:
            self._replayer = GraphReplayer(self._compute, device, self.tokenizer.max_len)

    @property
    def encoder(self) -> Encoder:
        """The encoder of the model."""
        return self._module.encoder

    def batches(self, texts: Sequence[str]) -> Iterator[PackedTokens]:
        """Pack texts into batches for a calibration."""
        raise NotImplementedError

    def quantize(self, calibration: Calibration, exact: torch.dtype) -> None:
        """Convert the encoder, on the CPU in fp32, to int8 as `freeze_int8` does."""
        self.counter = freeze_int8(self.encoder, calibration, exact)

    @property
    def beyond_calibration(self) -> float:
        """Share of the input values of int8 layers so far that exceeded the calibrated range."""
        return 0.0 if self.counter is None else self.counter.share

    @torch.inference_mode()
    def launch(self, ids: Ids, types: Ids | None = None) -> Callable[[], Vectors]:
        """Launch a batch of token ids and types; return a function that waits for its output."""
        with plain_memory_errors():
            if self._replayer is not None:
                output = self._replayer(ids, types)
            else:
                filled = None if types is None else _filled(types)
                packed = PackedTokens.from_lists(_filled(ids), filled, device=self._device)
                output = self._compute(packed)
            launched = fetch(output[: len(ids)])
        if self.counter is not None and not self._warned and self.counter.share > _MOST_BEYOND:
            self._warned = True
            warn(
                f"{self.counter.share:.2%} of the inputs of int8 layers are beyond the "
                "range of the calibration, so vectors are inexact; calibrate with texts like "
                "these: --calibrate FILE."
            )
        return launched

    def _use_device(self, device: torch.device) -> None:
        """Choose the batch size for a device, and compute batches on it without CUDA graphs."""
        self._device, self._replayer = device, None
        encoder = self._module.encoder
        width = max(encoder.config.up_size, _LEAST_WIDTH)
        cpu_tokens = _WIDEST_BYTES // (width * encoder.embeddings.word.weight.itemsize)
        self.batch_tokens = 65_536 if device.type == "cuda" else cpu_tokens


class NativeEngine(PackedEngine):
    """This package's own encoder; it computes packed batches, which have no padding."""

    def __init__(self, model: BiEncoder) -> None:
        super().__init__(model, model)
        self.model, self.dim = model, model.dim

    def start(self, tokens: TokenizedTexts) -> Callable[[], Vectors]:
        """Launch a packed batch; return a function that waits for its vectors."""
        return self.launch(tokens.ids)

    def batches(self, texts: Sequence[str]) -> Iterator[PackedTokens]:
        """Pack texts for a calibration, in turn with no prompt and with each of the prompts."""
        prompts = ["", *filter(None, self.model.prompts.values())]
        joined = [prompt + text for prompt, text in zip(cycle(prompts), texts, strict=False)]
        return packed_batches(self.tokenizer.encode(joined)[0])


def _filled(rows: Ids) -> Ids:
    """Append parts of the first text, so that a batch has a multiple of `_FULL_ROWS` tokens.

    A batch that would grow by more than the share `_MOST_FILLING` stays as it is. On a CPU, batches
    of many sizes take more memory: oneDNN keeps code for each size, and a block of memory that is a
    little larger than an earlier one does not fit into its place.
    """
    total = sum(map(len, rows))
    if not (filling := -total % _FULL_ROWS) or filling > _MOST_FILLING * total:
        return rows
    # Parts of a real text: the model reads texts so long, and int8 counts unusual inputs.
    first = rows[0]
    added = list(islice(cycle(first), filling))
    return [*rows, *(added[at : at + len(first)] for at in range(0, filling, len(first)))]


def packed_batches(
    ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
) -> Iterator[PackedTokens]:
    """Pack token ids and types, sorted by length, into batches of about 2,048 tokens."""
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    batch: list[int] = []
    for number, row in enumerate(order):
        batch.append(row)
        if sum(len(ids[r]) for r in batch) >= _CALIBRATION_TOKENS or number + 1 == len(order):
            some_types = None if types is None else [types[r] for r in batch]
            yield PackedTokens.from_lists([ids[r] for r in batch], some_types)
            batch = []
