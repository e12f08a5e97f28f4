import base64
import hashlib
import json
import re

import numpy as np

from sbert_search.lab.attention.maps import STEPS, make_page

RECORD = {
    "model": "</title><script>alert(1)</script>",
    "tokens": ["[CLS]", "</script><b>", "[SEP]"],
    "segments": [0, 0, 0],
    "special": [True, False, True],
    "layers": 1,
    "heads_of_a_layer": 2,
    "heads": [],
}


def values() -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(3), (1, 2, 3)).astype(np.float32)


def test_the_page_has_every_value_and_no_markup_of_others() -> None:
    probabilities = values()
    page = make_page(RECORD, probabilities)
    assert page.count("<script") == page.count("</script>") == 2
    assert "<b>" not in page
    found = re.search(r'id="data">(.+?)</script>', page)
    assert found is not None
    data = json.loads(found[1])
    assert data["tokens"] == RECORD["tokens"]
    steps = np.frombuffer(base64.b64decode(data["values"]), "<u2").reshape(probabilities.shape)
    assert np.abs(steps / STEPS - probabilities).max() <= 0.5 / STEPS + 1e-7


def test_the_policy_allows_only_the_style_and_the_script_of_the_page() -> None:
    page = make_page(RECORD, values())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    for name, content in (
        ("style", re.search(r"<style>(.*?)</style>", page, re.S)),
        ("script", re.search(r"<script>(.*?)</script>", page, re.S)),
    ):
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy[1]
    assert not re.search(r"https?://|@import|url\(", page)
