"""Make one HTML page of attention maps, which needs no other file and no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.lab.templates import fill_page

_FILES = Path(__file__).parent / "page_files"
STEPS = 65_535  # a probability p is stored as the 16-bit integer round(p * STEPS)


def make_page(record: Mapping[str, object], probabilities: NDArray[np.float32]) -> str:
    """Return a page that shows attention maps.

    The content security policy of the page allows only its own style and script, by their hashes,
    so that no token of the text can run code and nothing is fetched.

    Args:
        record: Result of `AttentionMaps.to_mapping`.
        probabilities: Float32 (layers, heads, length, length), from 0 to 1.
    """
    steps = np.round(probabilities.astype(np.float64) * STEPS).astype("<u2")
    data = {**record, "steps": STEPS, "values": base64.b64encode(steps.tobytes()).decode()}
    return fill_page(
        _read("attention.html"),
        title=f"Attention of {record['model']}",
        style=_read("attention.css"),
        script=_read("attention.js"),
        data=data,
    )


def _read(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")
