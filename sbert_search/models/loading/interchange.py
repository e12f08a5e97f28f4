"""Models that sentence-transformers ("the library") computes, with a check of every tensor.

No other module imports the library at run time. It is imported on first use, since the import
takes seconds.

If the files lack a parameter, transformers fills the parameter with random numbers. If the files
have a tensor that the model does not use, transformers drops the tensor. transformers logs both
cases and raises no error. This module sets missing parameters to NaN and computes the result of a
test text. If the result is NaN, the model uses a missing parameter, and this module raises an
error. It also raises an error if a tensor of the encoder was dropped. A dropped tensor of an unused
head is allowed.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from sbert_search.errors import ConfigError, ModelError, WeightsError
from sbert_search.models.encoder.layouts import LAYOUTS
from sbert_search.models.encoder.weights import first_names
from sbert_search.models.loading.folder import ModelDescription, note_positions
from sbert_search.models.loading.modules import Module, processing_limit, require_one_length
from sbert_search.models.side_file import read_side_file
from sbert_search.text.tokens.tokenizer import NO_LIMIT, TextTokenizer

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.base.modules.module import Module as _LibraryModule


# Names of buffers that older versions of transformers saved; any prefix may come before the name.
_BUFFER = re.compile(r"(^|\.)(position_ids|token_type_ids|inv_freq|masked_bias|attn\.bias)$")
_patching = threading.Lock()


@dataclass(frozen=True, eq=False)
class LoadReport:
    """One model that transformers loaded, and the report of transformers on its tensors."""

    model: Any  # with random numbers in missing parameters
    missing: tuple[str, ...]  # parameters that no file has
    unexpected: tuple[str, ...]  # tensors of the files that the model does not use
    mismatched: tuple[str, ...]  # parameters that have another shape in the files


@contextlib.contextmanager
def watched_loads() -> Iterator[list[LoadReport]]:
    """Collect transformers' report on each model that this thread loads; log only errors."""
    # sentence-transformers has no argument that returns the report. So this function patches
    # `from_pretrained` of transformers, which sentence-transformers calls. Other threads may load
    # models at the same time: a lock allows one patch at a time, and the patched method calls the
    # original one in all threads but this.
    from transformers import PreTrainedModel
    from transformers.utils import logging

    original = PreTrainedModel.__dict__["from_pretrained"]
    this_thread, loads = threading.get_ident(), list[LoadReport]()

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        load = original.__get__(None, cls)
        if threading.get_ident() != this_thread or kwargs.get("output_loading_info"):
            return load(*args, **kwargs)
        options = {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = load(*args, **kwargs | options)
        wrong_shape = (key if isinstance(key, str) else key[0] for key in info["mismatched_keys"])
        loads.append(
            LoadReport(
                model,
                tuple(sorted(info["missing_keys"])),
                tuple(sorted(info["unexpected_keys"])),
                tuple(sorted(wrong_shape)),
            )
        )
        return model

    with _patching, _quiet(logging):
        setattr(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))  # noqa: B010
        try:
            yield loads
        finally:
            setattr(PreTrainedModel, "from_pretrained", original)  # noqa: B010


@contextlib.contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()


def require_accounted(
    where: object, loads: list[LoadReport], probe: Callable[[], NDArray[np.float32]]
) -> None:
    """Refuse a model whose result, by ``probe``, would depend on values not in its files."""
    for load in loads:
        _refuse_left_over(where, load)
    absent = [name for load in loads for name in _poison(load)]
    if absent and not np.isfinite(probe()).all():
        wrong_shape = {name for load in loads for name in load.mismatched}
        shown = [f"{name} (other shape)" if name in wrong_shape else name for name in absent]
        raise WeightsError(
            f"{where}: the weights lack {first_names(shown)}, which the model needs. "
            "Take config.json and weights from one model."
        )


def _refuse_left_over(where: object, load: LoadReport) -> None:
    """Refuse unused tensors that belong to a module of the model, such as those of extra layers."""
    encoder = load.model.base_model
    layout = LAYOUTS.get(str(load.model.config.model_type))
    heads = layout.model_heads if layout else ()
    modules = {name for name, _ in encoder.named_children()}
    if encoder is not load.model:
        modules |= {name for name, _ in load.model.named_children()}
    prefix = f"{load.model.base_model_prefix}."
    left = [
        name
        for name in load.unexpected
        if not _BUFFER.search(name)
        and name.removeprefix(prefix).partition(".")[0] in modules
        and (not name.removeprefix(prefix).startswith(heads) or encoder is not load.model)
    ]
    if left:
        raise WeightsError(
            f"{where}: the model does not use {first_names(left)} of its weights. "
            "Take config.json and weights from one model."
        )


def _poison(load: LoadReport) -> list[str]:
    """Set floating-point parameters that did not come from the files to NaN; return their names."""
    state: dict[str, nn.Parameter] = load.model.state_dict()
    absent = [name for name in (*load.missing, *load.mismatched) if name in state]
    loaded = {state[name].data_ptr() for name in state.keys() - set(absent)}
    poisoned = []
    for name in absent:
        tensor = state[name]
        # A parameter that shares the memory of a loaded parameter (tied weights) is loaded too.
        if tensor.is_floating_point() and tensor.data_ptr() not in loaded:
            tensor.fill_(float("nan"))
            poisoned.append(name)
    return poisoned


_ALL = 1 << 30  # dimensions; more than any model has
_WITH_SETTINGS = ("Pooling", "Dense", "Normalize")  # modules whose settings `describe` returns


def is_sentence_transformer(model: object) -> TypeGuard[SentenceTransformer]:
    """Whether an object is the library's bi-encoder; does not import the library."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(model, library.SentenceTransformer)


def is_cross_encoder(model: object) -> TypeGuard[CrossEncoder]:
    """Whether an object is the library's cross-encoder; does not import the library."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(model, library.CrossEncoder)


def load_sentence_transformer(path: Path) -> SentenceTransformer:
    """Load a bi-encoder on the CPU in fp32, without network or code of the folder."""
    from sentence_transformers import SentenceTransformer

    model, loads = _load(SentenceTransformer, path)
    require_accounted(path, loads, lambda: _one_vector(model))
    return cast("SentenceTransformer", model)


def load_cross_encoder(path: Path) -> CrossEncoder:
    """Load a cross-encoder from a folder, as `load_sentence_transformer` does.

    As in `models.sequence_classifier.CrossEncoder`, the logits are divided by the temperature in
    the folder's ``sbert_search.json`` before the activation is applied.
    """
    from sentence_transformers import CrossEncoder

    model, loads = _load(CrossEncoder, path)
    require_accounted(path, loads, lambda: model.predict([("a", "b")]))
    if (temperature := read_side_file(path).temperature) != 1:
        model.activation_fn = partial(_divided, model.activation_fn, temperature)
    return cast("CrossEncoder", model)


def _divided(activation: Callable[[Tensor], Tensor], by: float, logits: Tensor) -> Tensor:
    return activation(logits / by)


def _load(kind: Any, path: Path) -> tuple[Any, list[LoadReport]]:
    weights = {"dtype": torch.float32, "use_safetensors": True}
    try:
        with watched_loads() as loads:
            model = kind(str(path), device="cpu", local_files_only=True, model_kwargs=weights)
    except Exception as error:  # the library raises exceptions of any class
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{path} needs Python code of its own (auto_map in config.json), and this package "
                "runs no code out of model folders; choose a model of an architecture that "
                "transformers has."
            ) from error
        raise ModelError(f"sentence-transformers cannot load {path}: {error}") from error
    _keep_to_positions(model, path)
    return model, loads


def _keep_to_positions(model: Any, path: Path) -> None:
    """Lower ``max_seq_length`` to the number of positions; longer texts make the library fail."""
    tables = [
        part
        for name, part in model.named_modules()
        if name.endswith("embeddings.position_embeddings") and isinstance(part, nn.Embedding)
    ]
    if not tables or model.max_seq_length is None:
        return
    processing = getattr(_first(model), "processing_kwargs", None)
    # In RoBERTa's table, the rows up to the row of padding (`padding_idx`) are no positions.
    last_unused = -1 if tables[0].padding_idx is None else tables[0].padding_idx
    positions = tables[0].num_embeddings - (last_unused + 1)
    note_positions(path, model.max_seq_length, positions)
    model.max_seq_length = min(model.max_seq_length, positions)
    for part in (processing or {}).values():
        if part.get("max_length"):
            part["max_length"] = min(part["max_length"], positions)


class LibraryEncoder:
    """A bi-encoder of the library."""

    def __init__(self, model: SentenceTransformer) -> None:
        if not is_sentence_transformer(model):
            raise ConfigError(
                f"A {type(model).__name__} is not a model; pass a folder, a name on the hub or a "
                "SentenceTransformer."
            )
        first = _first(model)
        require_one_length(f"The {type(first).__name__} in memory", vars(first))
        self.model = model
        # For counting tokens and splitting texts; to embed, the library tokenises texts itself.
        self.tokenizer = TextTokenizer(_backend(model), _max_len(model))
        self.dim = _one_vector(model).shape[1]  # before truncation

    def describe(self) -> ModelDescription:
        """Return the description that the folder of this model would contain."""
        model = self.model
        modules = tuple(_module(module) for module in model)
        config = getattr(model, "config", None)  # sentence-transformers has it from 6.0
        return ModelDescription(
            architecture=str(getattr(config, "model_type", modules[0].kind)),
            modules=modules,
            max_len=self.tokenizer.max_len,
            prompts={name: text or "" for name, text in model.prompts.items()},
            default_prompt_name=model.default_prompt_name,
            similarity=str(model.similarity_fn_name),
            truncate_dim=model.truncate_dim,
        )

    @property
    def remedy_for_padding(self) -> str:
        """What to do if the padding of a batch changes the vectors."""
        if getattr(self.model.tokenizer, "padding_side", "right") != "left":
            return "Choose another model."
        return (
            "Its tokenizer pads on the left, which moves the positions of shorter texts: set "
            "padding_side to right in tokenizer_config.json."
        )

    def encode(self, texts: Sequence[str], prompt: str) -> NDArray[np.float32]:
        """Compute embeddings, float32 (n, dim), not truncated."""
        vectors = self.model.encode(
            list(texts),
            prompt=prompt,
            show_progress_bar=False,
            convert_to_tensor=True,
            truncate_dim=_ALL,
        )
        return vectors.float().cpu().numpy()


class LibraryPairScorer:
    """A cross-encoder of the library."""

    def __init__(self, model: CrossEncoder) -> None:
        if not is_cross_encoder(model):
            raise ConfigError(
                f"A {type(model).__name__} is not a model; pass a folder, a name on the hub or a "
                "CrossEncoder."
            )
        self.model = model
        # For counting tokens only; to score pairs, the library tokenises them itself.
        self.tokenizer = TextTokenizer(_backend(model), _max_len(model))
        # The library puts the default prompt before each first text. It has prompts from 6.0 on.
        prompt = getattr(model, "prompts", {}).get(getattr(model, "default_prompt_name", None))
        if prompt:
            extra = self.tokenizer.pair.size - self.tokenizer.single.size
            self.tokenizer.require_room(prompt, self.tokenizer.max_len - extra)
        self.num_labels = int(model.num_labels)  # outputs per pair
        names = getattr(model.config, "id2label", None) or {}
        self.labels = tuple(str(names.get(n, f"LABEL_{n}")) for n in range(self.num_labels))
        self.architecture = str(getattr(model.config, "model_type", "unknown"))

    def predict(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Score pairs, float32 (n, labels)."""
        scores = self.model.predict(list(pairs), show_progress_bar=False, convert_to_tensor=True)
        return scores.float().cpu().numpy().reshape(len(pairs), self.num_labels)


def _one_vector(model: SentenceTransformer) -> NDArray[np.float32]:
    try:
        return model.encode(["a"], prompt="", truncate_dim=_ALL)
    except Exception as error:  # a module may raise an exception of any class
        kinds = ", ".join(type(module).__name__ for module in model)
        raise ModelError(
            f"sentence-transformers computes no vector of a text with the modules {kinds}: "
            f"{error!r}. Choose a model that pools its tokens, with all of its files."
        ) from error


def _max_len(model: SentenceTransformer | CrossEncoder) -> int:
    first = _first(model)
    processing = getattr(first, "processing_kwargs", None)
    limit = processing_limit(type(first).__name__, processing) or model.max_seq_length
    return NO_LIMIT if limit is None else int(min(limit, NO_LIMIT))


def _first(model: nn.Module) -> nn.Module:
    return next(model.children())


def _backend(model: Any) -> Tokenizer:
    tokenizer = model.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, Tokenizer):
        raise ModelError(
            f"The tokenizer is a {type(tokenizer).__name__}; this package needs one of the "
            "tokenizers library to count tokens and split texts."
        )
    return Tokenizer.from_str(backend.to_str())  # a copy, since `TextTokenizer` changes it


def _module(module: nn.Module) -> Module:
    kind = type(module).__name__
    if kind not in _WITH_SETTINGS:
        return Module(kind, "")
    return Module(kind, "", cast("_LibraryModule", module).get_config_dict())
