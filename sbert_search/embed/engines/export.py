"""Export a bi-encoder as an ONNX graph. Its weights are in a separate file that can be mapped.

It shares the embeddings, blocks and head of a `BiEncoder`, which computes packed batches without
padding. Only attention and pooling combine the tokens of a text. So this module has its own code
for both, in which a mask excludes the padding.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.base import files
from sbert_search.base.out_of_memory import ran_out_of_memory
from sbert_search.errors import ConfigError, ModelError, install
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.encoder import Block
from sbert_search.models.encoder.self_attention import Attention, Rotation, bucket_biases

if TYPE_CHECKING:
    from onnx import ModelProto


class PaddedTokens(NamedTuple):
    """A padded batch, with the attributes that `Embeddings` reads."""

    input_ids: Tensor  # int64 (batch, seq_len)
    positions: Tensor  # of each token in its text, int64 (seq_len,)
    token_type_ids: None = None  # every text is one segment


class PaddedBiEncoder(nn.Module):
    """Computes embeddings from right-padded token ids, with the modules of a `BiEncoder`."""

    def __init__(self, model: BiEncoder) -> None:
        super().__init__()
        config = model.encoder.config
        if config.attention_terms != ("c2c",) or config.causal:
            raise ModelError(
                f"The engine onnx supports no attention of type {config.layout!r}; use --engine "
                "native."
            )
        if unknown := set(model.pooling) - set(_POOLINGS):
            raise ModelError(
                f"The engine onnx supports no pooling {', '.join(unknown)}; use --engine native."
            )
        self.encoder, self.head, self.pooling = model.encoder, model.head, model.pooling

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute embeddings, float32 (batch, dim), not truncated.

        Both inputs are int64 (batch, seq_len). Padding has any id, and 0 in the mask.
        """
        weights = attention_mask.unsqueeze(-1).float()
        # Added to attention scores, float (batch, 1, 1, seq_len): 0 for a token, the lowest finite
        # value for padding, halved, so that it stays finite when biases of positions are added.
        # With -inf instead, the bias of a token would be 0 * -inf, which is NaN.
        bias = (1.0 - weights).mT.unsqueeze(1) * (torch.finfo(torch.float32).min / 2)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        states = self.encoder.embeddings(PaddedTokens(input_ids, positions))
        if self.encoder.config.position_buckets:
            bias = bias + bucket_biases(self.encoder.position_biases.weight, positions)
        rotations = self.encoder.rotations(positions)
        for index in self.encoder.config.block_order:
            block = cast(Block, self.encoder.blocks[index])
            inputs = block.attention_input(states)
            context = _attend(block.attention, inputs, bias, positions, rotations)
            states = block.feed_forward(block.add_attention(context, states))
        states = self.encoder.final_norm(states)
        parts = [_POOLINGS[mode](states, weights) for mode in self.pooling]
        embeddings: Tensor = self.head(torch.cat(parts, dim=-1))
        return embeddings


def _attend(
    attention: Attention,
    states: Tensor,
    bias: Tensor,
    positions: Tensor,
    rotations: Mapping[float, Rotation],
) -> Tensor:
    """Compute attention within each text, without its padding; float (batch, seq_len, hidden)."""
    config = attention.config
    shape = (*states.shape[:2], config.heads, config.head_dim)
    query, key, value = (part.view(shape) for part in attention.project(states))
    if attention.rotary_base is not None:
        rotate = rotations[attention.rotary_base].apply
        query, key = rotate(query), rotate(key)
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    if attention.reach is not None:
        far = (positions - positions[:, None]).abs() > attention.reach
        bias = bias + far * (torch.finfo(torch.float32).min / 2)
    scale = config.head_dim**-0.5
    if bias.shape[2] == 1:
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
    else:  # torch cannot export its fused kernel, which would take a bias of this shape
        context = ((query * scale) @ key.mT + bias).softmax(dim=-1) @ value
    out: Tensor = attention.output(context.transpose(1, 2).flatten(2))
    return out


def _mean(states: Tensor, weights: Tensor) -> Tensor:
    return (states * weights).sum(dim=1) / weights.sum(dim=1)


def _max(states: Tensor, weights: Tensor) -> Tensor:
    return states.masked_fill(weights == 0, float("-inf")).amax(dim=1)


# The pooling modes of `heads.POOLINGS` except "sum", for padded states (batch, seq_len, hidden).
# The second argument of each function, (batch, seq_len, 1), is 1 for a token and 0 for padding.
_POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda states, weights: states[:, 0],
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": lambda states, weights: (
        (states * weights).sum(dim=1) / weights.sum(dim=1).sqrt()
    ),
    "weightedmean": lambda states, weights: _mean(states, weights * weights.cumsum(dim=1)),
    "lasttoken": lambda states, weights: (
        states * (weights.cumsum(dim=1) == weights.sum(dim=1, keepdim=True)) * weights
    ).sum(dim=1),
}


_ALIGNMENT = 4096  # bytes of a memory page; each tensor starts a page, so that it can be mapped
_IN_GRAPH = 1024  # tensors of up to this number of bytes, such as shapes, stay in the graph's file


def export_graph(model: BiEncoder, graph: Path, weights: Path) -> None:
    """Write a model as an ONNX graph that maps input_ids and attention_mask to embeddings.

    The model is in float32 on the CPU. The two new files are in one folder. An OSError or an
    out-of-memory error that the exporter wraps in an error of its own is raised as it was.
    """
    padded = PaddedBiEncoder(model).eval()
    ids = torch.ones(2, 3, dtype=torch.int64)
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with _silence():
        try:
            program = torch.onnx.export(
                padded,
                (ids, torch.ones_like(ids)),
                input_names=["input_ids", "attention_mask"],
                output_names=["embeddings"],
                dynamic_shapes=(dynamic, dynamic),
                dynamo=True,
                verbose=False,
            )
        except ImportError as error:
            raise ConfigError(f"Exporting a graph needs {error.name}: {install('cpu')}.") from error
        except Exception as error:  # the exporter's errors share no other base class
            _let_through_failures_of_the_machine(error)
            raise ModelError(
                f"PyTorch cannot export the model as a graph; use --engine native. {error}"
            ) from error
    assert program is not None  # None is returned only with dynamo=False
    proto = program.model_proto
    _move_weights(proto, weights)
    files.write_new(graph, proto.SerializeToString())


def _let_through_failures_of_the_machine(error: BaseException) -> None:
    """Raise the cause of an export's error if memory ran out or a system call failed."""
    cause: BaseException | None = error
    while cause is not None:
        # PyTorch also raises an OSError if it finds no source code; this error has no errno.
        if ran_out_of_memory(cause) or (isinstance(cause, OSError) and cause.errno):
            raise cause
        cause = cause.__cause__


def _move_weights(proto: ModelProto, path: Path) -> None:
    from onnx.external_data_helper import set_external_data

    with files.NewFile(path) as file:
        for tensor in proto.graph.initializer:
            if len(tensor.raw_data) <= _IN_GRAPH:
                continue
            file.write(bytes(-file.n_bytes % _ALIGNMENT))
            size = len(tensor.raw_data)
            set_external_data(tensor, path.name, offset=file.n_bytes, length=size)
            file.write(tensor.raw_data)
            tensor.ClearField("raw_data")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silence the exporter, which warns about its own code and about a missing torchvision."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
