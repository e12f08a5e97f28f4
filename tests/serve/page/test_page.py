"""The page in Chromium, against a live server."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sbert_search.index.index import Index
from tests.serve.live import READ, Live, live_server
from tests.serve.page.conftest import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.browser


def test_results_appear_while_typing_and_mark_the_answer(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(f"{site.url}/?mode=lexical")
    page.locator("#query").type("bakes", delay=20)
    page.locator("#status", has_text="1 result").wait_for()
    first = page.locator(".hit").first
    assert visit.titles() == ["Bread"]
    assert first.locator("mark").inner_text() == "It rises before it is baked."
    assert first.locator("mark b").all_inner_texts() == ["baked"]
    assert re.fullmatch(
        r"server [\d.,]+ ms · round trip [\d.,]+ ms", page.locator("#latency").inner_text()
    )


def test_results_are_sorted_and_listed_without_a_query(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(f"{site.url}/?q=water&mode=lexical")
    page.locator("#status", has_text="2 results").wait_for()
    page.get_by_label("Sort by").select_option("year, descending")
    page.wait_for_url("**sort=-year**")
    page.locator(".hit .title").first.get_by_text("Bread").wait_for()
    assert visit.titles() == ["Bread", "Water mills"]
    page.get_by_label("Sort by").focus()  # by keys
    page.keyboard.press("ArrowUp")
    page.locator(".hit .title").first.get_by_text("Water mills").wait_for()
    page.locator("#query").fill("")
    page.locator("#status", has_text="20 results").wait_for()
    assert visit.titles()[:2] == ["Water mills", "Vaccine 0"]
    assert set(page.locator(".score").all_inner_texts()) == {""}
    page.go_back()
    page.goto(f"{site.url}/?is.kind=craft")
    page.locator("#status", has_text="2 results with these filters").wait_for()
    assert page.locator(".hit .metadata").first.inner_text().split()[:2] == ["id", "mill"]
    assert "tags, ascending" not in page.locator("#sort").inner_text()  # lists have no order


def test_an_address_of_the_docs_filters(visit: Visit, site: Live) -> None:
    (address,) = re.findall(r"`(/\?q=[^`]*&is\.[^`]*)`", Path("docs/serving.md").read_text())
    visit.page.goto(f"{site.url}{address}")
    visit.page.locator("#status", has_text="1 result with these filters").wait_for()
    assert visit.titles() == ["Bread"]


def test_a_corrected_query_is_offered(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(f"{site.url}/?mode=lexical&q=dogh")
    page.locator("#suggestion").get_by_role("button", name="dough").click()
    page.locator("#status", has_text="1 result").wait_for()
    assert (visit.titles(), page.locator("#query").input_value()) == (["Bread"], "dough")
    assert page.locator("#suggestion").is_hidden()


def test_the_stages_of_a_result_are_shown(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(site.url)
    visit.search("rises +baked")
    first = page.locator(".hit").first
    first.get_by_role("button", name="Why this rank").click()
    assert first.locator(".stages dt").all_inner_texts() == ["Meaning", "Words", "Both"]
    assert first.locator(".stages .at").last.inner_text() == "rank 1"
    widths = first.locator(".level").evaluate_all("all => all.map(one => one.clientWidth)")
    assert min(widths) > 20


def test_modes_change_what_is_compared(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(site.url)
    visit.search("dough")
    stages = {}
    for mode in ("Meaning", "Words", "Both", "Reranked"):
        with page.expect_response("**/v1/search") as answered:
            page.locator("#modes label", has_text=mode).click()
        [result] = answered.value.json()["results"]
        stages[mode] = set(result["hits"][0]["stages"])
    assert stages["Meaning"] == {"dense"}
    assert stages["Words"] == {"lexical"}
    assert "rerank" in stages["Reranked"] - stages["Both"]


def test_filters_count_values_and_narrow_the_results(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(f"{site.url}/?q=water&mode=dense")
    craft = page.locator(".choice", has_text="craft")
    craft.wait_for()
    assert craft.locator(".n").inner_text() == "2"
    craft.click()
    page.locator("#status", has_text="2 results with these filters").wait_for()
    assert sorted(visit.titles()) == ["Bread", "Water mills"]
    # The values of the column itself keep their counts, so that another can be added.
    page.locator(".choice", has_text="it's <b>code</b>").click()
    page.locator("#status", has_text="3 results").wait_for()
    page.get_by_label("year from").fill("2000")
    page.get_by_label("year from").press("Enter")
    page.locator("#status", has_text="2 results").wait_for()
    page.get_by_label("seen to").fill("2024-06-30")
    page.get_by_label("seen to").press("Enter")
    page.locator("#status", has_text="1 result ").wait_for()
    assert visit.titles() == ["Bread"]
    page.locator(".choice", has_text="flour").click()
    page.wait_for_url("**is.tags=flour**")
    page.reload()
    page.locator("#status", has_text="1 result ").wait_for()
    assert visit.titles() == ["Bread"]
    assert page.locator(".choice", has_text="craft").locator("input").is_checked()


def test_a_filter_by_a_part_of_a_text_can_be_changed_where_values_are_few(
    visit: Visit, site: Live
) -> None:
    page = visit.page
    page.goto(f"{site.url}/?q=water&mode=dense&has.kind=raf")
    page.locator("#status", has_text="2 results with these filters").wait_for()
    page.get_by_label("kind contains").fill("code")
    page.locator("#status", has_text="1 result ").wait_for()


def test_values_are_counted_anew_after_enter(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(f"{site.url}/?q=dough&mode=lexical")
    craft = page.locator(".choice", has_text="craft").locator(".n")
    craft.get_by_text("1", exact=True).wait_for()
    page.locator("#query").fill("water")
    page.locator("#query").press("Enter")
    craft.get_by_text("2", exact=True).wait_for()


def test_markup_in_documents_is_shown_as_text(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(site.url)
    visit.search('"markup near"')
    assert visit.titles() == ["<img src=x onerror=alert(1)>"]
    page.locator(".hit .title").click()
    page.locator(".whole-text").wait_for()
    assert "<script>document.title = 'taken'</script>" in page.locator(".whole-text").inner_text()
    assert "a/b & <i>c</i>" in page.locator("#document").inner_text()
    assert page.title() == '"markup near" · first'
    assert page.locator("img, .hit script, dialog script").count() == 0


def test_an_opened_document_can_be_linked_and_back_closes_it(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(site.url)
    visit.search("wheel")
    page.locator(".hit .title").first.click()
    text = page.locator(".whole-text")
    text.wait_for()
    assert text.inner_text().count("The tower has many rooms.") == 120
    assert page.locator(".whole-text mark").is_visible()
    address = page.url
    page.keyboard.press("Escape")
    page.locator("#document:not([open])").wait_for(state="attached")
    assert page.locator("#query").input_value() == "wheel"
    page.goto(address)
    text.wait_for()
    page.go_back()
    page.locator("#document:not([open])").wait_for(state="attached")


def test_back_returns_to_the_search_before(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(site.url)
    visit.search("dough")
    page.locator("#modes label", has_text="Words").click()
    page.locator(".hits:not(.waiting)").wait_for()
    visit.page.locator(".hit .like").first.click()
    page.locator("#similar-to").wait_for()
    page.go_back()
    page.locator("#similar-to").wait_for(state="hidden")
    assert page.locator("#modes input:checked").get_attribute("value") == "lexical"
    page.go_back()
    page.locator("#modes input[value=hybrid]:checked").wait_for()
    page.go_back()
    page.locator("#welcome").wait_for()
    assert page.locator("#query").input_value() == ""


def test_the_page_starts_in_the_mode_of_the_server(visit: Visit, models: Path) -> None:
    options = ("--mode", "lexical", "--rerank", models / "cross", "--precision", "fp32")
    with live_server(models / "tiny.index", *options, cwd=models) as server:
        page = visit.page
        page.goto(server.url)
        page.locator("#modes input[value=lexical]:checked").wait_for()
        visit.search("dough")
        assert visit.titles() == ["Bread"]
        with page.expect_response("**/v1/search") as answer:
            page.locator("#modes label", has_text="Reranked").click()
        assert answer.value.json()["results"][0]["mode"] == "lexical"
        page.locator("#modes label", has_text="Meaning").click()
        page.wait_for_url("**mode=dense**")


def test_all_is_done_by_keys(visit: Visit, site: Live) -> None:
    page, keys = visit.page, visit.page.keyboard
    page.goto(site.url)
    page.locator("#welcome").wait_for()
    page.locator("#theme").focus()
    keys.press("/")
    keys.type("vaccine")
    page.locator(".hit").first.wait_for()
    page.locator(".hits:not(.waiting)").wait_for()
    titles = visit.titles()

    def focused() -> str:
        text: str = page.evaluate("document.activeElement.innerText")
        return text

    keys.press("ArrowDown")
    assert focused() == titles[0]
    keys.press("j")
    keys.press("ArrowDown")
    keys.press("k")
    assert focused() == titles[1]
    keys.press("w")
    page.locator(".stages").nth(1).wait_for()
    keys.press("Enter")
    page.locator("#document[open]").wait_for()
    keys.press("Escape")
    page.locator("#document:not([open])").wait_for(state="attached")
    assert focused() == titles[1]
    keys.press("m")
    page.locator("#similar-to", has_text=titles[1]).wait_for()
    keys.press("Escape")
    page.locator("#similar-to").wait_for(state="hidden")
    page.wait_for_function("text => document.activeElement.innerText === text", arg=titles[1])
    keys.press("?")
    page.locator("#help[open]").wait_for()
    keys.press("Escape")
    keys.press("2")
    page.wait_for_url("**mode=lexical**")


def test_a_query_is_kept_that_is_typed_before_the_indexes_are_known(
    visit: Visit, site: Live
) -> None:
    page = visit.page
    asked: list[Route] = []
    page.route("**/indexes", lambda route: asked.append(route))
    page.goto(site.url)
    page.locator("#query").fill("dough")
    page.wait_for_timeout(300)
    assert page.locator(".hit").count() == 0
    asked[0].continue_()
    page.locator(".hit").first.wait_for()
    assert page.locator("#query").input_value() == "dough"
    assert visit.titles()[0] == "Bread"


def test_the_answer_of_an_older_query_is_never_shown(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(site.url)
    page.evaluate(
        """() => {
          const send = window.fetch;
          window.fetch = async (url, options) => {
            const answer = await send(url, {...options, signal: undefined});
            if (options.body?.includes('"dough"')) {
              await new Promise((done) => setTimeout(done, 600));
              document.body.dataset.late = 'yes';
            }
            return answer;
          };
        }"""
    )
    page.locator("#query").fill("dough")
    page.wait_for_timeout(300)
    page.locator("#query").fill("wheel")
    page.locator("body[data-late]").wait_for()
    page.wait_for_timeout(100)
    assert visit.titles()[0] == "Water mills"


def test_problems_are_told_in_plain_words(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(site.url)
    visit.search("dough")
    busy = '{"error": {"message": "too many", "type": "overloaded", "param": null, "code": 429}}'
    page.route(
        "**/v1/search",
        lambda route: route.fulfill(status=429, headers={"retry-after": "3"}, body=busy),
    )
    page.locator("#query").fill("wheel")
    problem = page.locator("#problem")
    problem.wait_for()
    assert problem.locator("span").inner_text() == "The server is busy. It asks to wait 3 s."
    page.unroute("**/v1/search")
    page.route("**/v1/search", lambda route: route.abort())
    problem.get_by_role("button").click()
    page.locator("#problem", has_text="The server does not answer.").wait_for()
    page.unroute("**/v1/search")
    problem.get_by_role("button").click()
    problem.wait_for(state="hidden")
    assert visit.titles()[0] == "Water mills"
    filters = page.locator("#facets fieldset").count()
    assert filters
    page.goto(f"{site.url}?q=-dough")
    page.locator("#problem", has_text="in double quotes").wait_for()
    assert problem.get_by_role("button").count() == 0  # the same query would fail again
    page.locator("#facets fieldset").first.wait_for()
    assert page.locator("#facets fieldset").count() == filters
    page.locator("#query").fill('"-dough"')
    problem.wait_for(state="hidden")
    page.locator("#query").fill('"no such phrase"')
    page.locator("#status", has_text="No document was found.").wait_for()


def test_a_token_is_asked_for_and_kept(visit: Visit, locked: Live) -> None:
    page = visit.page
    page.goto(locked.url)
    page.get_by_label("Token", exact=True).fill("wrong-" + "x" * 20)
    page.keyboard.press("Enter")
    page.locator("#token-note", has_text="does not know").wait_for()
    page.get_by_label("Token", exact=True).fill(READ)
    page.keyboard.press("Enter")
    page.locator("#welcome").wait_for()
    page.reload()
    visit.search("dough")
    assert visit.titles()[0] == "Bread"


def test_a_token_is_read_without_invisible_characters(visit: Visit, locked: Live) -> None:
    page = visit.page
    page.goto(locked.url)
    page.get_by_label("Token", exact=True).fill("€ wrong “token”")
    page.keyboard.press("Enter")
    page.locator("#token-note", has_text="does not know").wait_for()
    page.get_by_label("Token", exact=True).fill(f"\u200b{READ}\u00a0\u2060")
    page.keyboard.press("Enter")
    page.locator("#welcome").wait_for()


def test_another_index_can_be_chosen(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(f"{site.url}/?q=dough&is.kind=craft")
    page.locator("#status", has_text="2 results").wait_for()
    page.get_by_label("Index").select_option("second")
    page.locator("#facts", has_text="3 documents").wait_for()
    page.locator("#status", has_text="3 results").wait_for()


def test_more_results_are_shown(visit: Visit, site: Live) -> None:
    page = visit.page
    page.goto(site.url)
    visit.search("vaccine")
    assert len(visit.titles()) == 20
    page.get_by_role("button", name="Show more").click()
    page.locator(".hit").nth(27).wait_for()
    assert page.locator("#more").is_hidden()


def test_the_page_asks_for_no_more_than_the_server_allows(visit: Visit, built: Path) -> None:
    with live_server(built, "--max-k", "2") as server:
        visit.page.goto(server.url)
        visit.search("dough")
        assert len(visit.titles()) == 2
        assert visit.page.locator("#more").is_hidden()


def test_a_narrow_window_has_no_sideways_scroll(visit: Visit, site: Live) -> None:
    page = visit.page
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{site.url}/?q=river")
    page.locator(".toggle").first.click()
    page.locator("#filters summary").click()
    page.locator(".facet").first.wait_for()
    wide = "[document.scrollingElement.scrollWidth, innerWidth]"
    assert page.evaluate(wide) == [360, 360]
    page.locator(".hit .title").first.click()
    page.locator(".whole-text").wait_for()
    assert page.evaluate(wide) == [360, 360]
    whole = page.locator("#document")
    assert whole.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_the_theme_follows_the_system_or_the_choice(visit: Visit, site: Live) -> None:
    page = visit.page
    page.emulate_media(color_scheme="dark")
    page.goto(site.url)
    page.locator("#welcome").wait_for()
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Theme: auto").click()
    light = page.evaluate(ground)
    assert dark != light
    page.get_by_role("button", name="Theme: light").click()
    assert page.evaluate(ground) == dark
    page.emulate_media(color_scheme="light")
    page.reload()
    page.locator("#welcome").wait_for()
    assert page.evaluate(ground) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit: Visit, site: Live, scheme: str) -> None:
    """SBERT_SEARCH_AXE names axe.min.js of the npm package axe-core."""
    axe = Path(os.environ["SBERT_SEARCH_AXE"]).read_text()
    page = visit.page
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(f"{site.url}/?q=river&is.kind=craft")
    page.locator(".hit").first.wait_for()
    page.locator(".facet").first.wait_for()
    page.locator(".toggle").first.click()
    found = _serious(visit, axe)
    page.locator(".title").first.click()
    page.locator(".whole-text").wait_for()
    found += _serious(visit, axe)
    page.keyboard.press("Escape")
    page.locator("#document:not([open])").wait_for(state="attached")
    page.keyboard.press("?")
    found += _serious(visit, axe)
    assert not found


def _serious(visit: Visit, axe: str) -> list[str]:
    visit.page.evaluate(axe)
    result = visit.page.evaluate("axe.run()")
    assert result["passes"]
    return [
        f"{one['id']}: {node['html']}: {node.get('failureSummary')}"
        for one in result["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def test_integers_beyond_the_numbers_of_javascript_are_shown_and_found(
    visit: Visit, tmp_path: Path
) -> None:
    number, escaped = (1 << 60) + 1, 'A mill, "12345678901234567890" \\'
    rows = [
        {
            "_id": "a",
            "text": escaped,
            "number": number,
            "numbers": [number, 3],
            "x": 0.1234567890123,
        },
        {"_id": "b", "text": "Another mill", "number": -number, "numbers": [number + 2]},
    ]
    index = Index.build(rows, out=tmp_path / "my.index", model="hashing")
    page = visit.page
    with live_server(index.path) as live:
        page.goto(live.url)
        visit.search("mill")
        shown = page.locator(".hit", has_text="12345678901234567890")
        assert shown.locator(".text").inner_text() == escaped
        values = shown.locator(".metadata dd").all_inner_texts()
        assert values == [str(number), f"{number}, 3", "0.1234567890123"]
        page.locator(".facet label", has_text=str(number)).locator("input").check()
        page.locator("#status", has_text="1 result with").wait_for()
        assert visit.titles() == ["a"]
