"""Opens files that carry code, every way in which this package opens files, and tells what ran.

``python -m tests.canary FOLDER`` makes the files, then watches (`sys.addaudithook`) for unpickled
classes, for code run or imported from the folder and for started programs, and prints one JSON
object: how each way in ended, what was seen, and whether a file's code left its mark.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import xxhash

from sbert_search.embed.embedder import open_embedder
from sbert_search.embed.engines.protocol import EngineName
from sbert_search.errors import SbertSearchError
from sbert_search.index.storage import transaction
from sbert_search.index.storage.manifest import NAME, Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.search.rerankers import Reranker
from sbert_search.text.documents import CorpusReader
from sbert_search.train.loop.checkpoint import read_checkpoint, save_checkpoint
from tests.index.batches import make_batch, some_documents, some_vectors
from tests.models.tiny import tiny_bi_encoder, tiny_cross_encoder
from tests.train.small import TokenModel

Door = Callable[[], object]

AUTO_MAP = {"AutoModel": "evil.Module", "AutoConfig": "evil.Module"}


def main() -> None:
    """Make the files, watch, and try every door."""
    folder = Path(sys.argv[1])
    mark = folder / "mark"
    doors = dict(_doors(folder, mark))
    seen: list[str] = []
    sys.addaudithook(lambda event, arguments: _watch(seen, str(folder), event, arguments))
    told = {name: _try(door) for name, door in doors.items()}
    sys.stdout.write(json.dumps({"doors": told, "seen": seen, "mark": mark.exists()}))


def pickled(mark: Path) -> bytes:
    """A pickle that runs a program when it is loaded, written by hand."""
    return f"cos\nsystem\n(S'touch {mark}'\ntR.".encode()


def _watch(seen: list[str], folder: str, event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn"):
        seen.append(f"{event} {arguments[:2]}")
    elif event == "exec" and folder in getattr(arguments[0], "co_filename", ""):
        seen.append(f"exec {arguments[0].co_filename}")
    elif event == "import" and folder in str(arguments[1]):
        seen.append(f"import {arguments[0]}")


def _try(door: Door) -> str:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            door()
        except SbertSearchError as error:
            return f"refused: {error}"
    return "; ".join(["opened", *(str(warning.message) for warning in warned)])


def _doors(folder: Path, mark: Path) -> list[tuple[str, Door]]:
    return [
        *_model_doors(folder, mark),
        *_index_doors(folder, mark),
        *_corpus_doors(folder, mark),
        ("checkpoint", _checkpoint_door(folder / "run", mark)),
    ]


def _model_doors(folder: Path, mark: Path) -> list[tuple[str, Door]]:
    """Pickled weights, a module with its own code, and remote code, by both engines."""
    code = f"open({str(mark)!r}, 'x')\nclass Module: pass\n"
    doors: list[tuple[str, Door]] = []
    for kind in ("pickled weights", "own module", "remote code"):
        path = folder / kind.replace(" ", "-")
        tiny_bi_encoder(folder / f"{path.name}-tokens").save(path)
        (path / "evil.py").write_text(code)
        if kind == "pickled weights":
            (path / "model.safetensors").unlink()
            (path / "pytorch_model.bin").write_bytes(pickled(mark))
        elif kind == "own module":
            _change(path / "modules.json", lambda modules: modules[1].update(type="evil.Module"))
        else:
            _change(path / "config.json", lambda config: config.update(auto_map=AUTO_MAP))
        for engine in ("native", "sentence-transformers"):
            doors.append((f"{kind}, {engine}", _opener(path, engine)))
    path = folder / "reranker"
    tiny_cross_encoder(folder / "reranker-tokens").save(path)
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(pickled(mark))
    return [*doors, ("pickled reranker", lambda: Reranker(str(path)).predict([("a", "b")]))]


def _opener(path: Path, engine: EngineName) -> Door:
    return lambda: open_embedder(str(path), engine=engine, device="cpu").encode(["the cat"])


def _index_doors(folder: Path, mark: Path) -> list[tuple[str, Door]]:
    """A pickle in the place of each file of an index, under a manifest that vouches for it."""
    doors: list[tuple[str, Door]] = []
    for part in ("docs", "vectors", "ids", "ann"):
        path = folder / f"index-{part}"
        store = IndexStore.create(path, Manifest.new(VectorSettings(dim=8)))
        # Each file of the commit for itself, not in a pack.
        with mock.patch.object(transaction, "PACK_BYTES", -1), store.writer() as writer:
            writer.commit(make_batch(some_documents(5), some_vectors(5)))
        values = json.loads((path / NAME).read_bytes().partition(b"\n")[2])
        segment = values["segments"][0]
        data = pickled(mark)
        if part == "vectors":
            header = "{'descr': '|O', 'fortran_order': False, 'shape': (5, 8), }".ljust(117) + "\n"
            data = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.encode() + data
        place = segment if part in ("docs", "ids") else segment["vectors"]["v1"]
        key = "file" if part == "vectors" else part
        name = place[key]["name"] if part != "ann" else "ann/000007.faiss"
        digest = xxhash.xxh3_128_hexdigest(data)
        place[key] = {"name": name, "size_bytes": len(data), "xxh3_128": digest}
        (path / name).unlink(missing_ok=True)
        (path / name).write_bytes(data)
        body = json.dumps(values).encode()
        (path / NAME).write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        doors.append((f"index {part}", _searcher(path)))
    return doors


def _searcher(path: Path) -> Door:
    return lambda: IndexStore.open(path).snapshot.search(some_vectors(1), 3)


def _corpus_doors(folder: Path, mark: Path) -> list[tuple[str, Door]]:
    """Pickles by their names, and an Arrow type that brings a pickle along (CVE-2023-47248)."""
    metadata = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": pickled(mark),
    }
    schema = pa.schema([pa.field("id", pa.string()), pa.field("text", pa.string(), True, metadata)])
    table = pa.table([["a"], ["text"]], schema)
    pq.write_table(table, folder / "c.parquet")
    with ipc.new_file(folder / "c.arrow", schema) as writer:
        writer.write_table(table)
    for name in ("c.pkl", "c.npy", "c.pt", "c.joblib", "c.jsonl"):
        (folder / name).write_bytes(pickled(mark))
    names = ("c.parquet", "c.arrow", "c.pkl", "c.npy", "c.pt", "c.joblib", "c.jsonl")
    return [(f"corpus {name}", _reader(folder / name)) for name in names]


def _reader(path: Path) -> Door:
    return lambda: list(CorpusReader(path).batches())


def _checkpoint_door(out: Path, mark: Path) -> Door:
    out.mkdir()
    model = TokenModel()
    path = save_checkpoint(out, 7, {}, {"at": 7}, "seed = 1\n", model.save)
    for name in ("rng_state.pth", "optimizer.pt", ".metadata"):
        (path / name).write_bytes(pickled(mark))
    (path / "state.safetensors").unlink()
    (path / "state.safetensors").write_bytes(pickled(mark))
    return lambda: read_checkpoint(path)


def _change(path: Path, change: Callable[[Any], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


if __name__ == "__main__":
    main()
