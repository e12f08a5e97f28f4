"""The pictures of the overview and the concept pages are what their script draws."""

from __future__ import annotations

import runpy
from xml.etree import ElementTree

import pytest

from tests.docs.blocks import DOCS

SCRIPT = runpy.run_path(str(DOCS / "_site/pictures.py"))


@pytest.mark.parametrize("name", SCRIPT["PICTURES"])
def test_a_picture_is_drawn_by_its_script(name: str) -> None:
    committed = (DOCS / name).read_text(encoding="utf-8")
    assert committed == SCRIPT["PICTURES"][name](), "run python docs/_site/pictures.py"
    assert ElementTree.fromstring(committed).tag == "{http://www.w3.org/2000/svg}svg"
    page = DOCS / "index.md" if name == "chain.svg" else (DOCS / name).with_suffix(".md")
    assert page.read_text(encoding="utf-8").count(f"({(DOCS / name).name})") == 1
