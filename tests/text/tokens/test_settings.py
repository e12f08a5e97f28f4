from pathlib import Path

import pytest

from sbert_search.errors import ModelError
from sbert_search.text.tokens.vocabulary import read_settings


def test_settings_are_a_json_object(tmp_path: Path) -> None:
    assert read_settings(tmp_path) == {}
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert read_settings(tmp_path) == {"do_lower_case": False}


@pytest.mark.parametrize(
    ("content", "message"),
    [("[]", "holds no JSON object"), ("{", "cannot be read"), ("[" * 100_000, "cannot be read")],
)
def test_damaged_settings_name_the_file(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ModelError, match=rf"tokenizer_config\.json {message}.*copy it again"):
        read_settings(tmp_path)
