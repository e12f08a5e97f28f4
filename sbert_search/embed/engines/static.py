"""The engine static: the mean of a table's rows, in numpy, so that a query does not load torch.

It computes models whose first module is StaticEmbedding, as sentence-transformers and model2vec
save them, followed by any Dense and Normalize. The table is mapped into memory, and only the rows
of the tokens are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import files
from sbert_search.embed.engines.protocol import Engine, OpenedModel
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import WeightsError
from sbert_search.models.loading.folder import ModelFolder, read_folder
from sbert_search.models.loading.modules import Module
from sbert_search.models.loading.resolve import resolve_model

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}
_TANH = "torch.nn.modules.activation.Tanh"
_ACTIVATIONS: Mapping[object, Callable[[Vectors], Vectors]] = {
    _TANH: np.tanh,
    "torch.nn.modules.linear.Identity": np.asarray,
}
# The settings of modules that this engine reads, and neutral values of those that it does not.
_READ = {"in_features", "out_features", "bias", "activation_function"}
_NEUTRAL = (None, False, "sentence_embedding")

_BY_TOKEN = ("mapping", "weights")

Step = Callable[[Vectors], Vectors]


class StaticEngine:
    """Averages rows of a table and applies the modules after it."""

    name = "static"
    batch_tokens = 1 << 14

    def __init__(self, folder: ModelFolder) -> None:
        # Imported here, so that a search without a model does not load the library tokenizers.
        from sbert_search.text.tokens.tokenizer import TextTokenizer

        first, *later = folder.description.modules
        self.tokenizer = TextTokenizer.of_static(folder.path / first.folder)
        tensors = _tensors(folder.path / first.folder)
        table = tensors.get("embedding.weight", tensors.get("embeddings"))
        if table is None or table.ndim != 2:
            raise WeightsError(f"{folder.path} has no table of embeddings; copy the model again.")
        # In a model of model2vec, tokens may share rows, and each may have a factor.
        self._table, self._mapping, self._factors = table, *map(tensors.get, _BY_TOKEN)
        n_ids = [len(tensors[name]) for name in _BY_TOKEN if name in tensors] or [len(table)]
        if min(n_ids) < self.tokenizer.vocab_size or not _are_rows(self._mapping, len(table)):
            raise WeightsError(
                f"{folder.path} has {min(n_ids):,} embeddings for {self.tokenizer.vocab_size:,} "
                "tokens, or numbers of no row; take table and tokenizer.json from one model."
            )
        self._steps = [_step(folder.path, module) for module in later]
        try:
            self.dim = int(self._after(np.zeros((1, table.shape[1]), np.float32)).shape[1])
        except ValueError as error:
            raise WeightsError(f"The modules of {folder.path} do not fit: {error}.") from error

    def start(self, tokens: TokenizedTexts) -> Callable[[], Vectors]:
        """Compute vectors in this call; a text without a token has the mean 0."""
        lengths = tokens.lengths
        ids = np.fromiter(chain.from_iterable(tokens.ids), np.int64, int(lengths.sum()))
        places = ids if self._mapping is None else self._mapping[ids]
        sums = np.empty((len(tokens), self._table.shape[1]), np.float32)
        start = 0
        for row, end in enumerate(np.cumsum(lengths).tolist()):  # far faster than `reduceat`
            rows = self._table[places[start:end]]
            if self._factors is not None:
                rows = rows * self._factors[ids[start:end], None].astype(np.float32)
            np.add.reduce(rows, axis=0, dtype=np.float32, out=sums[row])
            start = end
        sums /= np.maximum(lengths, 1)[:, None]
        vectors = self._after(sums)
        return lambda: vectors

    def _after(self, vectors: Vectors) -> Vectors:
        for step in self._steps:
            vectors = step(vectors)
        return vectors


def open_static(
    model: str | Path | None, *, device: str, engine: str, precision: str
) -> OpenedModel[Engine] | None:
    """Open a model that is a table; None: it is none, or other options than the table's are asked.

    sentence-transformers computes a table with other options.
    """
    exact = precision in ("auto", "fp32", "fastest")
    if engine != "native" or device not in ("auto", "cpu") or not exact:
        return None
    resolved = resolve_model(model)
    folder = read_folder(resolved.path)
    first, *later = folder.description.modules
    if first.kind != "StaticEmbedding" or not all(map(_is_plain, later)):
        return None
    folder.weights_sha256()  # refuses pickles
    return OpenedModel.from_folder(resolved, folder, StaticEngine(folder), "fp32", "cpu")


def _are_rows(mapping: NDArray[np.floating] | None, n: int) -> bool:
    if mapping is None:
        return True
    return mapping.dtype.kind == "i" and bool(((mapping >= 0) & (mapping < n)).all())


def _is_plain(module: Module) -> bool:
    settings = {n: v for n, v in module.settings.items() if v not in _NEUTRAL or n in _READ}
    known = settings.get("activation_function", _TANH) in _ACTIVATIONS
    return module.kind in ("Dense", "Normalize") and known and settings.keys() <= _READ


def _step(path: Path, module: Module) -> Step:
    if module.kind == "Normalize":
        return lambda vectors: (
            vectors
            / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12, dtype=np.float32)
        )
    tensors = _tensors(path / module.folder)
    if "linear.weight" not in tensors:
        raise WeightsError(f"{path / module.folder} has no linear.weight; copy the model again.")
    weight = tensors["linear.weight"].astype(np.float32).T
    bias = tensors.get("linear.bias", np.zeros(1)).astype(np.float32)
    activate = _ACTIVATIONS[str(module.settings.get("activation_function", _TANH))]
    return lambda vectors: activate(vectors @ weight + bias)


def _tensors(folder: Path) -> Mapping[str, NDArray[np.floating]]:
    """Map the tensors of a safetensors file into memory."""
    path = folder / "model.safetensors"
    try:
        data = files.map_file(path.resolve())  # in the hub's cache, it is a link
        size = int.from_bytes(data[:8], "little")
        header: dict[str, dict[str, Sequence[int]]] = json.loads(bytes(data[8 : 8 + size]))
        header.pop("__metadata__", None)
        return {
            name: np.frombuffer(
                data[8 + size :][slice(*stated["data_offsets"])], _DTYPES[str(stated["dtype"])]
            ).reshape(stated["shape"])
            for name, stated in header.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{path} is damaged, or has tensors of a type that a table cannot have ({error!r}). "
            "Copy the model again, or use --engine sentence-transformers."
        ) from error
