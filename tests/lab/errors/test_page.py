import json
import re

from sbert_search.lab.errors.report import make_page
from tests.lab.errors.test_record import REPORT


def test_the_page_has_all_figures_and_fetches_nothing() -> None:
    page = make_page(REPORT)
    assert page.count("<script") == page.count("</script>") == 2
    found = re.search(r'id="data">(.+?)</script>', page)
    assert found is not None
    assert json.loads(found[1]) == json.loads(json.dumps(REPORT.to_mapping()))
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", page)
    assert "innerHTML" not in page
