"""`import_index`: build an index from the vectors in files (FAISS, .npy) or in another engine."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Unpack, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import memory
from sbert_search.base.progress import note, warn
from sbert_search.embed.arguments import EmbedderOptions, ModelLike
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.exchange.sources import (
    ENDING,
    SourceOptions,
    VectorSource,
    found_in_chroma,
    found_in_lance,
    found_in_parquet,
)
from sbert_search.index.building.build import (
    BuildKeywords,
    BuildSettings,
    open_for_build,
    refuse_finished,
)
from sbert_search.index.building.model_check import as_embedder
from sbert_search.index.building.parquet import require_recorded_model
from sbert_search.index.dense.faiss_runtime import FaissIndex, import_faiss, limited_to_file
from sbert_search.index.index import Index
from sbert_search.index.storage.manifest import Metric
from sbert_search.text.fields import FieldNames
from sbert_search.text.ids import IdsLike, read_ids
from sbert_search.text.sources import named_read_errors
from sbert_search.text.vectors import RowVectors

_ENDINGS = (".ids.parquet", ".ids.npy", ".ids.txt")


def with_ids(found: VectorSource, source: Path, asked: SourceOptions) -> VectorSource:
    """Add ids to the vectors of a file, and texts and metadata if the file of ids has them.

    The file of ids is ``asked.ids``, else a file beside ``source`` with one of the `_ENDINGS`.
    Without one, ``found`` is returned unchanged. A Parquet file is read as a source of documents.
    An ``.npy`` file has an array of ids, and any other file has one id in each line.
    """
    path = asked.ids or _beside(source)
    if path is None or path.suffix.lower() != ".parquet":
        asked.require_only(f"{source} without a Parquet file of ids", "--ids")
    if path is None:
        note(f"{source} has no file of ids beside it; the number of a vector from 0 is its id.")
        return found
    if path.suffix.lower() != ".parquet":
        return replace(found, ids=_read(path))
    rows = found_in_parquet(path, asked, has_vectors=True)
    return replace(
        found,
        rows=rows.rows,
        fields=rows.fields,
        metadata_fields=rows.metadata_fields,
        metric=found.metric if rows.metric is None else rows.metric,
        dtype=rows.dtype,
        recorded=rows.recorded,
    )


def _beside(source: Path) -> Path | None:
    for ending in _ENDINGS:
        for stem in (source.name, source.stem):
            if (path := source.with_name(stem + ending)).is_file():
                return path
    return None


def _read(path: Path) -> IdsLike:
    if path.suffix.lower() != ".npy":
        with named_read_errors(str(path)), path.open("rb") as file:
            return read_ids(file, str(path))
    try:
        ids = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CorpusError(f"{path}: cannot be read as an array of ids: {error}.") from error
    if not isinstance(ids, np.ndarray):
        ids.close()
        raise CorpusError(f"{path}: an .npz archive; save the ids with numpy.save.")
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise CorpusError(
            f"{path}: an array of shape {ids.shape} and type {ids.dtype}; ids are one row of "
            "integers or texts."
        )
    return ids.tolist() if ids.dtype.kind == "U" else ids


def found_in_faiss(path: Path, asked: SourceOptions) -> VectorSource:
    """Find the vectors, the metric and the ids of a FAISS file; the vectors are memory-mapped."""
    faiss = import_faiss()
    try:
        with limited_to_file(path.stat().st_size):
            whole = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1]
        raise CorpusError(f"{path}: cannot be read as a FAISS index: {reason}") from error
    index, ids = whole, None
    if isinstance(whole, (faiss.IndexIDMap, faiss.IndexIDMap2)):
        ids = faiss.vector_to_array(whole.id_map)
        index = faiss.downcast_index(whole.index)
    flat = faiss.downcast_index(index.storage) if isinstance(index, faiss.IndexHNSW) else index
    if not isinstance(flat, faiss.IndexFlat):
        raise CorpusError(
            f"{path}: an index of type {type(index).__name__}, which does not store its vectors "
            "as they were given. Import the vectors from which it was built, as .npy or Parquet."
        )
    metrics: Mapping[int, Metric] = {
        faiss.METRIC_INNER_PRODUCT: "dot",
        faiss.METRIC_L2: "euclidean",
    }
    if index.metric_type not in metrics:
        raise CorpusError(
            f"{path}: compares vectors by the FAISS metric {index.metric_type}; only inner "
            "product and L2 can be imported."
        )
    vectors = RowVectors(_rows(faiss, flat), str(path))
    found = VectorSource(
        vectors=vectors, ids=ids, metric=metrics[index.metric_type], keeps=(whole, index, flat)
    )
    if ids is None or asked.ids is not None:
        return with_ids(found, path, asked)
    asked.require_only(f"{path}, which has ids of its own")
    return found


def _rows(faiss: FaissIndex, flat: FaissIndex) -> NDArray[np.float32]:
    """Return the vectors of an exact index, float32 (n, d), without a copy if they lie row by row.

    Some subclasses of IndexFlat store them otherwise, for example in blocks (Panorama).
    """
    if not flat.ntotal:
        return np.empty((0, flat.d), np.float32)
    if type(flat) not in (faiss.IndexFlat, faiss.IndexFlatL2, faiss.IndexFlatIP):
        vectors: NDArray[np.float32] = flat.reconstruct_n(0, flat.ntotal)
        return vectors
    view: NDArray[np.float32] = faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d)
    return view.reshape(flat.ntotal, flat.d)


_FAISS = (".faiss", ".index")
_OF_COLUMNS = {"metadata_fields": "--metadata-fields", "column_types": "--column-type"}
_UNIT = 1e-3  # largest difference from 1 that the norm of a normalized vector may have
_SAMPLE = 1024  # number of vectors, from the first, whose norms are checked


@dataclass(frozen=True, kw_only=True, slots=True)
class _ImportSettings(BuildSettings):
    """Settings of an import, of which the index keeps what its user asked for.

    If the user named no ``metadata_fields``, later documents keep all of theirs, although the
    import leaves out the columns of an export that are no metadata.
    """

    asked_fields: tuple[str, ...] | list[str] | None = None  # None: not named

    def stored_values(self) -> dict[str, object]:
        named = self.asked_fields and list(self.asked_fields)
        values = super(_ImportSettings, self).stored_values()
        return {**values, "metadata_fields": named}


def import_index(
    source: str | Path,
    out: str | Path | None = None,
    *,
    model: ModelLike | None = None,
    ids: str | Path | None = None,
    table: str | None = None,
    **keywords: Unpack[BuildKeywords],
) -> Index:
    """Build an index from vectors that already exist; no text is embedded.

    With the metric cosine, vectors are scaled to norm 1, which changes no ranking; those of a
    float16 index stay as it stored them if the new index is of this type, too. With the other
    metrics, vectors are stored unchanged.

    Args:
        source: A Parquet file with a column of vectors; an ``.npy`` file (n_rows, dim); a FAISS
            file (``.faiss`` or ``.index``) of the types Flat or HNSW; the folder of a Chroma
            client; or the folder of a LanceDB database or table.
        out: Folder of the new index. None: a temporary folder, which is deleted with the last
            reference to the index.
        model: The model that made the vectors. With a model, the index can be searched by text.
            None: it can only be searched by vectors.
        ids: File with the ids of the vectors of an ``.npy`` or FAISS file: one id in each line, an
            ``.npy`` array, or a Parquet file, whose texts and metadata are indexed too. None: the
            ids in the FAISS file (an IDMap); else the file ``SOURCE.ids.parquet``,
            ``SOURCE.ids.npy`` or ``SOURCE.ids.txt`` if there is one; else the numbers of the
            vectors from 0.
        table: Name of the Chroma collection or the LanceDB table; None: the only one.
        keywords: Fields of `BuildSettings`, and the options ``device``, ``engine`` and
            ``precision`` to open a model by name. If ``metric`` is not given, it is the metric of
            the source, or cosine if the source states none. If ``dtype`` is not given, it is that
            of the exported index, or float32.

    Raises:
        CorpusError: The source cannot be read or holds a bad row: a vector that is not finite or
            differs in dimension from the others, or an id that two rows with different contents
            have.
        ConfigError: A setting has a wrong value or no effect on the source, or a package to read
            the source is missing.
        IndexStoreError: The folder cannot become an index.
        ModelMismatch: The vectors have another dimension than those of the model, or the source
            records that another model made them.

    Example:
        >>> len(import_index("vectors.parquet", model="hashing"))
        3
    """
    path = Path(source)
    asked = SourceOptions(
        ids=None if ids is None else Path(ids),
        fields=keywords.pop("fields", FieldNames()),
        table=table,
        metric=keywords.get("metric"),
    )
    found = _found(path, asked)
    metric = keywords.setdefault("metric", found.metric or "cosine")
    keywords.setdefault("dtype", found.dtype or "float32")
    if model is None and (named := found.recorded.get("name")):
        note(f"{path} names the model {named}. With --model, texts can be searched by it.")
    elif model is not None and found.recorded:
        model = _opened_as_recorded(model, path, out, found, cast("dict[str, object]", keywords))
    if metric == "cosine" and found.vectors is not None and not _are_units(found.vectors):
        note("The vectors are scaled to norm 1, which the metric cosine needs.")
    if found.rows is None:
        assert found.vectors is not None
        for name, option in _OF_COLUMNS.items():
            if name in keywords:
                raise ConfigError(f"{option} has no effect: {path} has no metadata; leave it out.")
        if memory.limit() is not None:
            warn(f"{path} has no texts and metadata; --memory does not limit such an import.")
        return Index.from_vectors(found.vectors, ids=found.ids, out=out, model=model, **keywords)
    keywords["fields"] = found.fields
    settings = _ImportSettings(asked_fields=keywords.get("metadata_fields"))
    if found.metadata_fields is not None:
        keywords.setdefault("metadata_fields", found.metadata_fields)
    given = found.vectors if found.vectors is not None else found.fields.vector
    return Index.build(
        found.rows,
        out=out,
        model=model,
        vectors=given,
        settings=settings,
        **keywords,
    )


def _found(path: Path, asked: SourceOptions) -> VectorSource:
    if not path.exists():
        raise CorpusError(f"{path}: there is no such file or folder.")
    ending = path.suffix.lower()
    if path.is_dir():
        if (path / "chroma.sqlite3").is_file():
            return found_in_chroma(path, asked)
        if ending == ENDING or any(path.glob(f"*{ENDING}")):
            return found_in_lance(path, asked)
        raise CorpusError(
            f"{path}: a folder of neither Chroma (chroma.sqlite3) nor LanceDB (NAME.lance)."
        )
    if ending == ".npy":
        return with_ids(VectorSource(vectors=RowVectors.open(path)), path, asked)
    if ending in _FAISS:
        return found_in_faiss(path, asked)
    if ending == ".parquet":
        return found_in_parquet(path, asked)
    raise CorpusError(
        f"{path}: vectors are imported from .parquet, .npy, .faiss and .index files, and from the "
        "folders of Chroma and LanceDB. `index build --vector-field` reads other files."
    )


def _opened_as_recorded(
    model: ModelLike,
    path: Path,
    out: str | Path | None,
    found: VectorSource,
    keywords: MutableMapping[str, object],
) -> TextEmbedder:
    """Open the model, and refuse it if the source records that another model made its vectors.

    The options that open the model, such as ``device``, are removed from ``keywords``.
    """
    given = {name: keywords[name] for name in EmbedderOptions.__annotations__ if name in keywords}
    for name in given:
        del keywords[name]
    options = cast("EmbedderOptions", given)
    if out is not None and isinstance(model, (str, Path)):
        refuse_finished(Path(out).absolute())
        embedder = open_for_build(Path(out), model, partial(as_embedder, model), **options)
    else:
        embedder = as_embedder(model, **options)
    require_recorded_model(found.recorded, embedder.identity, path)
    return embedder


def _are_units(vectors: RowVectors) -> bool:
    norms = np.linalg.norm(vectors.block(0, _SAMPLE), axis=1)
    return bool((np.abs(norms - 1) <= _UNIT).all())
