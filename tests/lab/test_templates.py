import json
import re

from sbert_search.lab.templates import embed_json, fill_page, hash_of

TEMPLATE = "<meta {{POLICY}}><title>{{TITLE}}</title>{{STYLE}}<p id=d>{{DATA}}</p>{{SCRIPT}}."


def test_every_place_is_filled_and_no_text_becomes_markup() -> None:
    data = {"text": "</script><b>{{TITLE}}"}
    page = fill_page(
        TEMPLATE, title="<i>", style="p{}", script="f()", data={"DATA": embed_json(data)}
    )
    assert "<title>&lt;i&gt;</title>" in page
    assert "<b>" not in page
    found = re.search("<p id=d>(.*?)</p>", page)
    assert found is not None
    assert json.loads(found[1]) == data
    assert page.endswith("f().")


def test_the_policy_names_style_and_script_by_their_hashes() -> None:
    page = fill_page(TEMPLATE, title="", style="p{}", script="f()", data={"DATA": ""})
    assert f"style-src {hash_of('p{}')}; script-src {hash_of('f()')};" in page
    # echo -n abc | openssl dgst -sha256 -binary | base64
    assert hash_of("abc") == "'sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0='"
