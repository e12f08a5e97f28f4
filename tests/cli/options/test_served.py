"""Arguments of the commands that answer other programs."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from sbert_search.cli.serve import named_indexes, require_packages
from sbert_search.errors import ConfigError


def test_an_index_is_called_like_its_folder_unless_it_is_named() -> None:
    assert named_indexes(["a/news.index", "docs=b/x", "c/d=e"]) == {
        "news.index": Path("a/news.index"),
        "docs": Path("b/x"),
        "d=e": Path("c/d=e"),
    }
    with pytest.raises(click.UsageError, match="Two indexes are called 'x'"):
        named_indexes(["a/x", "x=b"])
    for empty in ("", "news=", "=my.index", "/"):
        with pytest.raises(click.UsageError, match="has no name or no folder; write DIR"):
            named_indexes([empty])


def test_an_index_above_the_working_folder_has_the_name_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my.index" / "seg").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "my.index" / "seg")
    assert named_indexes([".."]) == {"my.index": Path("..")}
    assert named_indexes(["."]) == {"seg": Path(".")}


def test_missing_packages_are_named_with_the_extra_that_brings_them() -> None:
    require_packages("serve", "serve", ["json"])
    expected = r"serve --mcp needs absent1, absent2: python -m pip install -e '\.\[mcp\]' in"
    with pytest.raises(ConfigError, match=expected):
        require_packages("serve --mcp", "mcp", ["absent1", "json", "absent2"])
