"""Models that score pairs of query and text, to rerank the hits of a search.

Source: Dai & Callan 2019, Deeper Text Understanding for IR with Contextual Neural Language
Modeling, section 3, MaxP (arXiv:1905.09217).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NotRequired, Protocol, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.arguments import CalibrationTexts, check_batch_tokens, check_calibrate
from sbert_search.embed.protocol import Vectors
from sbert_search.embed.token_budget import BatchLauncher, Finish, Rows
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.models.loading.identity import ModelIdentity

if TYPE_CHECKING:
    import sentence_transformers

    from sbert_search.base.device import Precision
    from sbert_search.embed.engines.protocol import EngineName
    from sbert_search.models.loading.publish import PushOptions
    from sbert_search.models.sequence_classifier import CrossEncoder
    from sbert_search.text.tokens.tokenizer import EncodedPairs, TextTokenizer


Pair = tuple[str, str]


def _require_pairs(pairs: Sequence[object]) -> None:
    """Refuse pairs that do not consist of two strings; one string, such as "ab", is no pair."""
    for number, pair in enumerate(pairs, 1):
        texts = list(pair) if isinstance(pair, Iterable) else []
        if isinstance(pair, str) or [isinstance(text, str) for text in texts] != [True, True]:
            raise CorpusError(
                f"Pair {number:,} of {len(pairs):,} is {pair!r}; a pair is two strings."
            )


class RankedText(TypedDict):
    """A text and its score for a query, as ``CrossEncoder.rank`` returns it."""

    corpus_id: int  # index of the text in the list of documents
    score: float  # higher is better
    text: NotRequired[str]  # with ``return_documents``


class Reranker:
    """Scores pairs of texts.

    Args:
        model: A folder, a name on the Hugging Face hub, or a `CrossEncoder` of this package or of
            sentence-transformers. An object in memory keeps its device, precision and engine; other
            values of these arguments are refused.
        device: auto, cpu, cuda, cuda:N or mps.
        engine: native or sentence-transformers. native is this package's encoder; a model of an
            architecture that this encoder does not support is computed by sentence-transformers.
        precision: auto, fp32, bf16, fp16, int8 or fastest, as for `Embedder`. On a CPU, auto is the
            faster of fp32 and bf16, which is measured once. On CUDA, auto is bf16 if the device
            supports it. If the scores in bf16 are not close enough to those in fp32, auto is fp32.
            int8 is only for CPUs.
        calibrate: For int8: texts like those that will be scored, as for `Embedder`. Each text is
            paired with the next text.
        batch_tokens: Maximum tokens of one forward pass; None: the engine's default.

    Raises:
        ConfigError: A setting is invalid.
        ModelError: The model cannot be found or loaded, is not a cross-encoder, or its scores on
            this device differ too much from those on the CPU in fp32.

    Example:
        >>> reranker = Reranker("my-reranker", device="cpu")
        >>> reranker.predict([("cat", "the cat sat"), ("cat", "a dog ran")]).shape
        (2,)
    """

    def __init__(
        self,
        model: str | Path | CrossEncoder | sentence_transformers.CrossEncoder,
        *,
        device: str = "auto",
        engine: EngineName = "native",
        precision: Precision = "auto",
        calibrate: CalibrationTexts = None,
        batch_tokens: int | None = None,
    ) -> None:
        from sbert_search.search.pair_engines import open_pair_model

        check_batch_tokens(batch_tokens)
        check_calibrate(precision, calibrate)
        self._again = partial(
            type(self),
            model,
            device=device,
            engine=engine,
            precision=precision,
            calibrate=calibrate,
            batch_tokens=batch_tokens,
        )
        self.opened = open_pair_model(
            model, device=device, engine=engine, precision=precision, calibrate=calibrate
        )
        self._engine = self.opened.engine
        self.num_labels, self.labels = self._engine.num_labels, self._engine.labels
        self.tokenizer = self._engine.tokenizer
        self.max_len = self.tokenizer.max_len
        self._launcher = BatchLauncher(
            batch_tokens or self._engine.batch_tokens, self.opened.device
        )

    def __reduce__(self) -> tuple[Callable[[], Reranker], tuple[()]]:
        """Pickle the arguments; the process that unpickles them opens the model itself."""
        return self._again, ()

    @property
    def batch_tokens(self) -> int:
        """Maximum tokens of one forward pass."""
        return self._launcher.budget

    @cached_property
    def identity(self) -> ModelIdentity:
        """Hashes and settings that identify this model; its weights are hashed on first use."""
        return ModelIdentity(
            name=self.opened.name,
            weights_sha256=self.opened.weights_sha256(),
            tokenizer_sha256=self.opened.tokenizer_sha256(),
            architecture=self.opened.description.architecture,
            pooling="pair",
            max_len=self.max_len,
            dim=self.num_labels,
            similarity="score",
            engine=self._engine.name,
            precision=self.opened.precision,
            calibration=self.opened.calibration,
        )

    def push_to_hub(self, name: str, **options: Unpack[PushOptions]) -> str:
        """Publish the folder of the model on the Hugging Face hub; see `Embedder.push_to_hub`."""
        from sbert_search.models.loading.publish import push_folder

        return push_folder(self.opened.folder, name, "cross-encoder", **options)

    def predict(
        self,
        pairs: Pair | Sequence[Pair],
        *,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        apply_softmax: bool = False,
    ) -> Vectors:
        """Score pairs; the arguments are also those of ``CrossEncoder.predict``.

        Args:
            pairs: One pair of texts, or several. A pair longer than ``max_len`` tokens is
                truncated; the longer text loses tokens first.
            batch_size: Maximum pairs of a forward pass; None: no limit besides ``batch_tokens``.
            show_progress_bar: Whether to show progress on stderr.
            apply_softmax: Whether to turn the logits of several labels into probabilities.

        Returns:
            Float32 (n,), or (n, labels) for a model with several labels. The first axis is left
            out if ``pairs`` is one pair.

        Raises:
            CorpusError: ``pairs`` is neither a pair nor a list of pairs; a pair does not consist of
                two strings; or a text contains a lone surrogate, which UTF-8 cannot encode.
        """
        if isinstance(pairs, str) or not isinstance(pairs, Iterable):
            raise CorpusError(f"The pairs are {pairs!r}; pass a pair or a list of pairs.")
        given = list(pairs)
        single = len(given) == 2 and isinstance(given[0], str)
        several = cast("list[Pair]", [pairs] if single else given)
        _require_pairs(several)

        def tokenize(rows: Rows) -> _Window:
            some = [several[row] for row in rows]
            return _Window(some, self.tokenizer.encode_pairs(some))

        scores = self._launcher.compute(
            [len(first) + len(second) for first, second in several],
            tokenize,
            self._start,
            np.empty((len(several), self.num_labels), dtype=np.float32),
            shown=("Scoring", "pairs") if show_progress_bar else None,
            most=batch_size,
        )
        if apply_softmax and self.num_labels > 1:
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
        shaped = scores[:, 0] if self.num_labels == 1 else scores
        return shaped[0] if single else shaped

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn scores of `predict` (n,) into probabilities, which other scores can be added to.

        The sigmoid is applied, unless the model itself ends with a sigmoid.
        """
        if self._engine.has_sigmoid:
            return scores
        return np.exp(-np.logaddexp(0, -scores))  # 1 / (1 + exp(-x)) would overflow

    def predict_tokens(
        self, pairs: Sequence[Pair], encoded: EncodedPairs, *, batch_size: int | None = None
    ) -> Vectors:
        """Score pairs that are tokenised already.

        Args:
            pairs: The pairs. Only the engine sentence-transformers uses them: it tokenises them
                again.
            encoded: Result of ``reranker.tokenizer.encode_pairs(pairs)``.
            batch_size: As for `predict`.

        Returns:
            Float32 (n,), or (n, labels) for a model with several labels.
        """
        scores = np.empty((len(pairs), self.num_labels), dtype=np.float32)
        window = np.arange(len(pairs)), _Window(pairs, encoded)
        self._launcher.collect([window], self._start, scores, most=batch_size)
        return scores[:, 0] if self.num_labels == 1 else scores

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        *,
        return_documents: bool = False,
        batch_size: int | None = None,
    ) -> list[RankedText]:
        """Sort texts by their score for a query, as ``CrossEncoder.rank`` does.

        Args:
            query: The first text of each pair.
            documents: The second texts.
            top_k: Number of texts to return; None: all.
            return_documents: Whether to return the texts too.
            batch_size: As for `predict`.

        Returns:
            A `RankedText` for each of the ``top_k`` best texts, best first. Texts with equal scores
            keep the order of ``documents``.

        Raises:
            ConfigError: The model has several labels and therefore no single score.
        """
        if self.num_labels != 1:
            raise ConfigError(
                f"{self.opened.name} has {self.num_labels} labels, so no single score to rank by; "
                "use predict."
            )
        scores = self.predict([(query, text) for text in documents], batch_size=batch_size)
        ranked: list[RankedText] = [
            {"corpus_id": int(row), "score": float(scores[row])}
            for row in np.argsort(-scores, kind="stable")[:top_k]
        ]
        if return_documents:
            return [{**hit, "text": documents[hit["corpus_id"]]} for hit in ranked]
        return ranked

    def _start(self, window: _Window, rows: Rows) -> Finish:
        pairs = [window.pairs[row] for row in rows]
        return self._engine.start(pairs, window.encoded.take(rows))


class _Window(NamedTuple):
    """Pairs that are tokenised together, and their tokens."""

    pairs: Sequence[Pair]
    encoded: EncodedPairs

    @property
    def lengths(self) -> NDArray[np.int32]:
        return self.encoded.lengths


# If the query leaves room for fewer tokens than this in a window, the text is not split into
# windows, but truncated.
_LEAST_ROOM = 16


class PairModel(Protocol):
    """A model that scores pairs with its own tokenizer, such as a `Reranker`."""

    @property
    def num_labels(self) -> int:
        """Number of scores of a pair."""

    @property
    def identity(self) -> ModelIdentity:
        """Identity of the model."""

    @property
    def tokenizer(self) -> TextTokenizer:
        """Tokenizer that truncates pairs."""

    def predict(self, pairs: list[Pair], /) -> Vectors:
        """Score pairs of query and text, float32 (n,)."""

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn scores of `predict` (n,) into probabilities."""


def require_one_label(reranker: PairModel) -> None:
    """Refuse a reranker that gives several scores for a pair."""
    if reranker.num_labels != 1:
        raise ConfigError(
            f"{reranker.identity.name} has {reranker.num_labels} labels, so no single score to "
            "rank by; name a cross-encoder with one label."
        )


class BestWindow:
    """A reranker that reads long texts in windows instead of cutting them; the best window counts.

    If a text has more than ``most`` windows, evenly spaced ones are scored, including the first and
    the last. If ``most`` is 1, long texts are truncated, as by `Reranker`.
    """

    def __init__(self, reranker: PairModel, most: int = 4) -> None:
        if most < 1:
            raise ConfigError(f"There must be at least 1 window, not {most}.")
        require_one_label(reranker)
        self.reranker, self.most = reranker, most
        from sbert_search.text.tokens.tokenizer import TextTokenizer  # only reranking needs this

        tokenizer = reranker.tokenizer
        extra = tokenizer.pair.size - tokenizer.single.size  # special tokens that only a pair has
        self._room = tokenizer.max_len - extra
        self._tokenizer = TextTokenizer(tokenizer.backend, self._room, folder=tokenizer.folder)
        self._pair_tokenizer = tokenizer

    @property
    def identity(self) -> ModelIdentity:
        """The identity of the reranker's model."""
        return self.reranker.identity

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn scores of `predict` (n,) into probabilities."""
        return self.reranker.probabilities(scores)

    def predict(self, pairs: Sequence[Pair]) -> Vectors:
        """Score pairs of query and text, float32 (n,)."""
        pairs = list(pairs)
        if self.most == 1 or not pairs:
            return self.reranker.predict(pairs)
        lost = self._pair_tokenizer.encode_pairs(pairs).lost
        windows = [
            self._windows(*pair) if cut else [pair[1]]
            for pair, cut in zip(pairs, lost, strict=True)
        ]
        flat = [
            (pair[0], text) for pair, texts in zip(pairs, windows, strict=True) for text in texts
        ]
        starts = np.cumsum([0, *map(len, windows[:-1])])
        best: Vectors = np.maximum.reduceat(self.reranker.predict(flat), starts)
        return best

    def _windows(self, query: str, text: str) -> list[str]:
        """Cut a text into at most ``most`` windows that fit into the model with the query."""
        used = len(self._tokenizer.encode([query])[0][0])
        if used + _LEAST_ROOM > self._room:
            return [text]
        spans = self._tokenizer.split(text, prompt=f"{query} ")
        if len(spans) > self.most:
            kept = np.linspace(0, len(spans) - 1, self.most).round().astype(int)
            spans = [spans[i] for i in kept]
        return [text[start:end] for start, end in spans]
