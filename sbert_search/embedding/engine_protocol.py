"""What every engine of an `Embedder` gives it; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from sbert_search.embedding.protocol import TokenizedTexts, Vectors
from sbert_search.models.loading.folder import ModelDescription, ModelFolder
from sbert_search.models.loading.resolve import ResolvedModel

if TYPE_CHECKING:
    from sbert_search.tokens.tokenizer import TextTokenizer

EngineName = Literal["native", "onnx", "sentence-transformers"]


class Engine(Protocol):
    """Computes vectors of one batch at a time.

    Attributes:
        name: Which engine it is.
        dim: Length of a vector before truncation.
        tokenizer: Cuts to what the model reads.
        batch_tokens: Tokens of a batch at which it is fastest.
    """

    name: EngineName
    dim: int
    tokenizer: TextTokenizer
    batch_tokens: int

    def __call__(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors in one step, float32 (n, dim).

        Raises:
            MemoryError: The device has too little memory for a batch of this size.
        """

    def start(self, tokens: TokenizedTexts) -> Callable[[], Vectors]:
        """Begin to compute and return what waits for the vectors; errors are those of a call."""


E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class OpenedModel(Generic[E]):
    """A model ready to compute vectors or scores, with what its identity is made of.

    Attributes:
        name: Path or name it was opened by.
        origin: Where it was found, for people.
        description: Settings that decide its numbers.
        weights_sha256: Hashes its weights when called.
        tokenizer_sha256: Hashes its tokenizer when called.
        engine: Computes.
        precision: fp32, bf16 or fp16.
        device: Where it computes.
        folder: Where it was read from; None: it came as an object.
    """

    name: str
    origin: str
    description: ModelDescription
    weights_sha256: Callable[[], str]
    tokenizer_sha256: Callable[[], str]
    engine: E
    precision: str
    device: str
    folder: ModelFolder | None = None

    @classmethod
    def from_folder(
        cls, found: ResolvedModel, folder: ModelFolder, engine: E, precision: str, device: str
    ) -> OpenedModel[E]:
        """Describe an engine by the folder of its model."""
        return cls(
            found.name,
            found.origin,
            folder.description,
            folder.weights_sha256,
            folder.tokenizer_sha256,
            engine,
            precision,
            device,
            folder,
        )
