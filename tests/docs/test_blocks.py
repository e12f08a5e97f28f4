"""The reader of code blocks understands pages, and its comparison refuses another output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import agrees, blocks_of, commands_of


def test_a_page_is_read_in_order(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        'Text.\n\n```json title="a.json"\n{}\n```\n\n    ```console title="Exit code 2"\n'
        "    $ one \\\n        --two\n    shown\n    $ three\n    ```\n"
    )
    file, console = blocks_of(page)
    assert (file.language, file.title, file.body, file.is_file) == ("json", "a.json", "{}\n", True)
    assert console.exit_code == 2
    assert commands_of(console) == [("one --two", "shown\n"), ("three", "")]


def test_a_fence_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("```\ncode\n```\n")
    with pytest.raises(ValueError, match="0 blocks understood"):
        blocks_of(tmp_path / "page.md")


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("0.52 (mill)", "0.53 (mill)"),
        ("4 rows read (0.1 s)", "4 rows read (12.3 s)"),
        ("size 10.2 KiB", "size 10.3 KiB"),
        ("sha256 53aa...", "sha256 53aa51172d14"),
        ("first\n...\nlast", "first\nsecond\nthird\nlast"),
        ("spaces", "   \nspaces   \n"),
    ],
)
def test_outputs_that_agree(shown: str, printed: str) -> None:
    assert agrees(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("0.52", "0.54"),
        ("4 rows", "5 rows"),
        ("mill", "bread"),
        ("first\nlast", "first\nsecond\nlast"),
        ("first\n...\nlast", "first\nsecond"),
        ("", "something"),
    ],
)
def test_outputs_that_differ(shown: str, printed: str) -> None:
    assert not agrees(shown, printed)
