"""Titles and visible text of Markdown, reStructuredText, HTML and notebooks, sound or broken."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.text.formats import markup
from sbert_search.text.formats.rows import BadRow


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# Tides\n\nThe moon.", "Tides"),
        ("intro\n\n### Third level ###\n", "Third level"),
        ("#tag\n\ntext", ""),
        ("####### seven\n", ""),
        ("```\n# a comment\n```\n\n# After the fence", "After the fence"),
        ("~~~\n# a comment", ""),
        ("Setext *title*\n=====\n", "Setext title"),
        ("x\n\nSecond level\n---\n", "Second level"),
        ("two lines\nof text\n---\n", ""),
        ("- item\n---\n", ""),
        ("# See [the `docs`](https://x.org/a) here", "See the docs here"),
        ('<h1 align="center">A &amp; B</h1>\n# Other', "A & B"),
        ("---\ntitle: 'From: matter'\ntags: [a]\n---\n# Heading", "From: matter"),
        ("---\ntags: [a]\n---\n# Heading", "Heading"),
        ('+++\ntitle = "Hugo"\n+++\ntext', "Hugo"),
        ('---\ntitle: What is "life"\n---\n', 'What is "life"'),
        ("---\ntitle: 'Don''t stop'\n---\n", "Don't stop"),
        ('---\ntitle: "A \\"quoted\\" word"  # a comment\n---\n', 'A "quoted" word'),
        ("---\ntitle: C# in a day  # a comment\n---\n", "C# in a day"),
        ('---\ntitle: "Life" and "death"\n---\n', '"Life" and "death"'),
        ("---\n\nbreak, no front matter\n\n---\n", ""),
        ("---\ntitle: never closed\n", ""),
        ("text\r\n\r\n# Windows\r\n", "Windows"),
        ("# " + "x" * 2000, ""),
        ("", ""),
    ],
)
def test_the_title_of_markdown(text: str, title: str) -> None:
    assert markup.markdown(text)[0] == title


@pytest.mark.parametrize("mark", [">-", "|", ">", "|+", ">2-"])
def test_a_title_of_front_matter_may_have_several_lines(mark: str) -> None:
    text = f"---\ntitle: {mark}\n  Tides of\n  the sea\nauthor: x\n---\nThe moon."
    assert markup.markdown(text) == ("Tides of the sea", "The moon.", {"author": "x"})


def test_the_fields_of_front_matter() -> None:
    yaml = """---
title: Tides
year: 2023
draft: no   # not yet
tags: [moon, "sea, salt", 'wind'] # three
authors:
- A. Novak
  - "B. Ray"
- name: C
keywords: [a,
  b]
about: >
  Two
  lines
nested:
  key: x
empty:
none: ~
map: {a: b}
url: https://x.org/#a
year: 1999
---
Body"""
    title, body, fields = markup.markdown(yaml)
    assert (title, body) == ("Tides", "Body")
    assert fields == {
        "year": "2023", "draft": "no", "tags": ["moon", "sea, salt", "wind"],
        "authors": ["A. Novak", "B. Ray"], "keywords": ["a", "b"], "about": "Two lines",
        "url": "https://x.org/#a",
    }  # fmt: skip
    toml = '+++\nTitle = "T"\nyear = 2020\ntags = [\n  "a",\n  "b",\n]\n[more]\nx = 1\n+++\nBody'
    assert markup.markdown(toml) == ("T", "Body", {"year": "2020", "tags": ["a", "b"]})


def test_front_matter_as_people_write_it() -> None:
    yaml = """---
# of the review
Reviewed by: Ann
Änderung: heute
"quoted key": v
title: A long story
  of the tides
abstract:
  The moon pulls
  at the sea.
sources:
- https://e.org/a
# between
- E=mc2
at: 12:30
---
Body"""
    title, body, fields = markup.markdown(yaml)
    assert (title, body) == ("A long story of the tides", "Body")
    assert fields == {
        "Reviewed by": "Ann", "Änderung": "heute", "quoted key": "v", "at": "12:30",
        "abstract": "The moon pulls at the sea.", "sources": ["https://e.org/a", "E=mc2"],
    }  # fmt: skip
    rule = "---\nA word on this: it is text\nbetween two rules.\n---\n"
    assert markup.markdown(rule) == ("", rule, {})


def test_front_matter_is_no_text() -> None:
    assert markup.markdown("---\ntitle: T\n---\nThe body.\n") == ("T", "The body.\n", {})
    assert markup.markdown("---\nThe body.\n---\n")[1] == "---\nThe body.\n---\n"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Title\n=====\n\ntext", "Title"),
        ("=====\nTitle\n=====\n", "Title"),
        (".. note::\n\n   text\n\nSection\n-------\n", "Section"),
        ("Too long for it\n---\n", ""),
        ("text\n\n----\n\ntext", ""),
    ],
)
def test_the_title_of_rst(text: str, title: str) -> None:
    assert markup.rst_title(text) == title


PAGE = """<!DOCTYPE html><html><head><title>Tides &amp; moon</title>
<style>p { color: red }</style><script>if (a < b) { "</p>" }</script></head>
<body><!-- <p>hidden</p> --><h1>The <em>tides</em></h1><p>Twice a
day.<p title='a > b'>3 < 4</p><ul><li>one<li>two</ul><table><tr><td>a</td><td>b</td></tr></table>
<pre>x = 1
y = 2</pre>a<b>b</b>c<br/>d<noscript>Turn scripts on.</noscript></body></html>"""


def test_the_visible_text_of_html() -> None:
    title, text = markup.html_text(PAGE)
    assert title == "Tides & moon"
    assert text.split("\n\n") == [
        "The tides", "Twice a day.", "3 < 4", "one\ntwo", "a b", "x = 1\ny = 2", "abc\nd",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<h1>First</h1><h1>Second</h1>", ("First", "First\n\nSecond")),
        ("<title></title><h1>H</h1>", ("H", "H")),
        ("<svg><title>icon</title></svg>text", ("", "text")),
        ('<p>a</p><svg class="i"/><p>b</p>', ("", "a\n\nb")),
        ("a<svg/>b<svg><path d='M0'/>c</svg>d", ("", "abd")),
        ("<SCRIPT>a</Script >b", ("", "b")),
        ("<script>never closed", ("", "")),
        ("<style/>a</style>b", ("", "b")),
        ("a<!-- never closed", ("", "a")),
        ("a<", ("", "a<")),
        ("a <b", ("", "a")),
        ("a<>b", ("", "a<>b")),
        ("a</>b<?php x ?>c<![CDATA[d]]>e", ("", "abce")),
        ("<p class=it's>a</p>b", ("", "a\n\nb")),
        ("&lt;b&gt; &#65;&nbsp;B &unknown; &#" + "9" * 5000 + ";", None),
        ("just text", ("", "just text")),
        (
            "<details><summary>Post</summary>On Monday.</details><fieldset><legend>Bill</legend>By"
            "<button>Send</button>mail</fieldset><dialog>Hi</dialog>mid<center>dle</center>",
            ("", "Post\nOn Monday.\n\nBill\nBy Send mail\n\nHi\n\nmid\n\ndle"),
        ),
    ],
)
def test_broken_html_still_gives_its_text(page: str, expected: tuple[str, str] | None) -> None:
    found = markup.html_text(page)
    assert found == expected if expected else "<b>" in found[1] or "&lt;" in found[1]


SITE = """<title>Mill</title><body><header><h1>The site</h1><nav>Home <a>About</a></nav></header>
<main><header><h2>The mill</h2></header>The wheel turns.<aside>Advert</aside><nav>1 2 3</nav>
<p>It grinds.</main><article>Related</article><footer>Imprint</footer></body>"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (SITE, "The mill\n\nThe wheel turns.\n\nIt grinds."),
        (
            "<nav>Menu</nav><article>One</article>x<article class=a>Two</article><p>y",
            "One\n\nTwo",
        ),
        (
            "<header>Logo</header><nav>a<nav>b</nav>c</nav><p>Text<FOOTER>z</footer> end",
            "Text\n\nend",
        ),
        ("<nav>Home</nav>Text</nav> more</main>", "Text\n\nmore"),
        ("<p>no menu", "no menu"),
        ("<nav>only a menu</nav>", "only a menu"),  # nothing else: the whole page
        ("<nav>never closed<p>Text", "never closed\n\nText"),
        ("<main>never closed<footer>end</footer>", "never closed\n\nend"),
        ("<main></main><p>Text", "Text"),
        ("<mainly>x</mainly>y", "xy"),
    ],
)
def test_the_main_part_of_a_page_has_no_menus(page: str, expected: str) -> None:
    assert markup.html_text(page, "main")[1] == expected


def test_the_title_of_a_main_part_is_that_of_the_page() -> None:
    assert markup.html_text(SITE, "main")[0] == "Mill"
    page = "<header><h1>Tides</h1></header><main>Twice a day.</main>"
    assert markup.html_text(page, "main") == ("Tides", "Twice a day.")


HOSTILE = {
    "nested": "<div>" * 200_000,
    "open tags": "<a <a <a " * 60_000,
    "quotes": "<a b='" * 60_000,
    "declarations": "<![" * 100_000,
    "comments": "<!--" * 100_000,
    "references": "&#" * 100_000,
    "scripts": "<script>" + "</scrip" * 60_000,
    "blanks": "<b> </b>" * 60_000,
    "one line": "word " * 400_000,
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_html_takes_steps_in_proportion_to_its_size(name: str) -> None:
    """Count the calls of Python functions, which no machine's speed changes."""
    page = HOSTILE[name]
    half, whole = (calls(markup.html_text, page[: len(page) // n]) for n in (2, 1))
    assert whole < 2.2 * half + 100


def calls(work: Callable[[str], object], text: str) -> int:
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(step)
    try:
        work(text)
    finally:
        sys.setprofile(None)
    return count


class Words(HTMLParser):
    """The words of a page by Python's own parser."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_data(self, data: str) -> None:
        self.words += data.split()


WORDS = st.lists(st.sampled_from(["sea", "a &amp; b", "3 &lt; 4", "über"]), min_size=1).map(
    " ".join
)
ELEMENTS = st.recursive(
    WORDS,
    lambda inner: st.tuples(
        st.sampled_from(["p", "div", "li", "em", "h2", "td", "section"]),
        st.sampled_from(["", " class='a > b'", ' id="x"']),
        st.lists(inner, max_size=3).map(" ".join),
    ).map(lambda parts: f"<{parts[0]}{parts[1]}>{parts[2]}</{parts[0]}>"),
)


@given(ELEMENTS)
def test_well_formed_html_has_the_words_that_pythons_parser_finds(page: str) -> None:
    assert markup.html_text(page)[1].split() == Words(page).words


def cell(kind: str, source: object) -> dict[str, object]:
    return {"cell_type": kind, "source": source, "outputs": [{"text": "an output"}]}


def test_a_notebook_is_its_cells_without_outputs() -> None:
    cells = [cell("code", "import os\n"), cell("markdown", ["# Tides\n", "text"]), cell("raw", "")]
    data = json.dumps({"cells": cells, "nbformat": 4}).encode()
    assert markup.notebook(data) == ("Tides", "import os\n\n\n# Tides\ntext")
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1"]}]}]}
    assert markup.notebook(json.dumps(old).encode()) == ("", "x = 1")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "broken JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "it has no list of cells"),
        (b'{"cells": 1}', "it has no list of cells"),
        (b'{"cells": ["x"]}', "a cell is not an object"),
        (b'{"cells": [{"source": [1]}]}', "the source of a cell is not text"),
        (b'{"cells": [{"source": {}}]}', "the source of a cell is not text"),
        (b'{"worksheets": [{"cells": null}, 3]}', None),
        (b'{"worksheets": [{"cells": 5}]}', "it has no list of cells"),
        (b'{"cells": ' + b"[" * 100_000, "nested too deep"),
        (b'{"cells": "\xff"}', "invalid UTF-8"),
    ],
)
def test_a_broken_notebook_is_a_bad_row(data: bytes, reason: str | None) -> None:
    if reason is None:
        assert markup.notebook(data) == ("", "")
        return
    with pytest.raises(BadRow, match=reason):
        markup.notebook(data)


def test_a_title_is_one_short_line() -> None:
    assert markup.clean_title(" a\n b\t c ") == "a b c"
    assert len(markup.clean_title("x" * 10_000)) == markup.MAX_TITLE_CHARS


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# [![Build](https://x/b.svg)](https://x) Project\n", "Build Project"),
        ("````\n# code\n```\n# more code\n````\n\n# Title\n", "Title"),
        ("```\n~~~\n# code\n```\n# Title\n", "Title"),
        ("```python\n# code\n```python\n# code\n```\n# Title\n", "Title"),
        ("#\n\n# Title\n", "Title"),
    ],
)
def test_titles_beside_images_and_in_long_fences(text: str, title: str) -> None:
    assert markup.markdown(text)[0] == title


def test_breaks_in_headings_and_templates_of_a_page() -> None:
    page = "<template><h1>Hidden</h1></template><h1>Mills<br>and <b>riv</b>ers</h1><p>Text."
    assert markup.html_text(page) == ("Mills and rivers", "Mills\nand rivers\n\nText.")
