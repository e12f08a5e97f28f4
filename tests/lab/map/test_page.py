"""The page as a file: its data, its policy and its scripts, without a browser."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.lab.map import saving
from sbert_search.lab.map.record import CorpusMap, NumberColumn
from sbert_search.lab.map.saving import SCRIPTS, SHOWN_NEIGHBOURS, make_page, to_table
from tests.lab.map.conftest import N

PAGE_FILES = Path(saving.__file__).with_name("page_files")


def block(page: str, name: str) -> bytes:
    [text] = re.findall(rf'<script type="application/octet-stream" id="{name}">([^<]*)<', page)
    return zlib.decompress(base64.b64decode(text))


@pytest.fixture(scope="module")
def page(drawn: CorpusMap) -> str:
    return make_page(drawn)


def test_arrays_decode_to_the_values_of_the_table(page: str, drawn: CorpusMap) -> None:
    texts, data = json.loads(block(page, "texts")), block(page, "arrays")
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, (kind, start, length) in texts["arrays"].items():
        assert start % 8 == 0
        arrays[name] = np.frombuffer(data, f"<{kind}", length, start)
    table = to_table(drawn)
    places, axes = arrays["layout"].reshape(-1, 2), arrays["axes"].reshape(-1, 2)
    for name, values in (
        ("x", places[:, 0]),
        ("y", places[:, 1]),
        ("pca_x", axes[:, 0]),
        ("pca_y", axes[:, 1]),
        ("cluster", arrays["cluster"]),
        ("distance", arrays["distance"]),
    ):
        np.testing.assert_array_equal(values, table[name].to_numpy())
    assert texts["doc_ids"] == table["doc_id"].to_pylist()
    assert texts["titles"] == table["title"].to_pylist()
    np.testing.assert_array_equal(arrays["group"], drawn.group)
    k = min(SHOWN_NEIGHBOURS, drawn.neighbours.at.shape[1])
    np.testing.assert_array_equal(arrays["near"].reshape(N, k), drawn.neighbours.at[:, :k])
    np.testing.assert_array_equal(arrays["scores"].reshape(N, k), drawn.neighbours.scores[:, :k])
    for number, column in enumerate(drawn.columns):
        assert texts["columns"][number]["name"] == column.name
        if isinstance(column, NumberColumn):
            np.testing.assert_array_equal(arrays[f"numbers {number}"], column.numbers)
        else:
            assert texts["columns"][number]["values"] == column.values
            np.testing.assert_array_equal(arrays[f"starts {number}"], column.starts)
            np.testing.assert_array_equal(arrays[f"codes {number}"], column.codes)


def test_the_policy_admits_the_own_script_and_style_and_no_connection(page: str) -> None:
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    script, style = page.rpartition("<script>")[2], page.partition("<style>")[2]
    for kind, body in (
        ("script", script.partition("</script>")[0]),
        ("style", style.partition("</style>")[0]),
    ):
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_no_text_of_a_document_can_end_a_script(drawn: CorpusMap) -> None:
    titles = ["</script><script>alert(1)</script>", *drawn.titles[1:]]
    hostile = replace(drawn, titles=titles, index="/a/<b>&{{STYLE}}{{ARRAYS}}")
    page = make_page(hostile)
    assert "alert(1)" not in page
    assert f"<title>{html.escape('Map of /a/<b>&{{STYLE}}{{ARRAYS}}')}</title>" in page
    assert json.loads(block(page, "texts"))["titles"] == titles


def test_the_page_names_no_host_and_inserts_texts_as_text() -> None:
    names = {entry.name for entry in PAGE_FILES.iterdir()}
    assert names == {*SCRIPTS, "page.css", "page.html"}
    for name in sorted(names):
        text = (PAGE_FILES / name).read_text(encoding="utf-8")
        assert not re.findall(r"(?i)https?://|@import|url\(", text)
        assert not re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text
        )


def test_every_element_that_a_script_asks_for_is_in_the_page() -> None:
    scripts = "".join((PAGE_FILES / name).read_text(encoding="utf-8") for name in SCRIPTS)
    made = {"chosen", "near"}
    elements = set(re.findall(r'\bid="([\w-]+)"', (PAGE_FILES / "page.html").read_text()))
    asked = set(re.findall(r'byId\("([\w-]+)"\)', scripts))
    assert asked
    assert asked - made <= elements
