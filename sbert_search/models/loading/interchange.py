"""Wrappers of models that sentence-transformers ("the library") computes, of any architecture.

No other module imports the library at run time. It is imported on first use, since the import
takes seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.loading.accounting import Loaded, require_accounted, watched_loads
from sbert_search.models.loading.folder import ModelDescription, note_positions
from sbert_search.models.loading.modules import Module
from sbert_search.models.loading.text_limits import processing_limit, require_one_length
from sbert_search.models.side_file import read_side_file
from sbert_search.text.tokens.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.base.modules.module import Module as _LibraryModule

_NO_LIMIT = 1 << 30  # tokens or dimensions; more than any model has
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
    """Load a bi-encoder from a folder, on the CPU in fp32.

    The network is not used, and no code from the folder is run.

    Raises:
        ModelError: The library cannot load the folder.
        WeightsError: As for `require_accounted`.
    """
    from sentence_transformers import SentenceTransformer

    model, loads = _load(SentenceTransformer, path)
    require_accounted(path, loads, lambda: _one_vector(model))
    return cast("SentenceTransformer", model)


def load_cross_encoder(path: Path) -> CrossEncoder:
    """Load a cross-encoder from a folder, as `load_sentence_transformer` does.

    As in `models.cross_encoder.CrossEncoder`, the logits are divided by the temperature in the
    folder's ``sbert_search.json`` before the activation is applied.

    Raises:
        ModelError: The library cannot load the folder, or its file ``sbert_search.json`` is
            damaged.
        WeightsError: As for `require_accounted`.
    """
    from sentence_transformers import CrossEncoder

    model, loads = _load(CrossEncoder, path)
    require_accounted(path, loads, lambda: model.predict([("a", "b")]))
    if (temperature := read_side_file(path).temperature) != 1:
        model.activation_fn = partial(_divided, model.activation_fn, temperature)
    return cast("CrossEncoder", model)


def _divided(activation: Callable[[Tensor], Tensor], by: float, logits: Tensor) -> Tensor:
    return activation(logits / by)


def _load(kind: Any, path: Path) -> tuple[Any, list[Loaded]]:
    weights = {"dtype": torch.float32, "use_safetensors": True}
    try:
        with watched_loads() as loads:
            model = kind(str(path), device="cpu", local_files_only=True, model_kwargs=weights)
    except Exception as error:  # the library raises exceptions of any class
        raise ModelError(f"sentence-transformers cannot load {path}: {error}") from error
    _keep_to_positions(model, path)
    return model, loads


def _keep_to_positions(model: Any, path: Path) -> None:
    """Lower ``max_seq_length`` to the model's number of positions.

    With a larger value, the library fails on long texts.
    """
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
    """A bi-encoder of the library.

    Attributes:
        model: The library's model.
        tokenizer: A copy of the model's tokenizer, to count tokens and split texts. For embedding,
            the library tokenises texts itself.
        dim: Number of dimensions of an embedding before truncation.

    Raises:
        ConfigError: ``model`` is not a SentenceTransformer.
        ModelError: The modules of the model compute no vector of a text, or its tokenizer is not
            one of the tokenizers library.
    """

    def __init__(self, model: SentenceTransformer) -> None:
        if not is_sentence_transformer(model):
            raise ConfigError(
                f"A {type(model).__name__} is not a model; pass a folder, a name on the hub or a "
                "SentenceTransformer."
            )
        first = _first(model)
        require_one_length(f"The {type(first).__name__} in memory", vars(first))
        self.model = model
        self.tokenizer = TextTokenizer(_backend(model), _max_len(model))
        self.dim = _one_vector(model).shape[1]

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
            truncate_dim=_NO_LIMIT,
        )
        return vectors.float().cpu().numpy()


class LibraryPairScorer:
    """A cross-encoder of the library.

    Attributes:
        model: The library's model.
        tokenizer: A copy of the model's tokenizer, to count tokens. For scoring, the library
            tokenises pairs itself.
        num_labels: Number of outputs per pair.
        labels: Names of the outputs.
        architecture: ``model_type`` of the model's Transformer.

    Raises:
        ConfigError: ``model`` is not a CrossEncoder.
        ModelError: The model's tokenizer is not one of the tokenizers library, or the model's
            default prompt and the special tokens take all tokens of a pair.
    """

    def __init__(self, model: CrossEncoder) -> None:
        if not is_cross_encoder(model):
            raise ConfigError(
                f"A {type(model).__name__} is not a model; pass a folder, a name on the hub or a "
                "CrossEncoder."
            )
        self.model = model
        self.tokenizer = TextTokenizer(_backend(model), _max_len(model))
        # The library puts the default prompt before each first text. It has prompts from 6.0 on.
        prompt = getattr(model, "prompts", {}).get(getattr(model, "default_prompt_name", None))
        if prompt:
            extra = self.tokenizer.pair.size - self.tokenizer.single.size
            self.tokenizer.require_room(prompt, self.tokenizer.max_len - extra)
        self.num_labels = int(model.num_labels)
        names = getattr(model.config, "id2label", None) or {}
        self.labels = tuple(str(names.get(n, f"LABEL_{n}")) for n in range(self.num_labels))
        self.architecture = str(getattr(model.config, "model_type", "unknown"))

    def predict(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Score pairs, float32 (n, labels)."""
        scores = self.model.predict(list(pairs), show_progress_bar=False, convert_to_tensor=True)
        return scores.float().cpu().numpy().reshape(len(pairs), self.num_labels)


def _one_vector(model: SentenceTransformer) -> NDArray[np.float32]:
    """Embed a text, float32 (1, dim), not truncated.

    Raises:
        ModelError: The modules of the model compute no vector of a text.
    """
    try:
        return model.encode(["a"], prompt="", truncate_dim=_NO_LIMIT)
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
    return _NO_LIMIT if limit is None else int(min(limit, _NO_LIMIT))


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
