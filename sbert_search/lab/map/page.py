"""The page of a map: one HTML file with its data, style and script, which needs no network."""

from __future__ import annotations

import base64
import html
import json
import zlib
from importlib.resources import files
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sbert_search.lab.map.columns import CUT, MapColumn, NumberColumn
from sbert_search.lab.map.record import CorpusMap
from sbert_search.lab.map.table import summary
from sbert_search.lab.templates import hash_of

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
PAGE_FILES = files("sbert_search.lab.map") / "page_files"


class Writable(Protocol):
    """A binary file."""

    def write(self, data: bytes, /) -> int:
        """Write all of the data."""


def write_page(drawn: CorpusMap, file: Writable) -> None:
    """Write the page of a map.

    The content security policy of the page allows only its own script and style, by their hashes,
    and no connection to any host.
    """
    style, script = _read("page.css"), _script()
    policy = (
        f"default-src 'none'; script-src {hash_of(script)}; style-src {hash_of(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    arrays, places = _packed(drawn)
    parts = {  # in the order of the page
        "policy": policy,
        "title": html.escape(f"Map of {drawn.index}"),
        "style": style,
        "texts": _encoded(json.dumps(_texts(drawn, places)).encode()),
        "arrays": _encoded(arrays),
        "script": script,
    }
    rest = _read("page.html")
    for name, value in parts.items():
        before, rest = rest.split(f"{{{{{name}}}}}")
        file.write(before.encode())
        file.write(value.encode("utf-8", "backslashreplace"))
    file.write(rest.encode())


def _read(name: str) -> str:
    return (PAGE_FILES / name).read_text(encoding="utf-8")


def _script() -> str:
    body = "\n".join(_read(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}}})();\n'


def _encoded(data: bytes) -> str:
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


def _packed(drawn: CorpusMap) -> tuple[bytes, dict[str, list[object]]]:
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
