"""The engine onnx: an exported graph in ONNX Runtime, so that a query needs no torch.

A graph is made once a model and kept in the user's cache, in a folder named by what it was made of:
weights, settings of the encoder and the modules after it. The folder's manifest names the sha256 of
each file; one that differs is never opened, and the graph is made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sbert_search.embedding.engine_protocol import Engine, EngineName, OpenedModel
from sbert_search.embedding.protocol import TokenizedTexts, Vectors
from sbert_search.embedding.selfcheck import SELF_CHECK_TEXTS
from sbert_search.errors import ConfigError, ModelError, SbertSearchError
from sbert_search.models.loading.folder import ModelFolder, load_tokenizer, read_folder
from sbert_search.models.loading.identity import sha256_of
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.runtime.cache import cache_folder, digest_of
from sbert_search.runtime.cores import thread_count
from sbert_search.runtime.disk import files
from sbert_search.runtime.progress import note

if TYPE_CHECKING:
    from sbert_search.models.bi_encoder import BiEncoder
    from sbert_search.tokens.tokenizer import TextTokenizer

FORMAT = 2  # to be raised with every change of what is exported
GRAPH, WEIGHTS, MANIFEST = "model.onnx", "model.onnx.data", "manifest.json"
_TOLERANCE = 1e-5  # how far a number may lie from the native engine's in fp32
_PACKAGES = ("onnxruntime", "onnx", "onnxscript")


class GraphEngine:
    """An exported graph, on padded batches of texts of like length.

    Args:
        folder: Where graph and weights lie.
        tokenizer: Of the model.

    Raises:
        ConfigError: onnxruntime is not installed.
        ModelError: It cannot open the graph.
    """

    name: EngineName = "onnx"
    batch_tokens = 256  # small, so that texts of a batch are nearly equally long

    def __init__(self, folder: Path, tokenizer: TextTokenizer) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # its wheel reports its use otherwise
        try:
            import onnxruntime
        except ImportError as error:
            raise ConfigError(
                "The engine onnx needs onnxruntime: pip install 'sbert-search[cpu]'."
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = thread_count()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.disable_prepacking", "1")  # opens twice as fast
        try:
            self._session = onnxruntime.InferenceSession(
                folder / GRAPH, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's errors have no other class in common
            raise ModelError(f"The graph in {folder} cannot be opened: {error}") from error
        self.dim = int(self._session.get_outputs()[0].shape[1])
        self.tokenizer = tokenizer

    def __call__(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors, float32 (n, dim), in one padded batch."""
        mask = np.arange(tokens.lengths.max()) < tokens.lengths[:, None]
        ids = np.zeros(mask.shape, np.int64)
        ids[mask] = np.concatenate(tokens.ids)
        feed = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
        vectors: Vectors = self._session.run(None, feed)[0]
        return vectors

    def start(self, tokens: TokenizedTexts) -> Callable[[], Vectors]:
        """Compute at once; nothing is left to wait for."""
        vectors = self(tokens)
        return lambda: vectors


def open_graph(model: str | Path | None, *, device: str, precision: str) -> OpenedModel[Engine]:
    """Open a model by its exported graph, which is made where the cache has none.

    Raises:
        ConfigError: Another device or precision than the graph's is asked for, or a package is
            not installed.
        ModelError: The model cannot be found, or has no graph.
    """
    if device not in ("auto", "cpu") or precision not in ("auto", "fp32"):
        raise ConfigError(
            f"The engine onnx computes on cpu in fp32, not on {device} in {precision}; "
            "leave both out, or use --engine native."
        )
    found = resolve_model(model)
    folder = read_folder(found.path)
    engine = GraphEngine(cached_graph(folder) or make_graph(folder), load_tokenizer(folder))
    return OpenedModel.from_folder(found, folder, engine, "fp32", "cpu")


def require_graph(model: str | Path) -> None:
    """Refuse a model whose graph would have to be made first.

    Raises:
        ConfigError: onnxruntime is not installed.
        ModelError: The cache has no graph of it, or a damaged one.
    """
    if find_spec("onnxruntime") is None:
        raise ConfigError("onnxruntime is not installed.")
    if cached_graph(read_folder(resolve_model(model).path)) is None:
        raise ModelError(f"{cache_folder('graphs')} holds no sound graph of {model}.")


def keep_graph(folder: ModelFolder) -> None:
    """Make the graph of a model for later searches; one that cannot be made is only noted."""
    if cached_graph(folder) is not None or not all(map(find_spec, _PACKAGES)):
        return
    note(f"Exporting {folder.path} once, so that searches start without torch.")
    try:
        make_graph(folder)
    except (SbertSearchError, OSError) as error:
        note(f"It was not exported; searches load torch. {error}")


def cached_graph(folder: ModelFolder) -> Path | None:
    """Find a model's graph in the cache; None when it is absent or a file is not as recorded."""
    made_of = _made_of(folder)
    place = _place(made_of)
    try:
        manifest = json.loads((place / MANIFEST).read_bytes())
        hashes = {name: sha256_of(place / name) for name in (GRAPH, WEIGHTS)}
    except (OSError, ValueError):
        return None
    return place if manifest == {"made_of": made_of, "sha256": hashes} else None


def make_graph(folder: ModelFolder) -> Path:
    """Export a model into the cache, in place of whatever is there, and compare its numbers.

    Raises:
        ConfigError: A package that the export needs is not installed.
        ModelError: The encoder cannot compute this model, or its graph gives other numbers.
    """
    from sbert_search.embedding.export import export_graph
    from sbert_search.models.bi_encoder import BiEncoder

    model = BiEncoder.from_folder(folder)
    expected = _native_vectors(model)
    made_of = _made_of(folder)
    place = _place(made_of)
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    files.remove_tree(fresh)
    files.disk.make_folder(fresh)
    try:
        export_graph(model, fresh / GRAPH, fresh / WEIGHTS)
        _require_equal(GraphEngine(fresh, model.tokenizer), expected)
        hashes = {name: sha256_of(fresh / name) for name in (GRAPH, WEIGHTS)}
        manifest = json.dumps({"made_of": made_of, "sha256": hashes}, indent=1)
        files.write_new(fresh / MANIFEST, manifest.encode())
        files.disk.fsync_folder(fresh)
        files.remove_tree(place)
        files.disk.replace(fresh, place)
    except BaseException:
        files.remove_tree(fresh)
        raise
    return place


def _made_of(folder: ModelFolder) -> dict[str, Any]:
    """All that a graph depends on, as JSON has it."""
    modules = [[module.kind, dict(module.settings)] for module in folder.description.modules]
    return {
        "format": FORMAT,
        "weights_sha256": folder.weights_sha256(),
        "encoder": dict(folder.transformer),
        "modules": modules,
    }


def _place(made_of: dict[str, Any]) -> Path:
    return cache_folder("graphs") / digest_of(made_of)


def _native_vectors(model: BiEncoder) -> Vectors:
    from sbert_search.embedding.engines import NativeEngine

    return NativeEngine(model)(_check_texts(model.tokenizer))


def _require_equal(engine: GraphEngine, expected: Vectors) -> None:
    apart = float(np.abs(engine(_check_texts(engine.tokenizer)) - expected).max())
    if not apart <= _TOLERANCE:
        raise ModelError(f"The exported graph is off by {apart:.2g}; use --engine native.")


def _check_texts(tokenizer: TextTokenizer) -> TokenizedTexts:
    ids, lost = tokenizer.encode(SELF_CHECK_TEXTS)
    return TokenizedTexts(SELF_CHECK_TEXTS, "", ids, lost)
