"""The public class `Predictor`, which opens a task head and predicts with it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import progress
from sbert_search.embed.arguments import check_batch_tokens, check_integer
from sbert_search.embed.protocol import Vectors
from sbert_search.embed.token_budget import BatchLauncher, Finish, Rows
from sbert_search.errors import ConfigError, CorpusError, ModelError
from sbert_search.heads.calibration import probabilities
from sbert_search.heads.engine import Head, open_head, per_token_logits, require_finite
from sbert_search.heads.results import Prediction, TaskName, TextAnswer, TextEntities, TextLabel
from sbert_search.heads.windows import (
    AskedText,
    TaggingText,
    best_answer,
    encode_parts,
    encode_windows,
    entities_of,
    join_words,
    rows_of,
    tags_of_words,
    words_of,
)
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.token_classifier import QuestionAnswerer, TokenClassifier
from sbert_search.text.formats.rows import excerpt
from sbert_search.text.tokens.tokenizer import EncodedPairs

if TYPE_CHECKING:
    from sbert_search.base.device import Precision
    from sbert_search.models.loading.publish import PushOptions

Text = str | tuple[str, str]
T = TypeVar("T")

_QUESTIONS = 256  # questions whose windows are computed together


class Predictor:
    """Predicts with a task head: classes of texts, entities in texts, or answers to questions.

    Args:
        model: A model with a task head: its folder, its name on the Hugging Face hub, or an object
            in memory. The folder was written by ``train classify|tag|qa`` or by transformers. An
            object in memory keeps its device and precision; ``device`` and ``precision`` must be
            auto or name the device and precision that it has.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: fp32, bf16, fp16 or auto. auto is bf16 on a CUDA device that supports it, the
            faster of fp32 and bf16 on a CPU, and else fp32. It is also fp32 if the logits in bf16
            differ too much from those in fp32.
        batch_tokens: Maximum tokens of one forward pass; None: a number that is fast on the device.
        no_answer_threshold: For questions: there is no answer if the score of "no answer" minus the
            score of the best span is larger than this threshold. None: the threshold stored with
            the model.

    Attributes:
        task: What the model does: classify, tag or qa.
        labels: Names of the model's outputs.
        max_len: Maximum number of tokens that the model reads at once.

    Raises:
        ConfigError: A setting is invalid, or the device or the precision is not available.
        ModelError: The model cannot be found or loaded, has no task head, or is a classifier that
            gives two classes the same name. Or its logits on this device differ too much from those
            on the CPU in fp32.

    Example:
        >>> model = Predictor("my-classifier", device="cpu")
        >>> model.classify(["the cat sat"])[0].label
        'no'
    """

    def __init__(
        self,
        model: str | Path | Head,
        *,
        device: str = "auto",
        precision: Precision = "auto",
        batch_tokens: int | None = None,
        no_answer_threshold: float | None = None,
    ) -> None:
        check_batch_tokens(batch_tokens)
        _check_threshold(no_answer_threshold)
        self._again = partial(
            type(self),
            model,
            device=device,
            precision=precision,
            batch_tokens=batch_tokens,
            no_answer_threshold=no_answer_threshold,
        )
        self.opened = open_head(model, device=device, precision=precision)
        self._engine = self.opened.engine
        self.task: TaskName = self._engine.task
        self.labels = self._engine.model.labels
        self.max_len = self._engine.tokenizer.max_len
        self._threshold = no_answer_threshold
        twice = [name for name, count in Counter(self.labels).items() if count > 1]
        if twice and self.task == "classify":
            raise ModelError(
                f"{self.opened.name}: two classes have the name {twice[0]!r} in id2label of "
                "config.json; give each a name of its own."
            )
        self._launcher = BatchLauncher(
            batch_tokens or self._engine.batch_tokens, self.opened.device
        )

    def __reduce__(self) -> tuple[Callable[[], Predictor], tuple[()]]:
        """Pickle the arguments of the constructor; unpickling opens the model again."""
        return self._again, ()

    @property
    def model(self) -> Head:
        """The model with its task head, on the device and in the precision in which it computes."""
        return self._engine.model

    @property
    def no_answer_threshold(self) -> float:
        """Threshold for questions that have no answer in the text.

        There is no answer if the score of "no answer" exceeds the score of the best span by more
        than this threshold. Both scores are the sum of a start logit and an end logit.
        """
        if self._threshold is not None or not isinstance(self.model, QuestionAnswerer):
            return self._threshold or 0.0
        return self.model.no_answer_threshold

    @cached_property
    def identity(self) -> ModelIdentity:
        """Hashes and settings that identify this model; its weights are hashed on first use."""
        return ModelIdentity(
            name=self.opened.name,
            weights_sha256=self.opened.weights_sha256(),
            tokenizer_sha256=self.opened.tokenizer_sha256(),
            architecture=self.opened.description.architecture,
            pooling=self.task,
            max_len=self.max_len,
            dim=len(self.labels),
            similarity="score",
            engine=self._engine.name,
            precision=self.opened.precision,
        )

    def push_to_hub(self, name: str, **options: Unpack[PushOptions]) -> str:
        """Publish the model's folder on the Hugging Face hub; see `Embedder.push_to_hub`."""
        from sbert_search.models.loading.publish import push_folder

        return push_folder(self.opened.folder, name, self.task, **options)

    def predict(
        self, texts: Sequence[Text], *, show_progress_bar: bool = False
    ) -> Sequence[Prediction]:
        """Predict with the method of the model's task: `classify`, `tag` or `answer`.

        Args:
            texts: Texts; or pairs of texts, for a classifier of pairs; or pairs of a question and
                the text to answer from, for a model that answers questions.
            show_progress_bar: Whether to show progress on stderr.

        Raises:
            ConfigError: A text is not a pair although the model answers questions, or is a pair
                although the model tags words.
            CorpusError: A text contains a lone surrogate, which UTF-8 cannot encode; a classifier
                gets both single texts and pairs; or ``texts`` is one text and not a list.
            ModelError: The model computes values that are not finite.
        """
        texts = _as_list(texts, "texts")
        if self.task == "classify":
            return self.classify(texts, show_progress_bar=show_progress_bar)
        if self.task == "tag":
            single = [text for text in texts if isinstance(text, str)]
            if len(single) < len(texts):
                raise ConfigError(f"{self.opened.name} tags single texts; give no pairs.")
            return self.tag(single, show_progress_bar=show_progress_bar)
        pairs = [text for text in texts if not isinstance(text, str)]
        if len(pairs) < len(texts):
            raise ConfigError(
                f"{self.opened.name} answers questions; give pairs of a question and a text."
            )
        return self.answer(pairs, show_progress_bar=show_progress_bar)

    def classify(
        self, texts: Sequence[Text], *, show_progress_bar: bool = False
    ) -> list[TextLabel]:
        """Classify texts or pairs of texts; arguments and errors as for `predict`.

        A text or pair of more than ``max_len`` tokens is truncated; a pair loses tokens of its
        longer text first.
        """
        logits = self.logits(texts, show_progress_bar=show_progress_bar)
        model = self._classifier()
        return [self._label(model, row) for row in self.probabilities(logits).tolist()]

    def probabilities(self, logits: Vectors) -> NDArray[np.float64]:
        """Turn logits of a classifier, (n, labels), into calibrated probabilities of that shape."""
        model = self._classifier()
        return probabilities(logits, model.kind, model.temperature)

    def tokenize(self, texts: Sequence[Text]) -> EncodedPairs:
        """Turn texts, or pairs of texts, into token ids for `logits_of_tokens`."""
        return self._classifier().encode(
            [(text, None) if isinstance(text, str) else text for text in texts]
        )

    def logits_of_tokens(self, encoded: EncodedPairs) -> Vectors:
        """Compute a classifier's logits, float32 (n, labels), in one forward pass."""
        types = self._classifier().segments(encoded)
        return require_finite(self._engine.launch(encoded.ids, types)())

    def logits(self, texts: Sequence[Text], *, show_progress_bar: bool = False) -> Vectors:
        """Compute a classifier's logits, float32 (n, labels), not divided by the temperature.

        Arguments and errors as for `predict`. A model that is no classifier raises a ConfigError.
        """
        model = self._classifier()
        texts = _as_list(texts, "texts")
        for text in texts:
            if not isinstance(text, str) and not _is_pair(text, (str, NoneType)):
                raise CorpusError(f"{excerpt(str(text))} is no text and no pair of texts.")
        pairs = [(text, None) if isinstance(text, str) else text for text in texts]

        def start(encoded: EncodedPairs, rows: Rows) -> Finish:
            taken = encoded.take(rows)
            return self._engine.launch(taken.ids, model.segments(taken))

        logits = self._launcher.compute(
            [len(first) + len(second or "") for first, second in pairs],
            lambda rows: model.encode([pairs[row] for row in rows]),
            start,
            np.empty((len(pairs), len(self.labels)), dtype=np.float32),
            shown=("Classifying", "texts") if show_progress_bar else None,
        )
        return require_finite(logits)

    def tag(self, texts: Sequence[str], *, show_progress_bar: bool = False) -> list[TextEntities]:
        """Find the entities of texts; a long text is read in overlapping parts.

        Args:
            texts: Texts of any length.
            show_progress_bar: Whether to show progress on stderr.

        Raises:
            ConfigError: The model does not tag words.
            CorpusError: A text contains a lone surrogate, which UTF-8 cannot encode; or ``texts``
                is one text and not a list.
            ModelError: The model computes values that are not finite.
        """
        model = self._tagger()
        texts = _as_list(texts, "texts")
        for text in texts:
            if not isinstance(text, str):
                raise CorpusError(f"{excerpt(str(text))} is no text; pass a list of texts.")
        tagging = [TaggingText(text, words_of(text), len(self.labels)) for text in texts]
        self._compute_tags(model, tagging, show_progress_bar)
        return [entities_of(model, text) for text in tagging]

    def tag_words(
        self, sentences: Sequence[Sequence[str]], *, show_progress_bar: bool = False
    ) -> list[list[str]]:
        """Return the tag of each word of sentences that are already split into words.

        Args:
            sentences: Lists of words.
            show_progress_bar: Whether to show progress on stderr.

        Raises:
            ConfigError: The model does not tag words.
            CorpusError: A sentence is a text and not a list of words, or a word is no text or
                contains a lone surrogate.
            ModelError: The model computes values that are not finite.
        """
        model = self._tagger()
        remedy = "pass a list of words for each sentence, or call tag"
        cut = list[list[str]]()
        for words in [sentences] if isinstance(sentences, str) else sentences:
            if isinstance(words, str):
                raise CorpusError(f"The sentence {excerpt(words)} is a text; {remedy}.")
            cut.append(_as_list(words, "words", "words"))
            if not all(isinstance(word, str) for word in cut[-1]):
                raise CorpusError(
                    f"{excerpt(str(cut[-1]))} holds a word that is no text; {remedy}."
                )
        tagging = [TaggingText(*join_words(words), len(self.labels)) for words in cut]
        self._compute_tags(model, tagging, show_progress_bar)
        return [[tag for tag, _ in tags_of_words(model, text)] for text in tagging]

    def answer(
        self,
        questions: Sequence[tuple[str, str]],
        *,
        max_answer_tokens: int | None = None,
        show_progress_bar: bool = False,
    ) -> list[TextAnswer]:
        """Answer questions from texts; a long text is read in overlapping windows.

        Args:
            questions: Pairs of a question and the text to answer it from.
            max_answer_tokens: Maximum number of tokens of an answer; None: the maximum stored with
                the model.
            show_progress_bar: Whether to show progress on stderr.

        Raises:
            ConfigError: The model does not answer questions, or ``max_answer_tokens`` is no integer
                of at least 1.
            CorpusError: A text contains a lone surrogate, which UTF-8 cannot encode; or an element
                of ``questions`` is no pair of texts.
            ModelError: The model computes values that are not finite.
        """
        model = self.model
        if not isinstance(model, QuestionAnswerer):
            raise ConfigError(
                f"{self.opened.name} does not answer questions; pass a model of train qa, or call "
                "predict."
            )
        questions = _as_list(questions, "questions", "pairs of a question and a text")
        if max_answer_tokens is not None:
            check_integer("max_answer_tokens", max_answer_tokens)
        for question in questions:
            if not _is_pair(question):
                raise CorpusError(
                    f"{excerpt(str(question))} is no question with a text to answer from; pass "
                    "pairs of a question and a text."
                )
        found: list[TextAnswer] = []
        with progress(
            "Answering", len(questions), "questions", hidden=not show_progress_bar
        ) as advance:
            for start in range(0, len(questions), _QUESTIONS):
                part = questions[start : start + _QUESTIONS]
                found += self._answers(model, part, max_answer_tokens or model.side.max_answer)
                advance(len(part))
        return found

    def _answers(
        self, model: QuestionAnswerer, questions: Sequence[tuple[str, str]], max_tokens: int
    ) -> Iterator[TextAnswer]:
        encode = partial(
            encode_windows,
            self._engine.tokenizer,
            overlap=model.side.overlap,
            max_question=model.side.max_question,
        )
        asked = [AskedText(text, encode(question, text)) for question, text in questions]
        places = [(text, number) for text in asked for number in range(len(text.windows))]
        windows = [text.windows[number] for text, number in places]
        types = [window.types for window in windows] if model.gets_segment_ids else None
        ids, rows = [window.ids for window in windows], [rows_of(window) for window in windows]
        for n, logits in per_token_logits(self._engine, self._launcher, ids, types, rows):
            text, number = places[n]
            text.logits[number] = logits
        return (
            best_answer(model, text, max_tokens=max_tokens, threshold=self.no_answer_threshold)
            for text in asked
        )

    @property
    def batch_tokens(self) -> int:
        """Maximum tokens of one forward pass."""
        return self._launcher.budget

    def _classifier(self) -> SequenceClassifier:
        if not isinstance(self.model, SequenceClassifier):
            raise ConfigError(f"{self.opened.name} is no classifier of texts; use predict.")
        return self.model

    def _tagger(self) -> TokenClassifier:
        if not isinstance(self.model, TokenClassifier):
            raise ConfigError(f"{self.opened.name} does not tag words; use predict.")
        return self.model

    def _compute_tags(
        self, model: TokenClassifier, texts: Sequence[TaggingText], show_progress_bar: bool
    ) -> None:
        order = sorted(texts, key=lambda text: -len(text.text))
        with progress("Tagging", len(texts), "texts", hidden=not show_progress_bar) as advance:
            for start in range(0, len(order), self._launcher.window):
                window = order[start : start + self._launcher.window]
                while left := [text for text in window if not text.done]:
                    ids, words, rows = encode_parts(model, left)
                    for n, logits in per_token_logits(
                        self._engine, self._launcher, ids, None, rows
                    ):
                        left[n].logits[words[n]] = logits
                        left[n].known[words[n]] = True
                advance(len(window))

    def _label(self, model: SequenceClassifier, row: list[float]) -> TextLabel:
        best = max(range(len(row)), key=row.__getitem__)
        labels: tuple[str, ...] = (self.labels[best],)
        if model.kind == "several":
            order = sorted(range(len(row)), key=lambda n: -row[n])
            labels = tuple(self.labels[n] for n in order if row[n] >= model.threshold)
        scores = dict(zip(self.labels, row, strict=True))
        return TextLabel(self.labels[best], row[best], labels, scores)


def _check_threshold(threshold: float | None) -> None:
    """Refuse a threshold that is NaN or no number; an infinite threshold is allowed."""
    if threshold is None or (isinstance(threshold, Real) and not math.isnan(threshold)):
        return
    raise ConfigError(f"no_answer_threshold is {threshold!r}; it must be a number.")


def _as_list(given: Iterable[T], kind: str, each: str = "texts") -> list[T]:
    """Return texts as a list; they may come from a generator, which can be read only once."""
    if isinstance(given, str):
        raise CorpusError(f"These {kind} are one string, {excerpt(given)}; pass a list of {each}.")
    if isinstance(given, (bytes, Mapping)) or not isinstance(given, Iterable):
        raise CorpusError(f"These {kind} are {excerpt(str(given))}; pass a list of {each}.")
    return list(given)


def _is_pair(value: object, second: tuple[type, ...] = (str,)) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    return isinstance(value[0], str) and isinstance(value[1], second)
