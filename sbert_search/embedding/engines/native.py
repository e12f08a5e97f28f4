"""Base class of the engines that run this package's own bi-encoders and task heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from sbert_search.base.device import fetch, plain_memory_errors
from sbert_search.base.memory import let_freed_memory_stay
from sbert_search.base.progress import warn
from sbert_search.base.verdicts import Verdict
from sbert_search.embedding.engines.cuda_graphs import Compute, Ids, Replayed
from sbert_search.embedding.engines.protocol import EngineName
from sbert_search.embedding.protocol import Vectors
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

# Largest size of a batch's states between the two linear layers of the feed-forward network, on
# devices other than CUDA.
# Decision: docs/decisions.md, "A step on the CPU keeps its widest states within 12 MiB".
_WIDEST_BYTES = 12 << 20
# A warning is printed if more than this share of the inputs of int8 layers is beyond the calibrated
# range. For all-MiniLM-L6-v2 and texts of other kinds than those of its calibration, the share is
# about 0.000004.
_MOST_BEYOND = 1e-4


class PackedEngine:
    """Runs a model on packed batches: the tokens of all texts concatenated without padding.

    Args:
        model: Model in memory, which is put into evaluation mode; `move` and `quantize` change it.
        compute: Maps a packed batch to float (batch, width).

    Attributes:
        counter: Counts the inputs of int8 layers; None: the model is not in int8.
    """

    name: EngineName = "native"
    _run: Callable[[Ids, Ids | None], torch.Tensor]

    def __init__(
        self, model: BiEncoder | SequenceClassifier | PerTokenModel, compute: Compute
    ) -> None:
        self._module, self._compute, self.tokenizer = model.eval(), compute, model.tokenizer
        self.counter: RangeCounter | None = None
        self._warned = False
        self._use_device(next(model.parameters()).device)

    def fastest_precision(self) -> Verdict | None:
        """Measure whether this CPU computes the encoder faster in fp32 or in bf16."""
        return inference_precision(self._module.encoder)

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the model and convert its encoder to a precision, for inference only.

        Modules after the encoder stay in fp32. If the device has faster linear layers, `freeze`
        puts them into the encoder. The model can then be neither trained nor saved.
        """
        freeze(self._module.to(device).encoder.to(dtype))
        self._use_device(device)
        if self._module.needs_only_starts:
            self._run = Replayed(self._compute, device, self.tokenizer.max_len)

    @property
    def encoder(self) -> Encoder:
        """The encoder of the model."""
        return self._module.encoder

    def batches(self, texts: Sequence[str]) -> Iterator[PackedTokens]:
        """Pack texts into batches for a calibration.

        An engine for pairs of texts makes a pair of each text and the text after it.
        """
        raise NotImplementedError

    def quantize(self, calibration: Calibration, exact: torch.dtype) -> None:
        """Convert the encoder, which must be on the CPU in fp32, to int8 for inference only.

        Args:
            calibration: Ranges of the inputs of the encoder's linear layers.
            exact: float32 or bfloat16: the type of attention without relative positions, and of the
                layers that are not computed in int8.

        Raises:
            ConfigError: As for `freeze_int8`.
        """
        self.counter = freeze_int8(self.encoder, calibration, exact)

    @property
    def beyond_calibration(self) -> float:
        """Share of the input values of int8 layers so far that exceeded the calibrated range."""
        return 0.0 if self.counter is None else self.counter.share

    @torch.inference_mode()
    def launch(self, ids: Ids, types: Ids | None = None) -> Callable[[], Vectors]:
        """Launch a batch of token ids and types; return a function that waits for its output."""
        with plain_memory_errors():
            launched = fetch(self._run(ids, types))
        if not self._warned and self.beyond_calibration > _MOST_BEYOND:
            self._warned = True
            warn(
                f"{self.beyond_calibration:.2%} of the inputs of int8 layers are beyond the "
                "range of the calibration, so vectors are inexact; calibrate with texts like "
                "these: --calibrate FILE."
            )
        return launched

    def _use_device(self, device: torch.device) -> None:
        """Choose the batch size for a device, and the function that computes a batch on it."""
        if device.type == "cpu":
            let_freed_memory_stay()
        encoder = self._module.encoder
        widest = encoder.config.intermediate_size * encoder.embeddings.word.weight.itemsize
        cpu_tokens = min(4_096, _WIDEST_BYTES // widest)
        self.batch_tokens = 65_536 if device.type == "cuda" else cpu_tokens
        self._run = lambda ids, types: self._compute(
            PackedTokens.from_lists(ids, types, device=device)
        )
