"""Make one HTML page of attention maps, which needs no other file and no network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_FILES = Path(__file__).parent / "page_files"
STEPS = 65_535  # a probability is stored as a whole number of this many steps


def make_page(record: Mapping[str, object], probabilities: NDArray[np.float32]) -> str:
    """Return a page that shows attention maps.

    Its content security policy allows only its own style and script, by their hashes, so that no
    token of the text can run code and nothing is fetched.

    Args:
        record: `AttentionMaps.to_mapping`.
        probabilities: Float32 (layers, heads, length, length), from 0 to 1.
    """
    style = (_FILES / "attention.css").read_text(encoding="utf-8")
    script = (_FILES / "attention.js").read_text(encoding="utf-8")
    steps = np.round(probabilities.astype(np.float64) * STEPS).astype("<u2")
    data = {**record, "steps": STEPS, "values": base64.b64encode(steps.tobytes()).decode()}
    parts = {
        "POLICY": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
        "TITLE": escape(f"Attention of {record['model']}"),
        "STYLE": style,
        "DATA": json.dumps(data).replace("<", "\\u003c"),  # no token can end the element
        "SCRIPT": script,
    }
    page = (_FILES / "attention.html").read_text(encoding="utf-8")
    before, *rest = page.split("{{")
    for part in rest:
        name, _, after = part.partition("}}")
        before += parts[name] + after
    return before


def _hash(content: str) -> str:
    """Return the source expression of an inline style or script."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
