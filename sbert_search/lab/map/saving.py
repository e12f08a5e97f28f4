"""Write a map into a folder: the page, the summary and the table."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sbert_search.base.files import replacing
from sbert_search.base.folders import require_apart
from sbert_search.errors import ConfigError
from sbert_search.lab.map.record import CUT, CorpusMap, MapColumn, NumberColumn
from sbert_search.lab.templates import fill_page, read_page_file, write_files

NAMED = 3  # number of words in the name of a cluster


def cluster_names(drawn: CorpusMap) -> list[str]:
    """Return a name for each cluster: its words with the largest weights."""
    return [", ".join(words[:NAMED]) for words in drawn.words]


def to_table(drawn: CorpusMap) -> pa.Table:
    """Make a table with a row for each document."""
    names = pa.array(cluster_names(drawn))
    return pa.table(
        {
            "doc_id": drawn.doc_ids,
            "title": drawn.titles,
            "x": drawn.layout[:, 0],
            "y": drawn.layout[:, 1],
            "pca_x": drawn.axes[:, 0],
            "pca_y": drawn.axes[:, 1],
            "cluster": drawn.cluster,
            "cluster_name": names.take(pa.array(drawn.cluster)),
            "distance": drawn.distances,
            "duplicates": pa.array(drawn.group, mask=drawn.group < 0),
        }
    )


def rows(drawn: CorpusMap) -> Iterator[dict[str, object]]:
    """Yield the rows of `to_table`."""
    for batch in to_table(drawn).to_batches(max_chunksize=1024):
        yield from batch.to_pylist()


def summary(drawn: CorpusMap, outliers: int = 20) -> dict[str, object]:
    """Describe a map as one JSON object: settings, clusters, outliers, near-duplicates."""
    sizes = [int((drawn.cluster == number).sum()) for number in range(len(drawn.words))]
    settings = drawn.settings
    return {
        "index": drawn.index,
        "model": drawn.model,
        "metric": drawn.metric,
        "documents": drawn.n_indexed,
        "mapped": len(drawn),
        "neighbours": drawn.neighbours.at.shape[1],
        "duplicates_from": settings.duplicates if drawn.has_groups else None,
        "seed": settings.seed,
        "clusters": [
            {"cluster": number, "documents": size, "words": words}
            for number, (size, words) in enumerate(zip(sizes, drawn.words, strict=True))
        ],
        "outliers": [
            {
                "doc_id": drawn.doc_ids[at],
                "title": drawn.titles[at],
                "distance": float(drawn.distances[at]),
            }
            for at in drawn.outliers(outliers)
        ],
        "duplicates": [[drawn.doc_ids[at] for at in group] for group in drawn.groups()],
        "columns_left_out": drawn.left_out,
    }


SHOWN_NEIGHBOURS = 10  # nearest documents that the page lists for each document
OUTLIERS = 50  # outliers that the page lists
SCRIPTS = (  # in this order, since later scripts use earlier scripts
    "data.js", "colours.js", "filter.js", "places.js", "points.js", "details.js", "main.js",
)  # fmt: skip

# Kind of the values on the page, by the type of the column; for lists, by the type of the items.
_KINDS = {
    "string": "text",
    "bool": "flag",
    "int64": "integer",
    "float64": "number",
    "timestamp": "time",
    "date": "date",
}


def make_page(drawn: CorpusMap) -> str:
    """Return the page of a map."""
    scripts = "\n".join(read_page_file(__file__, name) for name in SCRIPTS)
    arrays, places = _join_arrays(drawn)
    return fill_page(
        read_page_file(__file__, "page.html"),
        title=f"Map of {drawn.index}",
        style=read_page_file(__file__, "page.css"),
        script=f'"use strict";\n(() => {{\n{scripts}}})();\n',
        data={
            "TEXTS": _compress(json.dumps(_texts(drawn, places)).encode()),
            "ARRAYS": _compress(arrays),
        },
    )


def _compress(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()


def _texts(drawn: CorpusMap, places: dict[str, list[object]]) -> dict[str, object]:
    """Return the data of the page except the arrays.

    ``places`` has the type, the byte offset and the number of elements of each array.
    """
    return {
        **summary(drawn, OUTLIERS),
        "outliers": drawn.outliers(OUTLIERS),
        "duplicates": None,
        "groups": len(drawn.groups()),
        "doc_ids": drawn.doc_ids,
        "titles": drawn.titles,
        "texts": drawn.texts,
        "columns": [_description(column) for column in drawn.columns],
        "queries": [{"text": q.text, "at": q.at, "scores": q.scores} for q in drawn.queries],
        "arrays": places,
    }


def _description(column: MapColumn) -> dict[str, object]:
    if isinstance(column, NumberColumn):
        return {"name": column.name, "kind": column.kind}
    item = column.kind.removeprefix("list[").removesuffix("]")
    kind = _KINDS[item] if item == column.kind else "list"
    cut = CUT if column.is_cut else 0
    names = {"name": column.name, "kind": kind, "item": _KINDS[item]}
    return {**names, "values": column.values, "cut": cut}


def _join_arrays(drawn: CorpusMap) -> tuple[bytes, dict[str, list[object]]]:
    """Join the arrays of a page, each at a multiple of 8 bytes; return them and their places."""
    shown = SHOWN_NEIGHBOURS
    arrays: dict[str, NDArray[np.generic]] = {
        "layout": drawn.layout,
        "axes": drawn.axes,
        "cluster": drawn.cluster,
        "near": drawn.neighbours.at[:, :shown],
        "scores": drawn.neighbours.scores[:, :shown],
        "distance": drawn.distances,
        "group": drawn.group,
    }
    for number, column in enumerate(drawn.columns):
        if isinstance(column, NumberColumn):
            arrays[f"numbers {number}"] = column.numbers
        else:
            arrays[f"starts {number}"] = column.starts
            arrays[f"codes {number}"] = column.codes
            arrays[f"missing {number}"] = column.missing
    joined, places = bytearray(), dict[str, list[object]]()
    for name, array in arrays.items():
        data = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        places[name] = [f"{array.dtype.kind}{array.dtype.itemsize}", len(joined), array.size]
        joined += data.tobytes()
        joined += bytes(-len(joined) % 8)
    return bytes(joined), places


PAGE, SUMMARY, TABLE = "map.html", "map.json", "map.parquet"


def require_folder(folder: Path, index: Path, option: str = "folder") -> None:
    """Check, before the work starts, that a map can be written into a folder."""
    for above in (folder, *folder.parents):
        if above.exists() and not above.is_dir():
            raise ConfigError(f"{option}: {above} is a file. Name a folder.")
    require_apart(folder / PAGE, [index], option)


def write_map(drawn: CorpusMap, folder: str | Path, *, parquet: bool = False) -> list[Path]:
    """Write the page ``map.html`` and the summary ``map.json`` of a map into a folder.

    Args:
        drawn: The map.
        folder: The folder; it is made if it does not exist. Existing files of a map are replaced.
        parquet: Also write ``map.parquet``, with a row for each document.

    Returns:
        Paths of the files written.

    Raises:
        ConfigError: The folder is a file, or belongs to the index.
        OSError: The disk failed while a file was written; an older file of that name is unchanged.

    Example:
        >>> drawn = map_index("my.index", neighbours=2, clusters=1)
        >>> [path.name for path in write_map(drawn, "out")]
        ['map.html', 'map.json']
    """
    folder = Path(folder)
    require_folder(folder, Path(drawn.index))
    contents = {
        # A path of the index that is no valid text is in the title with surrogates.
        PAGE: make_page(drawn).encode("utf-8", "backslashreplace"),
        SUMMARY: json.dumps(summary(drawn), indent=1).encode() + b"\n",
    }
    written = write_files(folder, contents)
    if parquet:
        written.append(folder / TABLE)
        with replacing(written[-1]) as file:
            pq.write_table(to_table(drawn), cast(IO[bytes], file))
    return written
