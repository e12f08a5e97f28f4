"""The engine onnx: ONNX Runtime runs an exported graph, so that a query does not load torch.

The graph of a model is exported once and stored in a folder in the user's cache. The name of this
folder is a digest of the weights, the encoder's settings, the modules after the encoder and
`FORMAT`. A manifest in the folder has the sha256 of each file. If a file has another sha256, the
graph is not opened but exported again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sbert_search.base import files
from sbert_search.base.cache import ABANDONED_S, cache_folder, digest_of
from sbert_search.base.memory import left_in_container, mib
from sbert_search.base.processor import thread_count
from sbert_search.base.progress import Reporting, note, reporting, warn
from sbert_search.embed.engines.protocol import Engine, EngineName, OpenedModel, self_check_texts
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import ConfigError, ModelError, install
from sbert_search.models.loading.folder import ModelFolder, load_tokenizer, read_folder
from sbert_search.models.loading.identity import sha256_of
from sbert_search.models.loading.modules import read_object
from sbert_search.models.loading.resolve import resolve_model

if TYPE_CHECKING:
    from sbert_search.text.tokens.tokenizer import TextTokenizer

FORMAT = 2  # increase it with every change of the export, so that older graphs are not used
GRAPH, WEIGHTS, MANIFEST = "model.onnx", "model.onnx.data", "manifest.json"
_TOLERANCE = 1e-5  # absolute difference allowed from the native engine in fp32
_END_S = 10.0  # seconds that an export in another process has to remove its files
_EXPORT_BYTES, _EXPORT_SHARE = 512 << 20, 4  # memory of an export: these, and so many weights
_PACKAGES = ("onnxruntime", "onnx", "onnxscript")


class GraphEngine:
    """Runs an exported graph on padded batches of texts of similar length."""

    name: EngineName = "onnx"
    batch_tokens = 256  # in a small batch, texts have similar lengths and need little padding

    def __init__(self, folder: Path, tokenizer: TextTokenizer) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else onnxruntime reports its use
        try:
            import onnxruntime
        except ImportError as error:
            raise ConfigError(f"The engine onnx needs onnxruntime: {install('cpu')}.") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = thread_count()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.disable_prepacking", "1")  # opens twice as fast
        try:
            self._session = onnxruntime.InferenceSession(
                folder / GRAPH, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's errors share no other base class
            raise ModelError(f"The graph in {folder} cannot be opened: {error}") from error
        self.dim = int(self._session.get_outputs()[0].shape[1])
        self.tokenizer = tokenizer

    def start(self, tokens: TokenizedTexts) -> Callable[[], Vectors]:
        """Compute vectors in one padded batch in this call; the result returns them."""
        mask = np.arange(tokens.lengths.max()) < tokens.lengths[:, None]
        ids = np.zeros(mask.shape, np.int64)
        ids[mask] = np.concatenate(tokens.ids)
        feed = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
        vectors: Vectors = self._session.run(None, feed)[0]
        return lambda: vectors


def open_graph(model: str | Path | None, *, device: str, precision: str) -> OpenedModel[Engine]:
    """Open the exported graph of a model; export it first if the cache has none."""
    if device not in ("auto", "cpu") or precision not in ("auto", "fp32"):
        raise ConfigError(
            f"The engine onnx computes on cpu in fp32, not on {device} in {precision}; "
            "omit both, or use --engine native."
        )
    resolved = resolve_model(model)
    folder = read_folder(resolved.path)
    engine = GraphEngine(cached_graph(folder) or make_graph(folder), load_tokenizer(folder))
    return OpenedModel.from_folder(resolved, folder, engine, "fp32", "cpu")


def require_graph(model: str | Path) -> None:
    """Refuse a model whose graph is not in the cache."""
    if find_spec("onnxruntime") is None:
        raise ConfigError("onnxruntime is not installed.")
    if cached_graph(read_folder(resolve_model(model).path)) is None:
        raise ModelError(f"{cache_folder('graphs')} has no valid graph of {model}.")


def keep_graph(folder: ModelFolder) -> None:
    """Export the graph of a model for later searches; a failure is printed, not raised."""
    if cached_graph(folder) is not None or not all(map(find_spec, _PACKAGES)):
        return
    note(f"Exporting {folder.path} once, so that the next searches do not load torch.")
    try:
        make_graph(folder)
    except Exception as error:  # PyTorch's exporter and ONNX Runtime raise errors of many types
        warn(f"The export failed; searches will load torch. {error}")


@contextlib.contextmanager
def keeping_graphs(folders: Sequence[Path]) -> Iterator[None]:
    """Export the graphs of models in another process, which ends with the context at the latest."""
    if not folders or not all(map(find_spec, _PACKAGES)):
        yield
        return
    from multiprocessing import get_context  # not for a query

    child = get_context("spawn").Process(target=_keep_graphs, args=(folders, reporting()))
    try:
        child.start()
    except OSError as error:
        warn(f"The export failed; the next start will load torch. {error}")
        yield
        return
    try:
        yield
    finally:
        child.terminate()  # it then removes what it has written
        child.join(_END_S)
        child.kill()


def _keep_graphs(folders: Sequence[Path], parent: Reporting) -> None:
    """Export graphs in a process that must not disturb its parent."""
    from sbert_search.embed.processes import begin_child

    begin_child(parent)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.dup2(2, 1)  # what the parent prints is for other programs
    os.nice(19)
    os.environ["OMP_NUM_THREADS"] = "1"  # of torch, which is not loaded yet
    with contextlib.suppress(OSError):  # if memory runs out, the kernel ends this process first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    for path in folders:
        folder = read_folder(path)
        if cached_graph(folder) is None and _may_export(folder):
            keep_graph(folder)


def _may_export(folder: ModelFolder) -> bool:
    """Whether an export would neither repeat one that runs or was killed, nor fill a container.

    Where a container's memory runs out, all of its processes may be ended, again at each start.
    """
    path = _graph_folder(_inputs(folder))
    _remove_abandoned(path)
    if any(path.parent.glob(f"{path.name}.*")):
        return False
    weights = sum(file.stat().st_size for file in folder.path.rglob("*.safetensors"))
    needed, left = _EXPORT_BYTES + _EXPORT_SHARE * weights, left_in_container()
    if left is None or needed <= left:
        return True
    note(
        f"{folder.path} is not exported, so the next start will load torch, too: that takes about "
        f"{mib(needed)}, and the container has {mib(left)} left."
    )
    return False


def cached_graph(folder: ModelFolder) -> Path | None:
    """Find the graph of a model in the cache; None if it is absent or a checksum differs."""
    inputs = _inputs(folder)
    path = _graph_folder(inputs)
    try:
        manifest = read_object(path / MANIFEST)
        hashes = {name: sha256_of(path / name) for name in (GRAPH, WEIGHTS)}
    except (OSError, ModelError):
        return None
    return path if manifest == {"made_of": inputs, "sha256": hashes} else None


def make_graph(folder: ModelFolder) -> Path:
    """Export a model as a graph, check its output, and move it into the cache."""
    from sbert_search.embed.engines.export import export_graph
    from sbert_search.embed.engines.native import NativeEngine
    from sbert_search.models.bi_encoder import BiEncoder

    inputs = _inputs(folder)
    path = _graph_folder(inputs)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    _remove_abandoned(path)
    files.disk.make_folder(partial)
    try:
        model = BiEncoder.from_folder(folder)
        expected = NativeEngine(model).start(self_check_texts(model.tokenizer))()
        export_graph(model, partial / GRAPH, partial / WEIGHTS)
        _require_close(GraphEngine(partial, model.tokenizer), expected)
        hashes = {name: sha256_of(partial / name) for name in (GRAPH, WEIGHTS)}
        manifest = json.dumps({"made_of": inputs, "sha256": hashes}, indent=1)
        files.write_new(partial / MANIFEST, manifest.encode())
        files.disk.fsync_folder(partial)
        _publish(partial, path, folder)
    except BaseException:
        files.remove_tree(partial)
        raise
    return path


def _publish(partial: Path, path: Path, folder: ModelFolder) -> None:
    """Move a new graph to ``path``, unless another process has already put the same graph there."""
    try:
        files.disk.replace(partial, path)
    except OSError:  # `path` exists: a rename replaces a folder only if it is empty
        if cached_graph(folder) is None:
            files.remove_tree(path)
            files.disk.replace(partial, path)
        else:
            files.remove_tree(partial)


def _remove_abandoned(path: Path) -> None:
    for partial in path.parent.glob(f"{path.name}.*"):  # of processes that were killed
        with contextlib.suppress(OSError):  # another process removed it
            if time.time() - partial.stat().st_mtime > ABANDONED_S:
                files.remove_tree(partial)


def _inputs(folder: ModelFolder) -> dict[str, object]:
    """Return everything that a graph depends on, as a JSON object."""
    modules = [[module.kind, dict(module.settings)] for module in folder.description.modules]
    return {
        "format": FORMAT,
        "weights_sha256": folder.weights_sha256(),
        "encoder": dict(folder.transformer),
        "modules": modules,
    }


def _graph_folder(inputs: dict[str, object]) -> Path:
    return cache_folder("graphs") / digest_of(inputs)


def _require_close(engine: GraphEngine, expected: Vectors) -> None:
    vectors = engine.start(self_check_texts(engine.tokenizer))()
    difference = float(np.abs(vectors - expected).max())
    if not difference <= _TOLERANCE:  # this form also refuses NaN
        raise ModelError(
            f"The output of the exported graph differs by {difference:.2g} from the model's, more "
            f"than {_TOLERANCE:g}; use --engine native."
        )
