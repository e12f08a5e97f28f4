"""The attention page in a browser: every view, by mouse and by keyboard, without a network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sbert_search.lab.attention.maps import AttentionMaps, analyze_attention
from tests.models.tiny import tiny_bi_encoder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
CHROMIUM = os.environ.get("SBERT_SEARCH_CHROMIUM", "/usr/bin/chromium")


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> AttentionMaps:
    folder = tmp_path_factory.mktemp("model")
    tiny_bi_encoder(folder / "tokens").save(folder / "bi")
    return analyze_attention(folder / "bi", "the cat sat", "a dog ran")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser, maps: AttentionMaps, tmp_path: Path) -> Iterator[Page]:
    """The page, opened from the disk; it may have no error and ask for nothing else."""
    path = maps.write(tmp_path)[-1]
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(10_000)
    opened, urls, errors = context.new_page(), [], []
    opened.on("request", lambda request: urls.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on(
        "console",
        lambda message: errors.append(message.text) if message.type == "error" else None,
    )
    opened.goto(path.as_uri())
    assert opened.locator("#grid").is_visible()  # the overview comes first
    opened.keyboard.press("1")
    yield opened
    context.close()
    assert urls == [path.as_uri()]
    assert errors == []


def status(page: Page) -> str:
    text: str = page.locator("#status").inner_text()
    return text


def pixels(page: Page, canvas: str) -> str:
    """The content of a canvas, to see whether it changed."""
    drawn: str = page.evaluate(f"document.querySelector('{canvas}').toDataURL()")
    return drawn


def test_hovering_a_token_names_what_it_attends_to(page: Page, maps: AttentionMaps) -> None:
    before = pixels(page, "#lines")
    page.locator("#queries button").nth(2).hover()
    row = maps.probabilities[0, 0, 2]
    best = int(row.argmax())
    assert status(page).startswith(f"cat attends to: {maps.tokens[best]} {row[best]:.3f}")
    assert pixels(page, "#lines") != before
    page.locator("h1").hover()
    assert status(page).startswith("Layer 1, head 1: entropy")


def test_a_click_keeps_a_token_and_another_releases_it(page: Page) -> None:
    key = page.locator("#keys button").nth(3)
    key.click()
    assert key.get_attribute("aria-pressed") == "true"
    page.locator("#keys button").nth(3).click()
    assert page.locator("#keys button").nth(3).get_attribute("aria-pressed") == "false"


def test_heads_and_layers_are_chosen(page: Page) -> None:
    before = pixels(page, "#lines")
    page.locator("#layer").select_option("2")
    assert status(page).startswith("Layer 2, head 1")
    assert pixels(page, "#lines") != before
    page.locator("#chips button").nth(1).click()
    assert status(page) == "Layer 2, head 1, 2"


def test_the_keyboard_reaches_everything(page: Page) -> None:
    press = page.keyboard.press
    press("ArrowDown")
    press("ArrowRight")
    assert status(page).startswith("Layer 2, head 2")
    press("ArrowUp")
    press("ArrowLeft")
    assert status(page).startswith("Layer 1, head 1")
    press("a")
    assert status(page) == "Layer 1, head 1, 2"
    press("2")
    assert page.locator("#grid").is_visible()
    press("3")
    assert page.locator("#text button.on").inner_text() == "[CLS]"
    press("]")
    assert page.locator("#text button.on").inner_text() == "the"
    press("[")
    press("[")
    assert page.locator("#text button.on").inner_text() == "[SEP]"
    press("1")
    assert page.locator("#heads").is_visible()
    dark = page.evaluate("document.documentElement.classList.contains('dark')")
    press("d")
    assert page.evaluate("document.documentElement.classList.contains('dark')") != dark


def test_special_tokens_and_other_texts_of_a_pair_are_filtered(page: Page) -> None:
    assert page.locator("#queries button").count() == 9
    page.keyboard.press("s")
    words = page.locator("#queries button").all_inner_texts()
    assert words == ["the", "cat", "sat", "a", "dog", "ran"]
    page.locator("#pair").select_option("01")
    assert page.locator("#queries button").all_inner_texts() == ["the", "cat", "sat"]
    assert page.locator("#keys button").all_inner_texts() == ["a", "dog", "ran"]
    page.locator("#pair").select_option("10")
    page.locator("h1").click()
    page.keyboard.press("]")
    assert page.locator("#queries button.on").all_inner_texts() == ["a"]
    page.keyboard.press("[")
    assert page.locator("#queries button.on").all_inner_texts() == ["ran"]


def test_the_grid_shows_every_head_and_opens_one(page: Page, maps: AttentionMaps) -> None:
    page.locator("#tab-grid").click()
    assert page.locator("#thumbnails canvas").count() == 4
    page.get_by_label("layer 2, head 1", exact=True).click()
    assert page.locator("#matrix-title").inner_text() == "Layer 2, head 1"
    entropy = page.locator("#figures dd").first.inner_text()
    assert float(entropy) == pytest.approx(maps.heads[2].entropy, abs=5e-4)
    page.locator("#matrix").hover(position={"x": 110 + 11, "y": 90 + 11})
    value = maps.probabilities[1, 0, 0, 0]
    assert status(page) == f"[CLS] attends to [CLS]: {value:.4f}"


def test_the_token_view_shows_both_directions(page: Page, maps: AttentionMaps) -> None:
    page.locator("#tab-tokens").click()
    page.locator("#text button").nth(2).click()
    page.locator("#text button").nth(1).hover()
    expected = f"cat attends to the in layer 1: {maps.probabilities[0, 0, 2, 1]:.4f}"
    assert status(page) == expected
    page.get_by_label("what attends to the token").check()
    page.locator("#text button").nth(1).hover()
    expected = f"the attends to cat in layer 1: {maps.probabilities[0, 0, 1, 2]:.4f}"
    assert status(page) == expected
