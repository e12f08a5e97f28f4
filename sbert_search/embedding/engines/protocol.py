"""The interface of the engines of an `Embedder`; this module does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from sbert_search.embedding.protocol import TokenizedTexts, Vectors
from sbert_search.models.loading.folder import ModelDescription, ModelFolder
from sbert_search.models.loading.resolve import ResolvedModel

if TYPE_CHECKING:
    from sbert_search.base.verdicts import Verdict
    from sbert_search.text.tokens.tokenizer import TextTokenizer

EngineName = Literal["native", "onnx", "sentence-transformers"]


def pair_engine(engine: EngineName) -> EngineName:
    """Return the engine of a reranker that is used with an embedder of the given engine.

    It is the same engine, except that native takes the place of onnx, which cannot run rerankers.
    """
    return "native" if engine == "onnx" else engine


class Engine(Protocol):
    """The software that runs a model; a call computes the vectors of one batch.

    Attributes:
        name: Name of the engine.
        dim: Number of dimensions of a vector before truncation.
        tokenizer: Tokenizer that truncates texts to the model's limit.
        batch_tokens: Number of tokens in a batch at which the engine is fast.
    """

    name: EngineName
    dim: int
    tokenizer: TextTokenizer
    batch_tokens: int

    def __call__(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors in one batch, float32 (n, dim).

        Raises:
            MemoryError: The device has too little memory for a batch of this size.
        """

    def start(self, tokens: TokenizedTexts) -> Callable[[], Vectors]:
        """Begin to compute; return a function that waits for the vectors.

        This method and the returned function raise the errors of `__call__`.
        """


E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


@dataclass(frozen=True, slots=True)
class OpenedModel(Generic[E_co]):
    """A model ready to compute vectors or scores, and the values that `ModelIdentity` needs.

    Attributes:
        name: Path or name that the caller gave.
        origin: Where the model was found, as text for messages.
        description: Settings that change the output of the model.
        weights_sha256: Function that hashes the weights.
        tokenizer_sha256: Function that hashes the tokenizer.
        engine: Computes vectors or scores.
        precision: fp32, bf16, fp16 or int8.
        device: Name of the device.
        folder: Folder of the model; None if the caller gave a model in memory.
        verdict: The measurement that chose the precision; None: nothing was measured.
        calibration: In int8, the hash of the texts of the calibration.
    """

    name: str
    origin: str
    description: ModelDescription
    weights_sha256: Callable[[], str]
    tokenizer_sha256: Callable[[], str]
    engine: E_co
    precision: str
    device: str
    folder: ModelFolder | None = None
    verdict: Verdict | None = None
    calibration: str = ""

    @classmethod
    def from_folder(
        cls,
        resolved: ResolvedModel,
        folder: ModelFolder,
        engine: E,
        precision: str,
        device: str,
        verdict: Verdict | None = None,
    ) -> OpenedModel[E]:
        """Describe an engine whose model was read from a folder."""
        return OpenedModel(
            resolved.name,
            resolved.origin,
            folder.description,
            folder.weights_sha256,
            folder.tokenizer_sha256,
            engine,
            precision,
            device,
            folder,
            verdict,
        )
