"""The page in Chromium, opened as a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from sbert_search.errors import QueryError
from sbert_search.index.index import Index
from sbert_search.lab.map.layout import Neighbours
from sbert_search.lab.map.making import map_index
from sbert_search.lab.map.record import CorpusMap
from sbert_search.lab.map.saving import write_map
from sbert_search.text.fields import FieldNames
from tests.lab.map.conftest import N, clustered, rows

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Position

pytestmark = pytest.mark.browser

CHROMIUM = os.environ.get("SBERT_SEARCH_CHROMIUM", "/usr/bin/chromium")
SOFTWARE = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]

# The mean opacity of the pixels of the map, after a new frame; the key l twice changes nothing.
DRAWN = """() => {
  for (const key of "ll") document.dispatchEvent(new KeyboardEvent("keydown", {key}));
  const canvas = document.getElementById("map"), gl = canvas.getContext("webgl2");
  return new Promise((done) => requestAnimationFrame(() => {
    const bytes = new Uint8Array(4 * canvas.width * canvas.height);
    gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, bytes);
    let sum = 0;
    for (let i = 3; i < bytes.length; i += 4) sum += bytes[i];
    done(sum / bytes.length);
  }));
}"""


# A frame takes a hundredth of a millisecond more for each point. `drawn` has the numbers of points
# of each call, by frame.
SLOW = """() => {
  const context = WebGL2RenderingContext.prototype, { clear, drawElements } = context;
  window.drawn = [];
  context.clear = function (...given) {
    window.drawn.push([]);
    return clear.apply(this, given);
  };
  context.drawElements = function (mode, count, ...given) {
    const start = performance.now();
    drawElements.call(this, mode, count, ...given);
    window.drawn.at(-1).push(count);
    while (performance.now() - start < count / 100) {}
  };
}"""
TIMES = 100  # copies of the map that make one with many points


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=SOFTWARE)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(drawn: CorpusMap, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_map(drawn, tmp_path_factory.mktemp("page"))[0]


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    """The page; it may have no errors, and request nothing but itself."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(20_000)
    opened, asked, errors = context.new_page(), list[str](), list[str]()
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text))
    opened.goto(file.as_uri())
    opened.locator(":root[data-ready]").wait_for(state="attached")
    yield opened
    context.close()
    assert asked == [file.as_uri()]
    assert [e for e in errors if "GPU stall" not in e] == []


def place(page: Page, drawn: CorpusMap, i: int) -> Position:
    """Where a document is drawn before the view moves, in pixels of the map."""
    box = page.locator("#map").bounding_box()
    assert box is not None
    low, high = drawn.layout.min(axis=0), drawn.layout.max(axis=0)
    scale = 0.92 * min(box["width"] / (high - low)[0], box["height"] / (high - low)[1])
    x, y = (drawn.layout[i] - (low + high) / 2) * scale
    return {"x": box["width"] / 2 + float(x), "y": box["height"] / 2 - float(y)}


def test_labels_end_at_the_border_of_a_narrow_window(browser: Browser, file: Path) -> None:
    with browser.new_context(viewport={"width": 320, "height": 700}) as context:
        page = context.new_page()
        page.goto(file.as_uri())
        page.locator(":root[data-ready]").wait_for(state="attached")
        page.evaluate(DRAWN)  # draws a frame
        box = page.locator("#map").bounding_box()
        assert box is not None
        labels = page.locator("#labels .label:not(.out)")
        placed = labels.evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().toJSON())"
        )
    assert placed
    left, right = box["x"] - 1, box["x"] + box["width"] + 1
    assert [each for each in placed if each["left"] < left or each["right"] > right] == []


def test_hover_shows_the_title(page: Page, drawn: CorpusMap) -> None:
    page.locator("#map").hover(position=place(page, drawn, 5))
    page.locator("#tip b", has_text="Title 5").wait_for()
    page.mouse.move(3, 3)
    page.locator("#tip").wait_for(state="hidden")


def test_click_shows_the_document_and_its_nearest_and_dims_the_rest(
    page: Page, drawn: CorpusMap
) -> None:
    before = page.evaluate(DRAWN)
    i = int(drawn.distances.argmax())
    page.locator("#map").click(position=place(page, drawn, i))
    page.locator("#chosen", has_text=drawn.titles[i]).wait_for()
    shown = page.locator("#near button").all_inner_texts()
    assert shown == [drawn.titles[j] for j in drawn.neighbours.at[i]]
    scores = page.locator("#near .n").all_inner_texts()
    assert scores == [f"{score:.3f}" for score in drawn.neighbours.scores[i]]
    assert page.evaluate(DRAWN) < before / 2
    facts = page.locator("#details .metadata").inner_text()
    assert f"d{i}" in facts
    assert drawn.texts[i] in page.locator("#details .text").inner_text()
    page.locator("#near button").first.click()
    page.locator("#chosen", has_text=drawn.titles[drawn.neighbours.at[i, 0]]).wait_for()
    page.keyboard.press("Escape")
    assert page.locator("#chosen").count() == 0
    assert page.evaluate(DRAWN) == pytest.approx(before, rel=0.05)


def test_near_duplicates_that_were_not_looked_for_are_no_colour(
    browser: Browser, tmp_path: Path
) -> None:
    index = Index.build(rows(12), out=tmp_path / "i", vectors=clustered(12), metric="euclidean")
    page = browser.new_page()
    page.goto(write_map(map_index(index), tmp_path / "m")[0].as_uri())
    page.locator(":root[data-ready]").wait_for(state="attached")
    assert "near-duplicates were not looked for" in (page.locator("#about").text_content() or "")
    assert "near-duplicates" not in page.locator("#colour option").all_text_contents()
    page.close()


def test_columns_whose_values_are_cut_are_named(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbert_search.lab.map.record.MOST_CHARACTERS", 3000)
    documents = [row | {"note": f"{n} {300 * 'y'}end"} for n, row in enumerate(rows(12))]
    index = Index.build(documents, out=tmp_path / "i", vectors=clustered(12))
    page = browser.new_page()
    page.goto(write_map(map_index(index), tmp_path / "m")[0].as_uri())
    page.locator(":root[data-ready]").wait_for(state="attached")
    about = page.locator("#about").text_content() or ""
    assert about.endswith(
        "; of these columns, only the first 200 characters of a value are here: note"
    )
    for condition, expected in (("note LIKE '%end'", 0), ("note LIKE '7 %'", 1)):
        page.locator("#filter").fill(condition)
        page.get_by_text(f"{expected} of 12 documents match", exact=True).wait_for()
    page.close()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("year >= 2000", sum(i % 7 > 0 and i >= 10 for i in range(N))),
        ("year < 2000 OR share > 10", sum((i % 7 > 0 and i < 10) or i > 80 for i in range(N))),
        (
            "kind = 'bread' AND NOT good = TRUE",
            sum(i % 3 == 1 and i % 2 == 1 and i % 10 > 0 for i in range(N)),
        ),
        ("good", 45),
        ("kind IS NULL", 9),
        ("kind NOT IN ('mill', 'bread')", sum(i % 3 == 2 and i % 10 > 0 for i in range(N))),
        ("'oven' IN tags OR share < 0", 0),
        ("'dough' in tags", 30),
        ("seen BETWEEN '2024-01-02' AND '2024-01-03'", sum(i % 28 in (1, 2) for i in range(N))),
        ("at > '2024-01-27T12:30:00Z'", sum(i % 28 == 27 for i in range(N))),
        ("big = 1152921504606846977", 1),
        ("title LIKE 'Title _' AND (cluster = 0 OR cluster = 1)", 5),
        ('"share" = 0.5', 1),
        ("doc_id ilike 'D1%'", 11),
    ],
)
def test_a_filter_highlights_as_where_does(page: Page, condition: str, expected: int) -> None:
    page.locator("#filter").fill(condition)
    page.get_by_text(f"{expected} of {N} documents match", exact=True).wait_for()
    assert page.locator("#problem").is_hidden()


LONG = 50 * "words "


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """An index with columns of every type, and with a metadata column named title."""
    documents = [
        {
            "_id": f"d{i}",
            "text": "x",
            "head": f"Title {i}",
            "title": f"50% of {i}_" if i % 2 else f"50 of {i}.",
            "big": (-1) ** i * (2**60 + i),
            "year": 1995 + i,
            "open": i % 2 == 0,
            "gap": i > 5 if i % 4 else None,
            "at": datetime(2024, 2, 1, 12, 4, 56, 841230 + i, tzinfo=UTC),
            "day": date(2024, 2, 1 + i),
            "long": f"{LONG}{i}",
            "sizes": (None, [1.0, i / 2], [])[i % 3],
            "years": [2000, 2**53 + i],
            "times": [datetime(2024, 2, 1, 12, 0, i, 5, tzinfo=UTC)],
            "flags": [i % 2 == 0],
            "days": [date(2024, 2, 1 + i)],
        }
        for i in range(12)
    ]
    return Index.build(
        documents,
        out=tmp_path_factory.mktemp("typed") / "i",
        vectors=clustered(12),
        fields=FieldNames(title="head"),
    )


@pytest.fixture(scope="module")
def typed_page(browser: Browser, typed: Index, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of `typed` in a time zone other than UTC."""
    written = write_map(map_index(typed), tmp_path_factory.mktemp("typed"))
    page = browser.new_context(timezone_id="America/New_York").new_page()
    page.goto(written[0].as_uri())
    page.locator(":root[data-ready]").wait_for(state="attached")
    return page


@pytest.mark.parametrize(
    "condition",
    [
        "at > '2024-02-01T12:04:56.841235'",
        "at <= '2024-02-01 12:04:56,841235'",
        "at = '2024-02-01T13:04:56.841232+01:00'",
        "at >= '2024-02-01T12:04'",
        "at < '2024-02-02'",
        "day BETWEEN '2024-02-03' AND '2024-02-05'",
        "big > 5",
        "big <= -1152921504606846977",
        "big BETWEEN 1152921504606846978 AND 1.2e18",
        "big < year",
        "year = 2e3 OR year = 2001.",
        "year > 2000.5",
        "1 IN sizes",
        "0.5 IN sizes",
        "sizes IS NULL",
        "3 NOT IN sizes",
        "2e3 IN years",
        "9007199254740993 IN years",
        "'2024-02-01T12:00:03.000005' IN times",
        "'2024-02-01T13:00:03.000005+01:00' IN times",
        "TRUE IN flags",
        "'2024-02-03' IN days",
        "open",
        "NOT gap",
        "gap IS TRUE",
        "gap IS NOT TRUE",
        "gap IS FALSE",
        "gap IS NOT FALSE",
        "gap <> TRUE",
        r"meta.title LIKE '50\% %\_'",
        "meta.title LIKE '50_ %'",
        "meta.title LIKE '%.'",
        "own.title = 'Title 3' OR own.title ILIKE 't%7'",
        f"long = '{LONG}7'",
        "long LIKE '%3'",
        "long LIKE 'w%r_s%s%7'",
        "own.title LIKE 'T%t%e%'",
        "own.title LIKE 'Title%Title%'",
        "own.title LIKE '%'",
        "own.title LIKE 'Title 3%3'",
        "own.title < 'Title \U0001f600'",
        "own.title >= 'Title \ufb01'",
    ],
)
def test_values_of_every_type_are_compared_as_where_does(
    typed_page: Page, typed: Index, condition: str
) -> None:
    expected = len(list(typed.documents(condition)))
    typed_page.locator("#filter").fill(condition)
    status = f"{expected} of 12 documents match"
    typed_page.get_by_text(status, exact=True).wait_for(timeout=2000)
    assert typed_page.locator("#problem").is_hidden()


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("title = 'x'", "write meta.title or own.title"),
        ("year = '2000'", "2000 is not a number"),
        ("at > '2024-02-30'", "is not a time"),
        ("at > 5", "is not a time"),
        ("at > '2021-01-01T00:00+25:00'", "is not a time"),
        ("day > '0000-01-01'", "is not a date"),
        ("day = '2024-02-03T00:00'", "is not a date"),
        ("open = 'true'", "is not TRUE or FALSE"),
        ("meta.title = 5", "5 is not a text"),
        ("meta.title = year", "kind text cannot be compared with one of the kind number"),
        ("years = 2000", "write a value IN the column"),
        ("year LIKE '2%'", "needs a text column"),
        (r"meta.title LIKE 'x\'", "escapes nothing"),
        ("1 = 1", "needs a column"),
        ("year IS TRUE", "Expected NULL"),
        ("year", "Expected a comparison"),
    ],
)
def test_what_where_refuses_is_refused(
    typed_page: Page, typed: Index, condition: str, problem: str
) -> None:
    with pytest.raises(QueryError):
        list(typed.documents(condition))
    typed_page.locator("#filter").fill("open")
    typed_page.locator("#filter").fill(condition)
    typed_page.locator("#problem", has_text=problem).wait_for(timeout=2000)


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("yeer > 3", 'There is no column "yeer"'),
        ("year >", "at the end"),
        ("year > 3 kind", "AND or OR"),
        ("year > 'x'", "not a number"),
        ("(year > 3", "Expected )"),
        ("year # 3", "Cannot read"),
    ],
)
def test_a_wrong_filter_says_why_and_changes_nothing(
    page: Page, condition: str, problem: str
) -> None:
    page.locator("#filter").fill("good")
    page.locator("#filter").fill(condition)
    page.locator("#problem", has_text=problem).wait_for()
    assert page.locator("#status").inner_text() == f"45 of {N} documents match"


def test_words_and_categories_highlight_and_clear(page: Page) -> None:
    everything = page.evaluate(DRAWN)
    page.locator("#find").fill("number1  OVEN")
    page.get_by_text(f"5 of {N} documents match", exact=True).wait_for()
    assert page.evaluate(DRAWN) < everything / 2
    page.locator("#find").fill("")
    page.locator("#legend .category").first.click()
    page.get_by_text(f"30 of {N} documents match", exact=True).wait_for()
    page.keyboard.press("Escape")
    page.wait_for_function("document.getElementById('status').textContent === ''")
    assert page.evaluate(DRAWN) == pytest.approx(everything, rel=0.05)


def test_columns_colour_the_points_and_fill_the_legend(page: Page) -> None:
    colour = page.locator("#colour")
    colour.select_option(label="tags")
    assert "dough" in page.locator("#legend").inner_text()
    colour.select_option(label="seen")
    assert page.locator("#legend").inner_text().split() == ["2024-01-01", "2024-01-28"]
    colour.select_option(label="distance to neighbours")
    page.locator("#arrangement").select_option(label="principal axes")
    assert page.evaluate(DRAWN) > 0.1


def test_the_keyboard_alone_can_walk_the_map(page: Page, drawn: CorpusMap) -> None:
    page.locator("#map").focus()
    still = page.screenshot()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    assert page.screenshot() != still
    page.keyboard.press("0")
    page.keyboard.press("Enter")
    page.locator("#chosen").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    page.locator("#chosen", has_text=drawn.titles[N - 1]).wait_for()
    page.keyboard.press("n")
    page.locator("#chosen", has_text=drawn.titles[0]).wait_for()
    page.keyboard.press("n")
    page.locator("#chosen", has_text=drawn.titles[1]).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("oven")
    page.locator("#status", has_text=f"30 of {N}").wait_for()
    assert page.locator(":focus").get_attribute("id") == "find"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.locator(":focus").get_attribute("id") == "colour"


def test_dark_and_light_differ_and_can_be_switched(page: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    page.locator("#theme").click()
    assert page.evaluate(ground) != dark


@pytest.fixture
def slow_page(browser: Browser, drawn: CorpusMap, tmp_path: Path) -> Iterator[Page]:
    """A page with many points, whose frames take long."""
    near = drawn.neighbours
    many = replace(
        drawn,
        doc_ids=[f"{i}-{copy}" for copy in range(TIMES) for i in drawn.doc_ids],
        titles=TIMES * drawn.titles,
        texts=TIMES * drawn.texts,
        columns=[],
        axes=np.tile(drawn.axes, (TIMES, 1)),
        layout=np.tile(drawn.layout, (TIMES, 1)),
        cluster=np.tile(drawn.cluster, TIMES),
        neighbours=Neighbours(np.tile(near.at, (TIMES, 1)), np.tile(near.scores, (TIMES, 1))),
        distances=np.tile(drawn.distances, TIMES),
        group=np.tile(drawn.group, TIMES),
    )
    opened = browser.new_page()
    opened.goto(write_map(many, tmp_path)[0].as_uri())
    opened.locator(":root[data-ready]").wait_for(state="attached")
    opened.evaluate(SLOW)
    yield opened
    opened.close()


def zoom(page: Page) -> list[list[int]]:
    """Zoom in and wait until the view rests; return the numbers of points of all frames."""
    page.locator("#map").focus()
    for _ in range(20):
        page.keyboard.press("+")
        page.evaluate("() => new Promise(requestAnimationFrame)")
    page.locator("#drawn", has_text="are drawn while the map moves").wait_for()
    page.locator("#drawn").wait_for(state="hidden")
    frames: list[list[int]] = page.evaluate("window.drawn")
    return frames


def test_a_slow_view_draws_a_part_while_it_moves_and_all_when_it_rests(slow_page: Page) -> None:
    *moving, last = map(sum, zoom(slow_page))
    assert last == TIMES * N
    assert 2000 <= min(moving) <= 4400  # which take 44 ms; fewer if the machine is busy


def test_while_a_view_moves_highlighted_points_are_drawn_before_dimmed_ones(
    slow_page: Page,
) -> None:
    slow_page.locator("#find").fill("number10")
    slow_page.locator("#status", has_text=f"{TIMES} of").wait_for()
    dimmed, lit = min(zoom(slow_page), key=sum)
    assert lit == TIMES
    assert 2000 - TIMES <= dimmed <= 4400


def test_a_sample_says_how_many_documents_are_drawn(
    browser: Browser, index: Index, tmp_path: Path
) -> None:
    sample = map_index(index, points=30, neighbours=4, seed=2)
    opened = browser.new_page()
    opened.goto(write_map(sample, tmp_path)[0].as_uri())
    expected = "30 of 90 documents are drawn: a random sample (seed 2)"
    opened.locator("#facts", has_text=expected).wait_for()
    opened.close()


def test_a_pattern_takes_no_longer_than_its_text(browser: Browser, tmp_path: Path) -> None:
    documents = [row | {"note": 180 * "a"} for row in rows(12)]
    index = Index.build(documents, out=tmp_path / "i", vectors=clustered(12))
    page = browser.new_page()
    page.goto(write_map(map_index(index), tmp_path / "m")[0].as_uri())
    page.locator(":root[data-ready]").wait_for(state="attached")
    page.locator("#filter").fill("note LIKE '%a%a%a%a%a%a%a%b'")
    page.get_by_text("0 of 12 documents match", exact=True).wait_for(timeout=5000)
    page.close()


def test_a_document_counts_for_every_value_of_its_list(browser: Browser, tmp_path: Path) -> None:
    documents = [row | {"l": ["a"] if n % 2 else ["b", "a"]} for n, row in enumerate(rows(12))]
    documents[3]["share"] = 1712345678.5
    index = Index.build(documents, out=tmp_path / "i", vectors=clustered(12))
    page = browser.new_page()
    page.goto(write_map(map_index(index), tmp_path / "m")[0].as_uri())
    page.locator(":root[data-ready]").wait_for(state="attached")
    page.locator("#colour").select_option(label="l")
    legend = page.locator("#legend")
    assert legend.inner_text().split() == ["a", "12", "b", "6"]
    page.close()
