"""The interface of the engines of an `Embedder`, and a check of their output; without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from sbert_search.base.options import EngineName as EngineName
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import ModelError
from sbert_search.models.loading.folder import ModelDescription, ModelFolder
from sbert_search.models.loading.resolve import ResolvedModel

if TYPE_CHECKING:
    import torch

    from sbert_search.base.verdicts import Verdict
    from sbert_search.text.tokens.tokenizer import TextTokenizer


class Engine(Protocol):
    """The software that runs a model."""

    dim: int  # of a vector before truncation
    tokenizer: TextTokenizer  # truncates texts to the model's limit
    batch_tokens: int  # number of tokens in a batch at which the engine is fast

    @property
    def name(self) -> str:
        """An `EngineName`, or static."""

    def start(self, tokens: TokenizedTexts) -> Callable[[], Vectors]:
        """Begin to compute one batch; return a function that waits for vectors, float32 (n, dim).

        Both may raise MemoryError.
        """


class MovableEngine(Protocol):
    """An engine of torch, which can move its model to another device and precision."""

    name: EngineName
    tokenizer: TextTokenizer

    def fastest_precision(self) -> Verdict | None:
        """Measure whether the CPU is faster in fp32 or in bf16; None: fp32, unmeasured.

        It must be called before `move`, while the model is on the CPU in fp32.
        """

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the model to a device and convert it to a precision."""


E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


class OpenedModel(NamedTuple, Generic[E_co]):
    """A model ready to compute vectors or scores, and the values that `ModelIdentity` needs."""

    name: str  # path or name that the caller gave
    origin: str  # where the model was found, for messages
    description: ModelDescription
    weights_sha256: Callable[[], str]  # hashes the weights
    tokenizer_sha256: Callable[[], str]
    engine: E_co
    precision: str  # fp32, bf16, fp16 or int8
    device: str
    folder: ModelFolder | None = None  # None: a model in memory
    verdict: Verdict | None = None  # that chose the precision; None: nothing was measured
    calibration: str = ""  # in int8, the hash of its texts

    @classmethod
    def from_folder(
        cls,
        resolved: ResolvedModel,
        folder: ModelFolder,
        engine: E,
        precision: str,
        device: str,
        *,
        verdict: Verdict | None = None,
        calibration: str = "",
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
            calibration,
        )


# Lowest accepted cosine of a vector in int8 with the vector of the same text in another precision.
# For 5,700 sentences and one model, the mean cosine was 0.996 and the lowest 0.981. With other
# weights, another pooling or a wrong calibration, the cosine is far below 0.98.
INT8_COSINE = 0.98

SELF_CHECK_TEXTS = (
    "a",
    "What is the capital of France?",
    "Paris is the capital and largest city of France.",
    "The quick brown fox jumps over the lazy dog.",
    "Ein Zug fährt um 7:45 Uhr nach Zürich; 東京 is further away.",
    "def add(x, y):\n    return x + y  # no overflow: ints are unbounded",
    "Vaccines train the immune system to recognise a pathogen before an infection. " * 4,
    "In 1998, 3.5% of the 12,000 samples were lost (see table 2), and nobody knew why. " * 16,
)


def self_check_texts(tokenizer: TextTokenizer) -> TokenizedTexts:
    """Tokenise the texts of the self-check."""
    ids, lost = tokenizer.encode(SELF_CHECK_TEXTS)
    return TokenizedTexts(SELF_CHECK_TEXTS, "", ids, lost)


def check_vectors(reference: Vectors, vectors: Vectors, *, min_cosine: float, where: str) -> None:
    """Compare vectors of the self-check texts, (8, dim), with the reference of the CPU in fp32."""
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise ModelError(
            f"{where} gives a vector that is not finite for {SELF_CHECK_TEXTS[row][:40]!r}; use "
            "--device cpu or --precision fp32."
        )
    worst, text = _least_cosine(reference, vectors)
    if not worst >= min_cosine:  # this form also refuses NaN
        raise ModelError(
            f"{where} gives wrong vectors: the cosine similarity to the CPU in fp32 is {worst:.6f} "
            f"for {text[:40]!r}, and at least {min_cosine} is needed; use --device cpu or "
            "--precision fp32."
        )


def check_alone(together: Vectors, alone: Vectors, *, min_cosine: float, remedy: str) -> None:
    """Refuse a model whose vector of a text depends on the other texts of the batch."""
    worst, text = _least_cosine(together, alone)
    if worst < min_cosine:
        raise ModelError(
            f"The vectors of this model depend on the batch: for {text[:40]!r}, the cosine "
            f"similarity of the vectors alone and beside other texts is {worst:.6f}, and at least "
            f"{min_cosine} is needed. {remedy}"
        )


def _least_cosine(first: Vectors, second: Vectors) -> tuple[float, str]:
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / np.maximum(norms, np.finfo(np.float32).tiny)
    return float(cosines.min()), SELF_CHECK_TEXTS[int(cosines.argmin())]


def check_scores(reference: Vectors, scores: Vectors, *, tolerance: float, where: str) -> None:
    """Compare scores of the self-check texts, (n, labels), with the reference of the CPU in fp32.

    ``tolerance`` is relative to the largest absolute value of the reference, or to 1 if that is
    larger.
    """
    if not np.isfinite(scores).all():
        raise ModelError(f"{where} gives scores that are not finite; use --device cpu.")
    difference = float(np.abs(scores - reference).max() / max(1.0, np.abs(reference).max()))
    if not difference <= tolerance:  # this form also refuses NaN
        raise ModelError(
            f"{where} gives wrong scores: they differ by {difference:.3g} from those of the CPU in "
            f"fp32, and {tolerance:g} is allowed; use --device cpu or --precision fp32."
        )
