"""Export a bi-encoder as an ONNX graph. Its weights are in a separate file that can be mapped."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sbert_search.base import files
from sbert_search.base.out_of_memory import ran_out_of_memory
from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.padded_bi_encoder import PaddedBiEncoder

if TYPE_CHECKING:
    from onnx import ModelProto

_ALIGNMENT = 4096  # bytes of a memory page; each tensor starts a page, so that it can be mapped
_IN_GRAPH = 1024  # tensors of up to this number of bytes, such as shapes, stay in the graph's file


def export_graph(model: BiEncoder, graph: Path, weights: Path) -> None:
    """Write a model as an ONNX graph that maps input_ids and attention_mask to embeddings.

    Args:
        model: Model in float32 on the CPU.
        graph: New file for the graph.
        weights: New file for the weights, in the same folder.

    Raises:
        ConfigError: The packages that the export needs are not installed.
        ModelError: `PaddedBiEncoder` does not support the model, or PyTorch cannot export it.
        OSError: A file cannot be read or written. If the exporter wraps an OSError or an
            out-of-memory error in an error of its own, the original error is raised.
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
            raise ConfigError(
                f"Exporting a graph needs {error.name}: pip install -U 'sbert-search[cpu]'."
            ) from error
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
    """Move large tensors from a graph into a separate file."""
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
