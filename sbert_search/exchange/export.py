"""`export_index`: write an index to files for another search engine, or upload it to the engine."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sbert_search.base import files
from sbert_search.base.folders import require_apart, require_possible_output
from sbert_search.base.progress import shown_url
from sbert_search.errors import ConfigError
from sbert_search.exchange import file_targets, milvus, opensearch, qdrant
from sbert_search.exchange.clients import require_url
from sbert_search.exchange.plan import TARGETS, ExportPlan, ExportReport, Target
from sbert_search.exchange.upload import Cursor, Receiver, collection_name, upload
from sbert_search.index.index import Index
from sbert_search.index.storage import manifest as manifests


class _Engine(NamedTuple):
    url: str  # default on this machine, for messages and code
    open: Callable[[ExportPlan, str, str, str | None], Receiver]  # plan, URL, collection, API key
    query_of: Callable[[ExportPlan, str, str], str]  # plan, URL, collection; returns code
    # Writes the files that the engine imports; None: the engine cannot import files.
    write_files: Callable[[ExportPlan, Path], list[Path]] | None


_ENGINES = {
    "qdrant": _Engine("http://localhost:6333", qdrant.QdrantReceiver, qdrant.query_of, None),
    "milvus": _Engine(
        "http://localhost:19530", milvus.MilvusReceiver, milvus.query_of, milvus.write_files
    ),
    "opensearch": _Engine(
        "http://localhost:9200",
        opensearch.OpenSearchReceiver,
        opensearch.query_of,
        opensearch.write_files,
    ),
}


def export_index(
    index: Index | str | Path,
    to: Target,
    out: str | Path | None = None,
    *,
    url: str | None = None,
    name: str | None = None,
    api_key: str | None = None,
    replace: bool = False,
    columns: Sequence[str] | None = None,
) -> ExportReport:
    """Write the passages of an index, with vectors and metadata, for another engine.

    Deleted and replaced documents are left out. The vectors are those of the index; no text is
    embedded again. The same call, without ``replace``, continues an interrupted upload.

    Args:
        index: The index or its folder.
        to: The engine or format. ``parquet``: a file for any engine. ``faiss``: an exact FAISS
            index, with a Parquet file of ids, texts and metadata beside it. ``opensearch``,
            ``milvus``: a folder with the files that the engine imports, or an upload. ``qdrant``:
            an upload, since Qdrant imports no files.
        out: The file to write; for an engine, the new folder for its files. None: upload to
            ``url``.
        url: Where to upload: the URL of a server. For Qdrant, it can also be a folder that Qdrant's
            local mode uses. For Milvus, it can also be a file of Milvus Lite, which ends in
            ``.db``. None: write to ``out``.
        name: Name of the collection or of the OpenSearch index; None: the name of the index folder.
        api_key: API key of Qdrant, token of Milvus, or bearer token of OpenSearch. To log in to
            OpenSearch with a user and a password, put them into ``url``.
        replace: Whether to delete an existing collection of this name before the upload.
        columns: Metadata columns to export; None: all.

    Raises:
        ConfigError: ``to`` is unknown, or does not allow this choice of ``out`` and ``url``.
            ``out`` lies in the index or cannot be made. ``url`` cannot be read. A column does not
            exist. The collection exists already, no interrupted upload made it, and ``replace`` is
            off. Or a package is missing.
        ExchangeError: The engine refused a request or could not be reached, or its number of
            passages after the upload differs from that of the index.
        IndexStoreError: The index is an unfinished build, or cannot be read.
        OSError: The disk failed.

    Example:
        >>> report = export_index("my.index", "parquet", "vectors.parquet", replace=True)
        >>> report.documents, report.passages
        (3, 3)
    """
    started = time.perf_counter()
    if to not in TARGETS:
        raise ConfigError(f"to is {to!r}; it must be one of {', '.join(TARGETS)}.")
    opened = index if isinstance(index, Index) else Index.open(index)
    opened.require_finished()
    engine = _ENGINES.get(to)
    _require_target(to, engine, out, url)
    plan = ExportPlan.of(opened.state, columns, words_only=engine is not None)
    collection = "" if engine is None else name or collection_name(opened.path, to)
    written: list[Path] = []
    resumed = 0
    if engine is None:
        assert out is not None
        written, query = _write_file(plan, to, Path(out), opened.path)
    elif url is not None:
        require_url(url)
        start = Cursor(
            to=to,
            url=shown_url(url),
            name=collection,
            index=str(opened.path.absolute()),
            state=hashlib.sha256(manifests.encode(plan.snapshot.manifest)).hexdigest(),
            fields=dict(plan.fields),
        )
        cursor = opened.path.with_name(f"{opened.path.name}.{to}.cursor.json")
        with contextlib.closing(engine.open(plan, url, collection, api_key)) as receiver:
            resumed = upload(plan, receiver, start, cursor, replace_old=replace)
        query = engine.query_of(plan, shown_url(url), collection)
    else:
        assert out is not None
        assert engine.write_files is not None
        require_apart(Path(out), [opened.path], "--out")
        with _new_folder(Path(out)) as folder:
            names = [path.name for path in engine.write_files(plan, folder)]
            query = engine.query_of(plan, engine.url, collection)
            files.write_new(folder / "query.py", query.encode())
        written = [Path(out) / each for each in (*names, "query.py")]
    return ExportReport(
        to=to,
        documents=plan.snapshot.n_docs,
        passages=plan.snapshot.n_rows,
        files=tuple(written),
        url=None if url is None else shown_url(url),
        name=collection,
        resumed=resumed,
        fields=plan.fields,
        query=query,
        seconds=time.perf_counter() - started,
    )


def _require_target(
    to: Target, engine: _Engine | None, out: str | Path | None, url: str | None
) -> None:
    if engine is None and (out is None or url is not None):
        raise ConfigError(f"An export to {to} writes a file; name it with --out, without --url.")
    if engine is not None and (out is None) == (url is None):
        raise ConfigError(
            f"An export to {to} needs either --out, a new folder for its files, or --url, such as "
            f"{engine.url}."
        )
    if engine is not None and url is None and engine.write_files is None:
        raise ConfigError(f"{to} imports no files; upload with --url, such as {engine.url}.")


def _write_file(plan: ExportPlan, to: Target, out: Path, index: Path) -> tuple[list[Path], str]:
    written = [out] if to == "parquet" else [file_targets.sidecar(out), out]
    for file in written:
        require_possible_output(file, "--out")
        require_apart(file, [index], "--out")
    if to == "parquet":
        with files.replacing(out) as new:
            file_targets.write_rows(plan, new, vectors=True)
        return written, file_targets.parquet_query(plan, out)
    file_targets.write_faiss(plan, out)
    return written, file_targets.faiss_query(plan, out)


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Make a temporary folder, which is renamed to ``out`` when it is complete."""
    if out.exists() or out.is_symlink():
        raise ConfigError(f"--out: {out} exists already; name a new folder.")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out: {out.parent} is not a folder. Create it first.")
    temporary = out.with_name(f"{out.name}.tmp")
    if temporary.exists() or temporary.is_symlink():
        raise ConfigError(
            f"--out: {temporary} exists; the files are first written there. If an interrupted "
            "export left it, remove it; else rename it, or name another folder."
        )
    files.disk.make_folder(temporary)
    try:
        yield temporary
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove_tree(temporary)
        raise
    files.disk.fsync_folder(temporary)
    files.disk.replace(temporary, out)
    files.disk.fsync_folder(out.absolute().parent)
